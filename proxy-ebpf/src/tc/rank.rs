// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Rates the flow that uses a masquerade port, by the flow's entries. Called by `masquerade` and
//! `own`.

use proxy_common::{FlowKind, masquerade::reuse};

use crate::{
    family::Family,
    helpers,
    maps::{
        flow::{self, Found},
        workspace::Scratch,
    },
};

/// Returns the rank ([`reuse::rank`]) of the flow that uses the port in `scratch.key`, and writes
/// the keys of its reply and original entry to `holder` and `original`. `timestamp` is the new
/// packet's. Returns [`reuse::NEVER`] if an entry is missing, because another CPU is making or
/// removing the flow.
#[inline(always)]
pub fn rank_of<F: Family>(scratch: &mut Scratch<F::Addr>, timestamp: u32) -> u32 {
    let rank = rank::<F>(timestamp);
    // The call has changed the scratch.
    helpers::reread(scratch);
    rank
}

by_family! {
    /// See [`rank_of`]; the tuple is in `scratch.key` of the workspace.
    fn rank(timestamp) = portolan_rank_v4 portolan_rank_v6 of rank_of_tuple
}

#[inline(always)]
fn rank_of_tuple<F: Family>(timestamp: u32) -> u32 {
    let Some((.., scratch)) = flow::filled_workspace::<F>() else {
        return reuse::NEVER;
    };
    let Scratch {
        key: tuple,
        other,
        holder,
        original,
        ..
    } = scratch;
    let now = helpers::now();
    let Some(masqueraded) = flow::find::<F>(tuple, other) else {
        return reuse::NEVER;
    };
    let (client, client_port) = (masqueraded.entry.address, masqueraded.entry.port);
    let (backend, backend_port) = (&tuple.src, tuple.src_port);
    holder.assign(backend, backend_port, &client, client_port, tuple.protocol);
    match flow::find::<F>(holder, other) {
        Some(Found { entry, .. })
            if entry.kind == FlowKind::REPLY && entry.is_masqueraded_by(holder, tuple) =>
        {
            entry.original_key_into(holder, original);
        }
        _ => return reuse::NEVER,
    }
    match flow::find::<F>(original, other) {
        Some(Found { entry: found, .. })
            if found.kind == FlowKind::ORIGINAL && found.is_replied_by(original, holder) =>
        {
            let is_later = reuse::is_later(timestamp, found.reuse);
            reuse::rank(found.state, is_later, now.wrapping_sub(found.last_seen))
        }
        _ => reuse::NEVER,
    }
}
