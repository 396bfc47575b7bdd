// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a test run has besides the packet: the context, the verdict, and the counter that it moves.

use proxy_common::Counter;

/// The verdicts of tc. After `NEXT`, the packet goes on to foreign programs and filters after ours.
pub(crate) const NEXT: u32 = u32::MAX;
pub(crate) const SHOT: u32 = 2;
pub(crate) const REDIRECT: u32 = 7;

/// The context in which a program of tc sees a packet.
#[derive(Clone, Copy, Default)]
pub(crate) struct Context {
    pub(crate) mark: u32,
    /// The interface index; 0 for loopback.
    pub(crate) interface: u32,
    /// The interface at which an outgoing packet has come in; 0 for a packet of this node.
    pub(crate) came_by: u32,
    /// The payload of each segment into which the packet will be cut; 0 if it stays uncut.
    pub(crate) segment: u32,
    /// What a program before this one has left in the packet's control block.
    pub(crate) note: u32,
}

impl Context {
    const MARK: usize = 2;
    const NOTE: usize = 12;

    /// Returns a `__sk_buff`, as long as that of any kernel: the kernel returns all of it.
    pub(crate) fn bytes(self) -> Vec<u8> {
        let mut fields = [[0_u8; 4]; 64];
        for (field, value) in [
            (Self::MARK, self.mark),
            (9, self.came_by),
            (10, self.interface),
            (Self::NOTE, self.note),
            (44, self.segment),
        ] {
            fields[field] = value.to_ne_bytes();
        }
        fields.concat()
    }
    /// Returns the mark and the note in a `__sk_buff` that a program has left.
    pub(crate) fn left(bytes: &[u8]) -> [u32; 2] {
        [Self::MARK, Self::NOTE].map(|field| {
            let bytes = &bytes[field * 4..field * 4 + 4];
            u32::from_ne_bytes(bytes.try_into().expect("four bytes"))
        })
    }
}

/// Returns a `struct xdp_md`: start and end of the frame, metadata, interface, queue, egress.
pub(crate) fn of_xdp(frame: &[u8], interface: u32) -> Vec<u8> {
    let length = u32::try_from(frame.len()).expect("short");
    let fields = [0, length, 0, interface, 0, 0];
    fields.map(u32::to_ne_bytes).concat()
}

/// Returns the counter that a packet has increased; fails unless only one has increased, by one.
/// None if no counter has changed. FlowEvictedEarly may increase in addition and is not returned.
pub(crate) fn moved(before: &[u64], after: &[u64]) -> Result<Option<Counter>, String> {
    let by = before.iter().zip(after);
    let by = by.map(|(before, after)| after - before);
    let mut moved: Vec<_> = Counter::ALL.iter().copied().zip(by).collect();
    moved.retain(|(counter, by)| *by > 0 && *counter != Counter::FlowEvictedEarly);
    match moved[..] {
        [] => Ok(None),
        [(counter, 1)] => Ok(Some(counter)),
        _ => Err(format!("these move: {moved:?}")),
    }
}
