// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! What the packet path asks about the socket that a packet came from.

use proxy_common::{
    Counter, FlowKey, Protocol, Record, SocketCookie, SocketKey, SocketRole, ports,
};

use super::{
    connect::is_current,
    table::{self, Room, find},
};
use crate::{count, family::Family, filter, packet::Skb, service};

/// Whether the packet goes to a backend that its socket was given: it is not to be translated again, though
/// the backend's address and port be a frontend's as well.
#[inline(always)]
pub fn is_translated<F: Family>(skb: Skb, key: &FlowKey<F::Addr>) -> bool {
    let cookie = SocketCookie::new(skb.socket());
    // None is known by cookie 0, that of what came from elsewhere.
    table::is_known::<F>(cookie) && was_given::<F>(cookie, key)
}

#[inline(never)]
fn was_given<F: Family>(cookie: SocketCookie, key: &FlowKey<F::Addr>) -> bool {
    let mut room = Room::uninit();
    if let Some(connected) = find::<F>(&SocketKey::connected(cookie), &mut room)
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

/// Where a pod's connected UDP socket sends to a backend that has gone: the record of the service that
/// it asked for.
#[inline(always)]
pub fn lost_frontend<F: Family>(
    skb: Skb,
    key: &FlowKey<F::Addr>,
) -> Option<&'static Record<F::Addr>> {
    if key.protocol != Protocol::UDP || filter::bits(key.dst_port) & ports::STALE == 0 {
        return None;
    }
    let cookie = SocketCookie::new(skb.socket());
    let mut room = Room::uninit();
    let connected = find::<F>(&SocketKey::connected(cookie), &mut room)?;
    let entry = connected.entry;
    if !entry.is_backend(key.dst, key.dst_port) || is_current::<F>(entry) {
        return None;
    }
    let record = service::find::<F>(entry.frontend, entry.frontend_port, key.protocol)?;
    count::add(Counter::SocketRepointed);
    Some(record)
}
