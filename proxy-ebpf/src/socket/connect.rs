// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! connect and getpeername.

use proxy_common::{Counter, Protocol, Settings, SocketEntry, SocketKey};

use super::{
    Answer, Caller, ECONNREFUSED, PROCEED, SockAddr, Target, choose,
    context::Place,
    fail_with, may_be_backend, may_be_frontend, proceed,
    table::{self, Room, find},
};
use crate::{count, family::Family, marks, packet::access, service};

/// A socket is to be connected.
#[inline(never)]
pub fn connect<P: Place>(ctx: SockAddr) -> i32 {
    let protocol = ctx.protocol();
    if protocol != Protocol::TCP && protocol != Protocol::UDP {
        return proceed(Counter::SocketUntouched);
    }
    let Some(settings) = service::settings() else {
        return proceed(Counter::SocketUntouched);
    };
    let target = Target {
        address: P::address(ctx),
        port: ctx.port(),
        protocol,
    };
    let key = SocketKey::connected(ctx.cookie());
    if !may_be_frontend::<P::Family>(target.address, target.port, settings) {
        return pass_by::<P>(ctx, &key, settings);
    }
    let caller = Caller::of(ctx, settings);
    if !caller.is_served() {
        return pass_by::<P>(ctx, &key, settings);
    }
    let mut room = Room::uninit();
    let answer = if protocol == Protocol::UDP && keep::<P::Family>(&key, &target, &mut room) {
        Answer::new(Answer::TRANSLATE, Counter::SocketTranslated)
    } else {
        choose::<P::Family>(&caller, &target, None, &mut room)
    };
    match answer.kind() {
        Answer::TRANSLATE => {
            // SAFETY: kept or chosen above.
            let entry = unsafe { room.assume_init_mut() };
            if !table::enter_head::<P::Family>(&key, entry) {
                count::add(Counter::SocketTableFull);
                // The packet path serves pods just as well, but not the node's own processes.
                if !caller.is_node() {
                    return PROCEED;
                }
            }
            set_drop_mark(ctx, settings, false);
            P::set_address(ctx, entry.backend_address);
            ctx.set_port(entry.backend_port);
        }
        Answer::REFUSE => {
            answer.count();
            return fail_with(ECONNREFUSED);
        }
        Answer::DROP => {
            table::remove_head::<P::Family>(&key);
            set_drop_mark(ctx, settings, true);
        }
        _ => return pass_by::<P>(ctx, &key, settings),
    }
    answer.count();
    PROCEED
}

/// The socket is none of ours (any more).
#[inline(always)]
fn pass_by<P: Place>(
    ctx: SockAddr,
    key: &SocketKey<<P::Family as Family>::Addr>,
    settings: &'static Settings,
) -> i32 {
    table::remove_head::<P::Family>(key);
    set_drop_mark(ctx, settings, false);
    proceed(Counter::SocketUntouched)
}

/// KUBE: a UDP socket's datagrams are one flow for conntrack, also over a second connect to the same service.
#[inline(never)]
fn keep<F: Family>(
    key: &SocketKey<F::Addr>,
    target: &Target<F::Addr>,
    room: &mut Room<F::Addr>,
) -> bool {
    let kept = find::<F>(key, room).is_some_and(|found| {
        found.entry.is_frontend(target.address, target.port) && is_current::<F>(found.entry)
    });
    if kept {
        // SAFETY: found above.
        unsafe { room.assume_init_mut() }.last_used = access::now();
    }
    kept
}

/// Whether the entry's backend still serves.
#[inline(always)]
pub(super) fn is_current<F: Family>(entry: &SocketEntry<F::Addr>) -> bool {
    F::backends()
        .get(entry.backend.0)
        .is_some_and(|backend| backend.is_current(entry.service, entry.generation))
}

/// Has egress drop what a node's socket sends, or stops that.
#[inline(always)]
fn set_drop_mark(ctx: SockAddr, settings: &'static Settings, dropped: bool) {
    let (mark, drop) = (ctx.mark(), marks::drop());
    if (mark & drop != 0) != dropped && Caller::of(ctx, settings).is_node() {
        ctx.set_mark(mark ^ drop);
    }
}

/// A process asks who its socket is connected to, or who it has accepted.
#[inline(never)]
pub fn peer_name<P: Place>(ctx: SockAddr) -> i32 {
    let (address, port) = (P::address(ctx), ctx.port());
    if !may_be_backend(port) {
        return PROCEED;
    }
    let key = SocketKey::connected(ctx.cookie());
    let mut room = Room::uninit();
    if let Some(found) = find::<P::Family>(&key, &mut room)
        && found.entry.is_backend(address, port)
    {
        P::set_address(ctx, found.entry.frontend);
        ctx.set_port(found.entry.frontend_port);
        count::add(Counter::SocketRestored);
    }
    PROCEED
}
