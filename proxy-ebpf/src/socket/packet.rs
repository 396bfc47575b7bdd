// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! What the packet path looks up about the socket that has sent a packet.

use proxy_common::{FlowKey, Protocol, SocketCookie, SocketKey, SocketRole};

use super::table::{self, EntryBuffer, find};
use crate::{family::Family, packet::Skb};

/// Whether the packet goes to the backend that a socket hook has chosen for the socket that sent
/// it. Such a packet must not be translated again, even if the backend's address and port are also
/// a frontend's.
#[inline(always)]
pub fn is_translated<F: Family>(skb: Skb, key: &FlowKey<F::Addr>) -> bool {
    let cookie = SocketCookie::new(skb.socket());
    // A packet from elsewhere has cookie 0, under which the maps have no socket.
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
    let reverse = SocketKey::new(cookie, SocketRole::REVERSE, key.dst, key.dst_port);
    key.protocol == Protocol::UDP && F::sockets().get_ptr(&reverse).is_some()
}
