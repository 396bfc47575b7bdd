// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! sendmsg and recvmsg of datagrams that name an address.

use proxy_common::{
    Addr, Counter, Port, Protocol, SocketCookie, SocketEntry, SocketKey, SocketRole,
};

use super::{
    Answer, Caller, ECONNREFUSED, FAIL, PROCEED, SockAddr, Target, choose,
    connect::is_current,
    context::Place,
    fail_with, may_be_frontend, proceed,
    table::{Room, enter, enter_head, find, is_entered, is_known, remove},
};
use crate::{count, family::Family, packet::access, service};

/// A datagram is sent to an address.
#[inline(never)]
pub fn send<P: Place>(ctx: SockAddr) -> i32 {
    let Some(settings) = service::settings() else {
        return proceed(Counter::SocketUntouched);
    };
    let target = Target {
        address: P::address(ctx),
        port: ctx.port(),
        protocol: Protocol::UDP,
    };
    if ctx.protocol() != Protocol::UDP
        || !may_be_frontend::<P::Family>(target.address, target.port, settings)
    {
        return proceed(Counter::SocketUntouched);
    }
    let caller = Caller::of(ctx, settings);
    let cookie = ctx.cookie();
    let mut entry = Room::uninit();
    if !is_known::<P::Family>(cookie) || !recall::<P::Family>(&cookie, &target, &mut entry) {
        if !caller.is_served() {
            leave::<P::Family>(&cookie);
            return proceed(Counter::SocketUntouched);
        }
        if is_left::<P::Family>(&cookie) {
            return proceed(Counter::SocketUntouched);
        }
        let answer = choose::<P::Family>(&caller, &target, Some(&cookie), &mut entry);
        answer.count();
        match answer.kind() {
            Answer::TRANSLATE => {
                // SAFETY: chosen above.
                let entry = unsafe { entry.assume_init_mut() };
                if !associate::<P::Family>(&cookie, entry) {
                    count::add(Counter::SocketTableFull);
                    if !caller.is_node() {
                        return PROCEED;
                    }
                }
            }
            Answer::UNTOUCHED => return PROCEED,
            Answer::REFUSE => return fail_with(ECONNREFUSED),
            _ => return FAIL,
        }
    } else {
        count::add(Counter::SocketTranslated);
    }
    // SAFETY: recalled or chosen above.
    let entry = unsafe { entry.assume_init_ref() };
    P::set_address(ctx, entry.backend_address);
    ctx.set_port(entry.backend_port);
    PROCEED
}

/// Notes that the socket began on the packet path.
#[inline(never)]
fn leave<F: Family>(cookie: &SocketCookie) -> u32 {
    let key = SocketKey::list(*cookie);
    if !is_entered::<F>(&key) {
        let mut entry = SocketEntry::empty(Protocol::UDP, SocketEntry::<F::Addr>::LEFT, 0);
        // Where the map is full the socket is moved when the setting is, as if we had not looked.
        enter_head::<F>(&key, &mut entry);
    }
    0
}

/// Whether the socket began on the packet path.
#[inline(never)]
fn is_left<F: Family>(cookie: &SocketCookie) -> bool {
    let mut room = Room::uninit();
    find::<F>(&SocketKey::list(*cookie), &mut room)
        .is_some_and(|found| found.entry.flags & SocketEntry::<F::Addr>::LEFT != 0)
}

/// Finds the backend that the socket's datagrams to this frontend go to, if it still serves. What it no
/// longer sends to is forgotten.
#[inline(always)]
fn recall<F: Family>(
    cookie: &SocketCookie,
    target: &Target<F::Addr>,
    room: &mut Room<F::Addr>,
) -> bool {
    let forward = SocketKey::new(*cookie, SocketRole::FORWARD, target.address, target.port);
    let Some(found) = find::<F>(&forward, room) else {
        return false;
    };
    let current = is_current::<F>(found.entry);
    if current {
        found.touch(access::now());
    }
    claim_answers::<F>(cookie, found.entry, current);
    current
}

/// Of two services that share a backend on one socket, the one that was spoken to last gets the answers.
/// A backend that serves no longer gives none.
#[inline(never)]
fn claim_answers<F: Family>(cookie: &SocketCookie, forward: &SocketEntry<F::Addr>, current: bool) {
    let reverse = reverse_key(cookie, forward);
    let mut room = Room::uninit();
    let held = find::<F>(&reverse, &mut room).is_some_and(|found| {
        found
            .entry
            .is_frontend(forward.frontend, forward.frontend_port)
    });
    if held && !current {
        remove::<F>(&reverse);
    } else if !held && current {
        let mut entry = *forward;
        (entry.next, entry.next_port) = (F::Addr::UNSPECIFIED, Port::ANY);
        enter::<F>(&reverse, &mut entry);
    }
}

#[inline(always)]
fn reverse_key<A: Addr>(cookie: &SocketCookie, entry: &SocketEntry<A>) -> SocketKey<A> {
    SocketKey::new(
        *cookie,
        SocketRole::REVERSE,
        entry.backend_address,
        entry.backend_port,
    )
}

/// Enters a new association in both directions and in the socket's list; `false` if the map is full.
#[inline(never)]
fn associate<F: Family>(cookie: &SocketCookie, entry: &mut SocketEntry<F::Addr>) -> bool {
    if !enter::<F>(&reverse_key(cookie, entry), entry) {
        return false;
    }
    let list = SocketKey::list(*cookie);
    let mut room = Room::uninit();
    if find::<F>(&list, &mut room).is_none() {
        room.write(SocketEntry::empty(
            Protocol::UDP,
            entry.flags,
            entry.last_used,
        ));
    }
    // SAFETY: found or written above.
    let first = unsafe { room.assume_init_mut() };
    // One that idled out may still be first in the list.
    if first.next != entry.frontend || first.next_port != entry.frontend_port {
        (entry.next, entry.next_port) = (first.next, first.next_port);
    }
    (first.next, first.next_port) = (entry.frontend, entry.frontend_port);
    let forward = SocketKey::new(
        *cookie,
        SocketRole::FORWARD,
        entry.frontend,
        entry.frontend_port,
    );
    enter::<F>(&forward, entry) && enter_head::<F>(&list, first)
}

/// A datagram is handed to a process that wants to know where it came from.
#[inline(never)]
pub fn receive<P: Place>(ctx: SockAddr) -> i32 {
    let (address, port) = (P::address(ctx), ctx.port());
    let cookie = ctx.cookie();
    if !is_known::<P::Family>(cookie) {
        return PROCEED;
    }
    let mut room = Room::uninit();
    let reverse = SocketKey::new(cookie, SocketRole::REVERSE, address, port);
    if let Some(found) = find::<P::Family>(&reverse, &mut room) {
        found.touch(access::now());
        return restore::<P>(ctx, found.entry);
    }
    if let Some(found) = find::<P::Family>(&SocketKey::connected(cookie), &mut room)
        && found.entry.is_backend(address, port)
    {
        return restore::<P>(ctx, found.entry);
    }
    PROCEED
}

#[inline(always)]
fn restore<P: Place>(ctx: SockAddr, entry: &SocketEntry<<P::Family as Family>::Addr>) -> i32 {
    P::set_address(ctx, entry.frontend);
    ctx.set_port(entry.frontend_port);
    count::add(Counter::SocketRestored);
    PROCEED
}
