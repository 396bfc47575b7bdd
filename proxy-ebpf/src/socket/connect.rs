// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The connect and getpeername hooks.

use proxy_common::{Counter, Protocol, SocketCookie, SocketEntry, SocketKey};

use super::{
    Caller, ECONNREFUSED, FAIL, PROCEED, SockAddr, SocketVerdict, Target,
    choose::{choose, owner},
    fail_with, may_be_backend, may_be_frontend, proceed,
    sock_addr::{AddressForm, AsMapped},
    table::{self, EntryBuffer, find},
};
use crate::{
    count,
    family::Family,
    globals, helpers,
    maps::node,
    packet::{Ip, Skb},
};

/// Runs when an IPv6 socket connects to an IPv4-mapped address.
// VERIFIER: for the other families, the code is part of the entry point: before Linux 6.9, a frame
// of its own takes 32 bytes of the stack at least, and the calls for IPv6 need all 512.
#[inline(never)]
pub fn connect_mapped(ctx: SockAddr) -> i32 {
    connect::<AsMapped>(ctx)
}

/// Runs when a process connects a socket.
#[inline(always)]
pub fn connect<A: AddressForm>(ctx: SockAddr) -> i32 {
    let protocol = ctx.protocol();
    if protocol != Protocol::TCP && protocol != Protocol::UDP {
        return proceed(Counter::SocketUntouched);
    }
    let Some(settings) = node::settings() else {
        return proceed(Counter::SocketUntouched);
    };
    let target = Target {
        address: A::address(ctx),
        port: ctx.port(),
        protocol,
    };
    let key = SocketKey::connected(ctx.cookie());
    if !may_be_frontend::<A::Family>(target.address, target.port, settings) {
        return leave_untouched::<A>(ctx, &key);
    }
    let caller = Caller::of(ctx, settings);
    // No hook sees what a connected socket sends, so the socket could not follow its service to
    // another backend. The packet path serves a pod's connected socket.
    if !caller.is_served() || protocol == Protocol::UDP && !caller.is_node() {
        return leave_untouched::<A>(ctx, &key);
    }
    let mut buffer = EntryBuffer::uninit();
    let verdict = if protocol == Protocol::UDP && keep::<A::Family>(&key, &target, &mut buffer) {
        SocketVerdict::new(SocketVerdict::TRANSLATE, Counter::SocketTranslated)
    } else {
        choose::<A::Family>(&caller, &target, None, &mut buffer)
    };
    match verdict.kind() {
        SocketVerdict::TRANSLATE => {
            // SAFETY: kept or chosen above.
            let entry = unsafe { buffer.assume_init_mut() };
            undrop::<A::Family>(ctx, &key);
            if !table::enter_first::<A::Family>(&key, entry) {
                count::add(Counter::SocketTableFull);
                // The packet path serves pods, but not the node's own processes.
                if !caller.is_node() {
                    return PROCEED;
                }
            }
            verdict.note::<A::Family>(entry);
            A::set_address(ctx, entry.backend_address);
            ctx.set_port(entry.backend_port);
        }
        SocketVerdict::REFUSE => {
            verdict.count();
            return fail_with(ECONNREFUSED);
        }
        SocketVerdict::DROP => {
            undrop::<A::Family>(ctx, &key);
            if !drop_silently::<A::Family>(ctx, &key, &target) {
                verdict.count();
                return FAIL;
            }
        }
        _ => return leave_untouched::<A>(ctx, &key),
    }
    verdict.count();
    PROCEED
}

/// Lets the call proceed without translation, and removes what an earlier call has left for the
/// socket.
#[inline(always)]
fn leave_untouched<A: AddressForm>(ctx: SockAddr, key: &SocketKey<<A::Family as Ip>::Addr>) -> i32 {
    undrop::<A::Family>(ctx, key);
    table::remove_first::<A::Family>(key);
    proceed(Counter::SocketUntouched)
}

/// Whether a UDP socket that connects again to the same frontend of the same service keeps its
/// backend; `buffer` then has its entry. KUBE: conntrack sees one flow.
#[inline(never)]
fn keep<F: Family>(
    key: &SocketKey<F::Addr>,
    target: &Target<F::Addr>,
    buffer: &mut EntryBuffer<F::Addr>,
) -> bool {
    let kept = !node::is_drained()
        && find::<F>(key, buffer).is_some_and(|found| {
            // A dropped socket's entry names no backend.
            found.entry.is_frontend(target.address, target.port)
                && found.entry.flags & SocketEntry::<F::Addr>::DROPPED == 0
                && is_current::<F>(found.entry)
                && owner::<F>(target) == found.entry.service.0
        });
    if kept {
        // SAFETY: found above.
        unsafe { buffer.assume_init_mut() }.last_used = helpers::now();
    }
    kept
}

/// Whether the backend of a socket's entry still serves.
#[inline(always)]
pub(super) fn is_current<F: Family>(entry: &SocketEntry<F::Addr>) -> bool {
    F::serves(entry.backend, entry.service, entry.generation)
}

/// Makes egress drop what a node's socket sends: by the packet mark egress looks for the socket's
/// entry, and the entry says to drop. `false` if the socket maps are full.
#[inline(never)]
fn drop_silently<F: Family>(
    ctx: SockAddr,
    key: &SocketKey<F::Addr>,
    target: &Target<F::Addr>,
) -> bool {
    let (mark, drop) = (ctx.mark(), globals::DROP_MARK.load());
    let mut flags = SocketEntry::<F::Addr>::HOST | SocketEntry::<F::Addr>::DROPPED;
    if mark & drop != 0 {
        flags |= SocketEntry::<F::Addr>::OWN_MARK;
    }
    let mut entry = SocketEntry::empty(target.protocol, flags, helpers::now());
    (entry.frontend, entry.frontend_port) = (target.address, target.port);
    if !table::enter_first::<F>(key, &mut entry) {
        count::add(Counter::SocketTableFull);
        return false;
    }
    ctx.set_mark(mark | drop);
    true
}

/// Removes the drop mark from a socket that connects again, unless its process has set the mark
/// itself. The caller replaces or removes the socket's entry.
#[inline(always)]
fn undrop<F: Family>(ctx: SockAddr, key: &SocketKey<F::Addr>) {
    let (mark, drop) = (ctx.mark(), globals::DROP_MARK.load());
    let by_us = u32::from(SocketEntry::<F::Addr>::DROPPED);
    if mark & drop != 0 && drop_flags::<F>(key) == by_us {
        ctx.set_mark(mark & !drop);
    }
}

/// Returns the flags DROPPED and OWN_MARK of a connected socket's entry; 0 if there is no entry.
#[inline(never)]
fn drop_flags<F: Family>(key: &SocketKey<F::Addr>) -> u32 {
    let mask = SocketEntry::<F::Addr>::DROPPED | SocketEntry::<F::Addr>::OWN_MARK;
    let mut buffer = EntryBuffer::uninit();
    find::<F>(key, &mut buffer).map_or(0, |found| u32::from(found.entry.flags & mask))
}

/// Whether the policy drops a packet of the node's own socket. Called only for packets with the
/// drop mark.
#[inline(always)]
pub fn is_dropped<F: Family>(skb: Skb) -> bool {
    let cookie = SocketCookie::new(skb.socket());
    table::is_known::<F>(cookie) && drop_flags::<F>(&SocketKey::connected(cookie)) != 0
}

/// Runs when a process asks for the peer of a socket that it has connected or accepted.
#[inline(never)]
pub fn peer_name<A: AddressForm>(ctx: SockAddr) -> i32 {
    let (address, port) = (A::address(ctx), ctx.port());
    if !may_be_backend(port) {
        return PROCEED;
    }
    let key = SocketKey::connected(ctx.cookie());
    let mut buffer = EntryBuffer::uninit();
    if let Some(found) = find::<A::Family>(&key, &mut buffer)
        && found.entry.is_backend(address, port)
    {
        A::set_address(ctx, found.entry.frontend);
        ctx.set_port(found.entry.frontend_port);
        count::add(Counter::SocketRestored);
    }
    PROCEED
}
