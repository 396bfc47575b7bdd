// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Fragments follow their first one: its ports are stored under the datagram's identification.

use proxy_common::{Counter, service::FragmentKey};

use crate::{
    count::Outcome,
    family::Family,
    globals,
    packet::{Packet, headers::Ports},
    service::lookup,
};

#[inline(always)]
fn key_of<F: Family>(packet: &Packet<F::Addr>) -> FragmentKey<F::Addr> {
    FragmentKey {
        src: packet.key.src,
        dst: packet.key.dst,
        id: packet.fragment_id,
        protocol: packet.key.protocol,
        interface: packet.fragment_interface.bytes(),
    }
}

/// Ends what the identification of a first fragment has meant: it is another datagram's, which may be no service's. Identifications come
/// again every 65 536 datagrams between two ends.
#[inline(never)]
pub fn forget<F: Family>(packet: &Packet<F::Addr>) -> u32 {
    // Mostly there is none.
    let _ = F::fragments().remove(key_of::<F>(packet));
    0
}

/// Stores the ports of a first fragment that is about to be translated.
#[inline(never)]
pub fn remember<F: Family>(packet: &Packet<F::Addr>) -> u32 {
    let ports = packet.ports().word();
    // A full LRU map makes room by itself.
    let _ = F::fragments().insert(key_of::<F>(packet), ports, 0);
    0
}

/// Gives a later fragment its first one's ports; `false` if no first one was translated here.
#[inline(always)]
pub fn recall<F: Family>(packet: &mut Packet<F::Addr>) -> bool {
    // SAFETY: the value is one word, read at once.
    let Some(word) = (unsafe { F::fragments().get(key_of::<F>(packet)) }) else {
        return false;
    };
    let ports = Ports::from_word(*word);
    packet.key.set_ports(ports.src, ports.dst);
    true
}

/// A later fragment whose first one is not known: one to a cluster IP cannot be delivered.
#[inline(never)]
pub fn without_first<F: Family>(packet: &Packet<F::Addr>) -> Outcome {
    // A shadow remembers no first one.
    if !globals::is_shadow() && lookup::is_cluster_ip::<F>(packet.key.dst) {
        Outcome::drop(Counter::DroppedFragment)
    } else {
        Outcome::pass(Counter::Untouched)
    }
}
