// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Accounts a masqueraded reply in its flow's other entries, seldom enough that most replies cost
//! one look-up. Called by `forward`.

use proxy_common::{FlowEntry, FlowKey, FlowKind, FlowState, Protocol, xdp};

use crate::{
    family::Family,
    maps::{
        flow::{self, Found},
        workspace::EntryBuffer,
    },
    packet::Transport,
};

/// Accounts a reply; `found` is the masqueraded reply's entry, found by `key`. `None` if tc must
/// handle the packet. The last arguments are buffers.
#[inline(always)]
pub fn reply<F: Family>(
    key: &FlowKey<F::Addr>,
    transport: &Transport,
    found: &Found<'_, F::Addr>,
    now: u64,
    reply_key: &mut FlowKey<F::Addr>,
    original_key: &mut FlowKey<F::Addr>,
    (other, original): (&mut EntryBuffer<F::Addr>, &mut FlowEntry<F::Addr>),
) -> Option<()> {
    let (entry, acknowledged) = (found.entry, transport.acknowledged);
    if !xdp::is_due(entry, key.protocol, transport.signals, acknowledged, now) {
        return Some(());
    }
    let (client, port) = (&entry.address, entry.port);
    reply_key.assign(&key.src, key.src_port, client, port, key.protocol);
    let reply = flow::find::<F>(reply_key, other)?;
    let belongs = reply.entry.kind == FlowKind::REPLY
        && reply.entry.state != FlowState::NEW
        && reply.entry.is_masqueraded_by(reply_key, key)
        && (key.protocol != Protocol::TCP || reply.follows(acknowledged));
    if !belongs || touch_original::<F>(reply_key, reply.entry, original_key, original, now) == 0 {
        return None;
    }
    reply.see_reply(key.protocol, acknowledged, now);
    found.note_answered(acknowledged, now);
    Some(())
}

/// Notes in the original entry of a reply's flow that a packet was seen. Notes nothing and returns
/// 0 if the reply would change more there.
#[inline(never)]
fn touch_original<F: Family>(
    reply_key: &FlowKey<F::Addr>,
    reply: &FlowEntry<F::Addr>,
    key: &mut FlowKey<F::Addr>,
    buffer: &mut FlowEntry<F::Addr>,
    now: u64,
) -> u32 {
    reply.original_key_into(reply_key, key);
    // SAFETY: an entry is a valid buffer for one; `find` writes complete entries.
    let buffer = unsafe { &mut *core::ptr::from_mut(buffer).cast::<EntryBuffer<F::Addr>>() };
    match flow::find::<F>(key, buffer) {
        Some(original)
            if original.entry.kind == FlowKind::ORIGINAL
                && xdp::is_settled(original.entry.state, key.protocol) =>
        {
            original.touch(now);
            1
        }
        _ => 0,
    }
}
