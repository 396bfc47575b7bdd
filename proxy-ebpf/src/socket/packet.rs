// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! What the packet path asks about the socket that sent a packet.

use proxy_common::{
    Addr, BackendId, Counter, FlowKey, Protocol, Record, ServiceFlags, SocketCookie, SocketKey,
    SocketRole, ports as port_bits,
};

use super::{
    connect::is_current,
    table::{self, EntryBuffer, find},
};
use crate::{
    count,
    family::Family,
    maps::ports,
    packet::Skb,
    service::{lookup, policy::block_of},
};

/// Whether the packet goes to the backend that a socket hook gave its socket. It must not be translated again, even if the
/// backend's address and port are also a frontend's.
#[inline(always)]
pub fn is_translated<F: Family>(skb: Skb, key: &FlowKey<F::Addr>) -> bool {
    let cookie = SocketCookie::new(skb.socket());
    // A packet from elsewhere has cookie 0, under which no socket is known.
    table::is_known::<F>(cookie) && was_given::<F>(cookie, key)
}

#[inline(never)]
fn was_given<F: Family>(cookie: SocketCookie, key: &FlowKey<F::Addr>) -> bool {
    let mut buffer = EntryBuffer::uninit();
    if let Some(connected) = find::<F>(&SocketKey::connected(cookie), &mut buffer)
        && connected.entry.is_backend(key.dst, key.dst_port)
    {
        return true;
    }
    key.protocol == Protocol::UDP
        && F::sockets()
            .get_ptr(&SocketKey::new(
                cookie,
                SocketRole::REVERSE,
                key.dst,
                key.dst_port,
            ))
            .is_some()
}

/// What a pod's socket has lost: the backend that a hook gave it, and the record of the service that it asked for.
pub struct Lost<A: Addr + 'static> {
    pub record: &'static Record<A>,
    pub backend: BackendId,
    /// The backend may be there, but does not answer.
    pub unanswered: bool,
}

/// For a packet of a pod's connected UDP socket to a backend that has gone, and for one of a TCP socket whose backend does not
/// answer: what the socket has lost. None where there is no other backend, or affinity holds the client.
#[inline(always)]
pub fn lost_frontend<F: Family>(
    skb: Skb,
    key: &FlowKey<F::Addr>,
    unanswered: bool,
) -> Option<Lost<F::Addr>> {
    let is_stale =
        key.protocol == Protocol::UDP && ports::bits(key.dst_port) & port_bits::STALE != 0;
    if !is_stale && !unanswered {
        return None;
    }
    let cookie = SocketCookie::new(skb.socket());
    let mut buffer = EntryBuffer::uninit();
    let connected = find::<F>(&SocketKey::connected(cookie), &mut buffer)?;
    let entry = connected.entry;
    if !entry.is_backend(key.dst, key.dst_port) || is_stale && is_current::<F>(entry) {
        return None;
    }
    let record = lookup::record_of::<F>(entry.frontend, entry.frontend_port, key.protocol)?;
    if is_stale {
        count::add(Counter::SocketRepointed);
    } else if record.flags.has(ServiceFlags::AFFINITY) || block_of(record, false).count() < 2 {
        return None;
    }
    Some(Lost {
        record,
        backend: entry.backend,
        unanswered,
    })
}
