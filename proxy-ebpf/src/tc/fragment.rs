// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Fragments: a later fragment gets the ports of its datagram's first fragment, which are stored
//! under the datagram's identification.

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

/// Removes the ports stored for a first fragment's identification: the identification now belongs
/// to another datagram, which may concern no service. Identifications are reused every 65 536
/// datagrams between two ends. The returned 0 has no meaning.
#[inline(never)]
pub fn forget<F: Family>(packet: &Packet<F::Addr>) -> u32 {
    // Mostly no ports are stored.
    let _ = F::fragments().remove(key_of::<F>(packet));
    0
}

/// Stores the ports of a first fragment that is about to be translated. The returned 0 has no
/// meaning.
#[inline(never)]
pub fn remember<F: Family>(packet: &Packet<F::Addr>) -> u32 {
    let ports = packet.ports().word();
    // A full LRU map frees an element by itself.
    let _ = F::fragments().insert(key_of::<F>(packet), ports, 0);
    0
}

/// Gives a later fragment the ports of its datagram's first fragment; `false` if that was not
/// translated on this node.
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

/// Decides about a later fragment whose datagram's first fragment is not known: a fragment to a
/// cluster IP cannot be delivered.
#[inline(never)]
pub fn without_first<F: Family>(packet: &Packet<F::Addr>) -> Outcome {
    if lookup::is_cluster_ip::<F>(packet.key.dst) {
        Outcome::drop(Counter::DroppedFragment)
    } else {
        Outcome::pass(Counter::Untouched)
    }
}
