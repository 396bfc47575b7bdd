// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes packets with comments into a file for Wireshark (pcapng: draft-ietf-opsawg-pcapng).

use std::io::{self, Write};

use datapath::trace::TraceReport;
use proxy_common::trace::Hook;

/// Types of blocks.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;

/// Types of options: of any block, of a section, of an interface, and of a packet.
const COMMENT: u16 = 1;
const APPLICATION: u16 = 4;
const NAME: u16 = 2;
const RESOLUTION: u16 = 9;
const FLAGS: u16 = 2;

/// Link types of an interface: Ethernet frames, and bare IP packets.
const ETHERNET: u32 = 1;
const RAW: u32 = 101;

/// Writes a capture file in the pcapng format.
pub(super) struct Writer<W> {
    out: W,
    /// The interfaces in the file, by their numbers: the name, and true for Ethernet frames.
    interfaces: Vec<(String, bool)>,
    snap: u32,
}

impl<W: Write> Writer<W> {
    /// Begins the file. `snap`: how many bytes of a packet are captured at most.
    pub(super) fn new(mut out: W, snap: u32) -> io::Result<Self> {
        let application = concat!("portolan ", env!("CARGO_PKG_VERSION"));
        // The mark of the byte order, version 1.0, and a length of the section that is not known.
        let words = [0x1a2b_3c4d, 1, u32::MAX, u32::MAX];
        let options = [(APPLICATION, application.as_bytes())];
        block(&mut out, SECTION, &words, &[], &options)?;
        Ok(Self {
            out,
            interfaces: Vec::new(),
            snap,
        })
    }

    /// Writes a packet, seen at `time` (nanoseconds since 1970). If it is the first of its
    /// interface, describes the interface before it.
    pub(super) fn packet(
        &mut self,
        time: u64,
        interface: &str,
        TraceReport { event, bytes }: &TraceReport,
        comment: &str,
    ) -> io::Result<()> {
        let captured = bytes.len() as u32;
        let words = [
            self.interface(interface, event.link_layer != 0)?,
            (time >> 32) as u32,
            time as u32,
            captured,
            event.length.max(captured),
        ];
        let is_inbound = event.hook == Hook::Ingress as u8;
        let direction = if is_inbound { 1_u32 } else { 2 };
        let options = [
            (COMMENT, comment.as_bytes()),
            (FLAGS, &direction.to_le_bytes()),
        ];
        block(&mut self.out, PACKET, &words, bytes, &options)
    }

    fn interface(&mut self, name: &str, has_link_layer: bool) -> io::Result<u32> {
        let wanted = (name.to_owned(), has_link_layer);
        if let Some(place) = self.interfaces.iter().position(|known| *known == wanted) {
            return Ok(place as u32);
        }
        let link = if has_link_layer { ETHERNET } else { RAW };
        // Times in the file are in nanoseconds.
        let options = [(NAME, name.as_bytes()), (RESOLUTION, &[9])];
        block(&mut self.out, INTERFACE, &[link, self.snap], &[], &options)?;
        self.interfaces.push(wanted);
        Ok(self.interfaces.len() as u32 - 1)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Writes a block: its fixed fields, the bytes of a packet, and the options, which an empty one
/// ends. A value that is too long for an option is cut.
fn block(
    out: &mut impl Write,
    kind: u32,
    words: &[u32],
    bytes: &[u8],
    options: &[(u16, &[u8])],
) -> io::Result<()> {
    let mut body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    padded(&mut body, bytes);
    for (kind, value) in options.iter().chain(&[(0, &[][..])]) {
        let value = &value[..value.len().min(usize::from(u16::MAX) - 3)];
        body.extend(kind.to_le_bytes());
        body.extend((value.len() as u16).to_le_bytes());
        padded(&mut body, value);
    }
    let length = (body.len() as u32 + 12).to_le_bytes();
    out.write_all(&[&kind.to_le_bytes(), &length[..], &body, &length].concat())
}

fn padded(body: &mut Vec<u8>, bytes: &[u8]) {
    body.extend(bytes);
    body.resize(body.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use proxy_common::trace::Event;

    use super::*;

    fn words(bytes: &[u8]) -> Vec<u32> {
        let word = |word: &[u8]| u32::from_le_bytes(word.try_into().expect("four"));
        bytes.chunks_exact(4).map(word).collect()
    }

    #[test]
    fn each_pcapng_block_has_its_length_at_both_ends() {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file, 256).expect("memory");
        for link_layer in [1, 1, 0] {
            let event = Event {
                link_layer,
                length: 60,
                ..Event::EMPTY
            };
            let bytes = vec![1, 2, 3, 4, 5];
            let written =
                writer.packet(0x1_0000_0002, "eth0", &TraceReport { event, bytes }, "why");
            written.expect("memory");
        }
        assert_eq!(file.len() % 4, 0);
        let words = words(&file);
        let (mut kinds, mut at) = (Vec::new(), 0);
        while at < words.len() {
            let length = words[at + 1] as usize / 4;
            assert_eq!(words[at + length - 1], words[at + 1]);
            kinds.push(words[at]);
            if words[at] == PACKET {
                assert_eq!(words[at + 3..at + 7], [1, 2, 5, 60]);
            }
            at += length;
        }
        let both = [INTERFACE, PACKET, PACKET, INTERFACE, PACKET];
        assert_eq!((kinds[0], &kinds[1..]), (SECTION, &both[..]));
        let text = b"why\0";
        assert_eq!(file.windows(4).filter(|part| part == text).count(), 3);
    }
}
