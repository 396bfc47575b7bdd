// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Whether a tuple that a new flow needs belongs to a flow that still exists. Called by `begin` and
//! `direct`.

use proxy_common::{FlowKind, FlowState};

use crate::{
    helpers,
    maps::{
        flow::{self, Claim},
        room::YOUTH,
        tables::Tables,
        workspace::Scratch,
    },
};

/// Enters the reply entry in `scratch` for the flow of the packet in the workspace. It replaces an
/// entry with the same key that belongs to no living flow: one without an original entry, one of a
/// closed flow, or this flow's own.
#[inline(always)]
pub fn claim_reply<T: Tables>(scratch: &mut Scratch<T::Addr>) -> Claim {
    match flow::claim::<T>(&scratch.key, &scratch.entry) {
        Claim::Taken => {}
        claim => return claim,
    }
    if is_held::<T>(scratch) {
        return Claim::Taken;
    }
    // If two CPUs replace the entry at once, only one of them enters its own.
    flow::remove::<T>(&scratch.key);
    flow::claim::<T>(&scratch.key, &scratch.entry)
}

/// Whether a living flow other than that of the packet in the workspace has the reply key in
/// `scratch`, which belongs to the workspace. If that flow has ended, this removes its entries, all
/// but the reply entry. With `scratch.insists`, this also removes a half-open flow of a client
/// behind another interface: an attacker may have sent that flow's packets with this client's
/// address, to leave this client no tuple.
#[inline(always)]
pub fn is_held<T: Tables>(scratch: &mut Scratch<T::Addr>) -> bool {
    let held = held::<T>();
    // The call has changed the scratch.
    helpers::reread(scratch);
    held != 0
}

// VERIFIER: Linux 6.19 and 7.0 would follow twice as many paths as others. No function is called
// here, because the stack is too short below `begin`.

by_family! {
    /// See [`is_held`]; 0 means no.
    fn held() = portolan_is_held_v4 portolan_is_held_v6 of is_reply_held
}

#[inline(always)]
fn is_reply_held<T: Tables>() -> u32 {
    let Some((packet, _, scratch)) = flow::filled_workspace::<T>() else {
        return 1;
    };
    let key = &packet.key;
    let Some(held) = flow::find::<T>(&scratch.key, &mut scratch.other) else {
        return 1;
    };
    if held.entry.kind != FlowKind::REPLY {
        return 1;
    }
    if held.entry.replies_to(&scratch.key, key) {
        return 0;
    }
    // Two connections from one port, through two services to one backend, may begin at the same
    // moment.
    let is_young = held.entry.state == FlowState::NEW
        && scratch.entry.last_seen.wrapping_sub(held.entry.last_seen) < YOUTH;
    held.entry
        .original_key_into(&scratch.key, &mut scratch.holder);
    let is_masqueraded = held.entry.knows_masquerade();
    if is_masqueraded {
        held.entry
            .masqueraded_key_into(&scratch.key, &mut scratch.original);
    }
    let Some(holder) = flow::find::<T>(&scratch.holder, &mut scratch.other) else {
        return is_young as u32;
    };
    if holder.entry.kind != FlowKind::ORIGINAL
        || !holder.entry.is_replied_by(&scratch.holder, &scratch.key)
    {
        return is_young as u32;
    }
    let state = holder.entry.state;
    let is_foreign = scratch.holder.interface() != key.interface();
    if !(state.is_closed() || scratch.insists != 0 && is_foreign && state.gives_way()) {
        return 1;
    }
    flow::remove::<T>(&scratch.holder);
    if is_masqueraded {
        flow::remove::<T>(&scratch.original);
    }
    0
}
