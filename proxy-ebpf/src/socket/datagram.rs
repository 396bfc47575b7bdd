// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The sendmsg and recvmsg hooks, for datagrams whose system call names an address.

use proxy_common::{
    Addr, Counter, Port, Protocol, SocketCookie, SocketEntry, SocketKey, SocketRole,
    ports as port_bits,
};

use super::{
    Caller, ECONNREFUSED, FAIL, PROCEED, SockAddr, SocketVerdict, Target,
    choose::{choose, owner},
    connect::is_current,
    fail_with, may_be_frontend, proceed,
    sock_addr::AddressForm,
    table::{EntryBuffer, enter, enter_first, find, is_known, locate, remove, reverse_key},
};
use crate::{
    count,
    family::Family,
    helpers,
    maps::{node, ports},
    packet::Ip,
};

/// Runs when a process sends a datagram to an address.
// VERIFIER: part of its entry point: see `connect_mapped`.
#[inline(always)]
pub fn send<A: AddressForm>(ctx: SockAddr) -> i32 {
    let Some(settings) = node::settings() else {
        return proceed(Counter::SocketUntouched);
    };
    let target = Target {
        address: A::address(ctx),
        port: ctx.port(),
        protocol: Protocol::UDP,
    };
    // An IPv6 socket's plain send to its IPv4-mapped peer runs this hook, too. A connected socket
    // receives from its peer only.
    if ctx.protocol() != Protocol::UDP
        || !may_be_frontend::<A::Family>(target.address, target.port, settings)
        || A::is_peer(ctx, target.address, target.port)
    {
        return proceed(Counter::SocketUntouched);
    }
    let caller = Caller::of(ctx, settings);
    let cookie = ctx.cookie();
    let mut entry = EntryBuffer::uninit();
    let known = is_known::<A::Family>(cookie);
    if known && ctx.is_connected() && asks_peer::<A::Family>(&cookie, &target, &mut entry) {
        count::add(Counter::SocketTranslated);
    } else if !known || !recall::<A::Family>(&cookie, &target, &mut entry) {
        if !caller.is_served() {
            leave::<A::Family>(&cookie);
            return proceed(Counter::SocketUntouched);
        }
        if is_left::<A::Family>(&cookie) {
            return proceed(Counter::SocketUntouched);
        }
        let verdict = choose::<A::Family>(&caller, &target, Some(&cookie), &mut entry);
        verdict.count();
        match verdict.kind() {
            SocketVerdict::TRANSLATE => {
                // SAFETY: chosen above.
                let entry = unsafe { entry.assume_init_mut() };
                if !associate::<A::Family>(&cookie, entry) {
                    count::add(Counter::SocketTableFull);
                    if !caller.is_node() {
                        return PROCEED;
                    }
                }
                verdict.note::<A::Family>(entry);
            }
            SocketVerdict::UNTOUCHED => return PROCEED,
            SocketVerdict::REFUSE => return fail_with(ECONNREFUSED),
            _ => return FAIL,
        }
    } else {
        // SAFETY: recalled above.
        let is_peers = unsafe { entry.assume_init_ref() }.is_peers();
        count::add(if is_peers {
            Counter::SocketUntouched
        } else {
            Counter::SocketTranslated
        });
    }
    // SAFETY: recalled or chosen above.
    let entry = unsafe { entry.assume_init_ref() };
    A::set_address(ctx, entry.backend_address);
    ctx.set_port(entry.backend_port);
    PROCEED
}

/// Whether the socket is connected to this frontend; `buffer` then has the connection's entry. Such
/// a socket receives only from the backend of that connection, so its datagrams go to that backend.
#[inline(never)]
fn asks_peer<F: Family>(
    cookie: &SocketCookie,
    target: &Target<F::Addr>,
    buffer: &mut EntryBuffer<F::Addr>,
) -> bool {
    find::<F>(&SocketKey::connected(*cookie), buffer).is_some_and(|found| {
        found.entry.is_frontend(target.address, target.port)
            && found.entry.flags & SocketEntry::<F::Addr>::DROPPED == 0
    })
}

/// Enters a list entry which says that the packet path serves the socket. The returned 0 has no
/// meaning.
#[inline(never)]
fn leave<F: Family>(cookie: &SocketCookie) -> u32 {
    let key = SocketKey::list(*cookie);
    if locate::<F>(&key).is_none() {
        let mut entry = SocketEntry::empty(Protocol::UDP, SocketEntry::<F::Addr>::LEFT, 0);
        // If the map is full, the socket moves to the socket hooks when the setting changes.
        enter_first::<F>(&key, &mut entry);
    }
    0
}

/// Whether the socket's list entry says that the packet path serves the socket.
#[inline(never)]
fn is_left<F: Family>(cookie: &SocketCookie) -> bool {
    let mut buffer = EntryBuffer::uninit();
    find::<F>(&SocketKey::list(*cookie), &mut buffer)
        .is_some_and(|found| found.entry.flags & SocketEntry::<F::Addr>::LEFT != 0)
}

/// Finds the backend to which the socket already sends datagrams for this frontend. True if that
/// backend still serves and the frontend still belongs to the same service; `buffer` then has the
/// entry. If not, the entry that gives the backend's answers to this frontend is removed.
#[inline(always)]
fn recall<F: Family>(
    cookie: &SocketCookie,
    target: &Target<F::Addr>,
    buffer: &mut EntryBuffer<F::Addr>,
) -> bool {
    let forward = SocketKey::new(*cookie, SocketRole::FORWARD, target.address, target.port);
    let Some(found) = find::<F>(&forward, buffer) else {
        return false;
    };
    let current = found.entry.is_peers()
        || is_current::<F>(found.entry) && owner::<F>(target) == found.entry.service.0;
    if current {
        found.touch(helpers::now());
    }
    claim_answers::<F>(cookie, found.entry, current);
    current
}

/// Where two services share a backend on one socket, gives the backend's answers to the service
/// that the socket has sent to last. A backend that no longer serves (`current` is false) gives no
/// answers.
#[inline(never)]
fn claim_answers<F: Family>(cookie: &SocketCookie, forward: &SocketEntry<F::Addr>, current: bool) {
    let reverse = reverse_key(cookie, forward);
    let mut buffer = EntryBuffer::uninit();
    let held = find::<F>(&reverse, &mut buffer).is_some_and(|found| {
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

/// Enters the entries of a new backend in both directions and in the socket's list; `false` if the
/// map is full.
#[inline(never)]
fn associate<F: Family>(cookie: &SocketCookie, entry: &mut SocketEntry<F::Addr>) -> bool {
    if !enter::<F>(&reverse_key(cookie, entry), entry) {
        return false;
    }
    let forward = SocketKey::new(
        *cookie,
        SocketRole::FORWARD,
        entry.frontend,
        entry.frontend_port,
    );
    let mut buffer = EntryBuffer::uninit();
    if let Some(found) = find::<F>(&forward, &mut buffer) {
        // The entry's backend is gone. The entry keeps its position in the list.
        (entry.next, entry.next_port) = (found.entry.next, found.entry.next_port);
        return enter::<F>(&forward, entry);
    }
    let list = SocketKey::list(*cookie);
    if find::<F>(&list, &mut buffer).is_none() {
        buffer.write(SocketEntry::empty(
            Protocol::UDP,
            entry.flags,
            entry.last_used,
        ));
    }
    // SAFETY: found or written above.
    let first = unsafe { buffer.assume_init_mut() };
    // An entry that has idled out may still be the first of the list.
    if first.next != entry.frontend || first.next_port != entry.frontend_port {
        (entry.next, entry.next_port) = (first.next, first.next_port);
    }
    (first.next, first.next_port) = (entry.frontend, entry.frontend_port);
    enter::<F>(&forward, entry) && enter_first::<F>(&list, first)
}

/// Runs when a process receives a datagram and its sender's address.
#[inline(never)]
pub fn receive<A: AddressForm>(ctx: SockAddr) -> i32 {
    let (address, port) = (A::address(ctx), ctx.port());
    let cookie = ctx.cookie();
    let mut buffer = EntryBuffer::uninit();
    if is_known::<A::Family>(cookie) {
        // A datagram from the peer answers the connection, whatever service the socket has sent to
        // before.
        if A::is_peer(ctx, address, port) {
            return match find::<A::Family>(&SocketKey::connected(cookie), &mut buffer) {
                Some(found) if found.entry.is_backend(address, port) => {
                    restore::<A>(ctx, found.entry)
                }
                _ => PROCEED,
            };
        }
        let reverse = SocketKey::new(cookie, SocketRole::REVERSE, address, port);
        if let Some(found) = find::<A::Family>(&reverse, &mut buffer) {
            found.touch(helpers::now());
            return if found.entry.is_peers() {
                PROCEED
            } else {
                restore::<A>(ctx, found.entry)
            };
        }
    }
    if ports::bits(port) & (port_bits::FRONTEND | port_bits::NODE_PORT) != 0 && !ctx.is_connected()
    {
        let target = Target {
            address,
            port,
            protocol: Protocol::UDP,
        };
        if is_new_peer::<A::Family>(&cookie, &target, &mut buffer) {
            // SAFETY: filled in by the call. If the map is full, the answers are translated.
            associate::<A::Family>(&cookie, unsafe { buffer.assume_init_mut() });
        }
    }
    PROCEED
}

/// Whether a process of the node has sent to the socket from a frontend's address and port, which
/// is to be noted: the socket's datagrams to it are answers. KUBE: as conntrack does. `buffer` then
/// has the entry.
// VERIFIER: does not call `associate`, which needs the rest of the stack.
#[inline(never)]
fn is_new_peer<F: Family>(
    cookie: &SocketCookie,
    peer: &Target<F::Addr>,
    buffer: &mut EntryBuffer<F::Addr>,
) -> bool {
    let forward = SocketKey::new(*cookie, SocketRole::FORWARD, peer.address, peer.port);
    if !(F::is_loopback(peer.address) || node::is_node_address::<F>(&peer.address))
        || owner::<F>(peer) == 0
        || locate::<F>(&forward).is_some()
    {
        return false;
    }
    let flags = SocketEntry::<F::Addr>::PEER;
    let entry = buffer.write(SocketEntry::empty(peer.protocol, flags, helpers::now()));
    (entry.frontend, entry.frontend_port) = (peer.address, peer.port);
    (entry.backend_address, entry.backend_port) = (peer.address, peer.port);
    true
}

#[inline(always)]
fn restore<A: AddressForm>(ctx: SockAddr, entry: &SocketEntry<<A::Family as Ip>::Addr>) -> i32 {
    A::set_address(ctx, entry.frontend);
    ctx.set_port(entry.frontend_port);
    count::add(Counter::SocketRestored);
    PROCEED
}
