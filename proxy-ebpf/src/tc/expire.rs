// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Removes idle flows. The agent walks the flow table and passes keys. Each entry is checked again
//! here, in the kernel, so that a flow stays if a packet came in between. Run by the agent
//! (BPF_PROG_TEST_RUN), never attached.

use proxy_common::{
    FlowKey, FlowKind,
    flow::{EXPIRY_BATCH, ExpiryRequest},
};

use crate::{
    family::Family,
    helpers,
    maps::{
        flow,
        workspace::{self, Scratch},
    },
    packet::Skb,
};

/// Removes the idle entries among the request's keys; returns how many flows it removed, and
/// entries that belonged to no flow.
#[inline(always)]
pub fn expire<F: Family>(skb: Skb) -> i32 {
    let Some((.., scratch)) = flow::workspace::<F>(workspace::EXPIRE, 0) else {
        return 0;
    };
    let Some(request) = skb.load::<ExpiryRequest>(0) else {
        return 0;
    };
    let mut walk = Walk::<F> {
        skb,
        request,
        scratch,
        removed: 0,
    };
    helpers::repeat(EXPIRY_BATCH as u32, &mut walk, expire_next::<F>);
    walk.removed
}

/// The state of the walk through a request's keys.
struct Walk<'a, F: Family> {
    skb: Skb,
    request: ExpiryRequest,
    scratch: &'a mut Scratch<F::Addr>,
    removed: i32,
}

extern "C" fn expire_next<F: Family>(n: u64, walk: &mut Walk<'_, F>) -> u64 {
    let n = n as u32;
    if n >= walk.request.count {
        return helpers::STOP;
    }
    let offset = size_of::<ExpiryRequest>() as u32 + n * size_of::<FlowKey<F::Addr>>() as u32;
    let Some(key) = walk.skb.load::<FlowKey<F::Addr>>(offset) else {
        return helpers::STOP;
    };
    walk.removed += expire_one::<F>(&key, &walk.request, walk.scratch);
    0
}

#[inline(never)]
fn expire_one<F: Family>(
    key: &FlowKey<F::Addr>,
    request: &ExpiryRequest,
    scratch: &mut Scratch<F::Addr>,
) -> i32 {
    let Some(found) = flow::find::<F>(key, &mut scratch.found) else {
        return 0;
    };
    let entry = found.entry;
    if !request
        .idle_times
        .is_expired(key.protocol, entry.state, entry.last_seen, request.now)
    {
        return 0;
    }
    let owned = match entry.kind {
        FlowKind::ORIGINAL => {
            flow::remove_all::<F>(key, scratch);
            return 1;
        }
        FlowKind::REPLY => {
            scratch.key = *key;
            owns_reply::<F>(scratch)
        }
        FlowKind::MASQUERADED_REPLY => owns_masqueraded_reply::<F>(key, scratch),
        _ => false,
    };
    if owned {
        return 0;
    }
    flow::remove::<F>(key);
    1
}

/// Whether the reply entry in `scratch.found`, under `scratch.key`, still belongs to a flow. Then
/// it is not removed here, but together with the flow's original entry.
#[inline(never)]
fn owns_reply<F: Family>(scratch: &mut Scratch<F::Addr>) -> bool {
    let Scratch {
        found,
        other,
        key,
        holder,
        ..
    } = scratch;
    // SAFETY: the caller has found the reply entry there.
    let reply = unsafe { found.assume_init_ref() };
    reply.original_key_into(key, holder);
    flow::find::<F>(holder, other).is_some_and(|original| {
        original.entry.kind == FlowKind::ORIGINAL && original.entry.is_replied_by(holder, key)
    })
}

/// Like [`owns_reply`], for the masqueraded reply entry in `scratch.found`, whose key is
/// `masqueraded`.
#[inline(never)]
fn owns_masqueraded_reply<F: Family>(
    masqueraded: &FlowKey<F::Addr>,
    scratch: &mut Scratch<F::Addr>,
) -> bool {
    // SAFETY: the caller has found the entry there.
    let (client, port) = {
        let entry = unsafe { scratch.found.assume_init_ref() };
        (entry.address, entry.port)
    };
    let (src, src_port) = (&masqueraded.src, masqueraded.src_port);
    scratch
        .key
        .assign(src, src_port, &client, port, masqueraded.protocol);
    let is_its_reply = flow::find::<F>(&scratch.key, &mut scratch.found).is_some_and(|reply| {
        reply.entry.kind == FlowKind::REPLY
            && reply.entry.is_masqueraded_by(&scratch.key, masqueraded)
    });
    is_its_reply && owns_reply::<F>(scratch)
}
