// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Accounts a masqueraded reply in its flow's other entries, seldom enough that most replies cost one look-up. Called by `forward`.

use proxy_common::{FlowKey, FlowKind, FlowState, Protocol, xdp};

use crate::{
    family::Family,
    maps::{
        flow::{self, Found},
        workspace::EntryBuffer,
    },
    packet::Transport,
};

/// Accounts a reply that was found by `key`; `None` if tc must see it.
#[inline(always)]
pub fn reply<F: Family>(
    key: &FlowKey<F::Addr>,
    transport: &Transport,
    found: &Found<'_, F::Addr>,
    now: u64,
) -> Option<()> {
    if !xdp::is_due(found.entry, key.protocol, transport.acknowledged, now) {
        return Some(());
    }
    let acknowledged = transport.acknowledged;
    let mut reply_key = *key;
    (reply_key.dst, reply_key.dst_port) = (found.entry.address, found.entry.port);
    if in_others::<F>(&reply_key, key, acknowledged, now) == 0 {
        return None;
    }
    found.note_answered(acknowledged, now);
    Some(())
}

/// Accounts a reply in the reply entry and the original entry, as egress does; not 0 if it changes no state.
#[inline(never)]
fn in_others<F: Family>(
    reply_key: &FlowKey<F::Addr>,
    masqueraded: &FlowKey<F::Addr>,
    acknowledged: u32,
    now: u64,
) -> u32 {
    let mut buffer = EntryBuffer::<F::Addr>::uninit();
    let Some(reply) = flow::find::<F>(reply_key, &mut buffer) else {
        return 0;
    };
    let protocol = reply_key.protocol;
    let belongs = reply.entry.kind == FlowKind::REPLY
        && reply.entry.state != FlowState::NEW
        && reply.entry.is_masqueraded_by(reply_key, masqueraded)
        && (protocol != Protocol::TCP || reply.follows(acknowledged));
    if !belongs || touch_original::<F>(reply_key, reply.entry, now) == 0 {
        return 0;
    }
    reply.see_reply(protocol, acknowledged, now);
    1
}

/// Notes in the original entry of a reply that a packet was seen; not 0 if the reply changes nothing else there.
#[inline(never)]
fn touch_original<F: Family>(
    reply_key: &FlowKey<F::Addr>,
    reply: &proxy_common::FlowEntry<F::Addr>,
    now: u64,
) -> u32 {
    let mut key = *reply_key;
    reply.original_key_into(reply_key, &mut key);
    let mut buffer = EntryBuffer::<F::Addr>::uninit();
    match flow::find::<F>(&key, &mut buffer) {
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
