// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Fragments: a later fragment gets the ports of its datagram's first fragment, which are stored
//! under the datagram's identification, for some seconds.

use proxy_common::{Counter, service::FragmentKey};

use crate::{
    count::Outcome,
    family::Family,
    helpers,
    maps::node,
    packet::{Packet, headers::Ports},
    service::lookup,
};

/// Returns the key of the packet's datagram, stored so many units of time ago.
#[inline(always)]
fn key_of<F: Family>(packet: &Packet<F::Addr>, ago: u32) -> FragmentKey<F::Addr> {
    let unit = FragmentKey::<F::Addr>::unit(helpers::now()).wrapping_sub(ago);
    FragmentKey {
        src: packet.key.src,
        dst: packet.key.dst,
        id: FragmentKey::<F::Addr>::id_at(packet.fragment_id, unit),
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
    for ago in 0..2 {
        let _ = F::fragments().remove(key_of::<F>(packet, ago));
    }
    0
}

/// Stores the ports of a first fragment that is about to be translated. The returned 0 has no
/// meaning.
#[inline(never)]
pub fn remember<F: Family>(packet: &Packet<F::Addr>) -> u32 {
    let ports = packet.ports().word();
    // A full LRU map frees an element by itself.
    let _ = F::fragments().insert(key_of::<F>(packet, 0), ports, 0);
    0
}

/// Returns the ports of the packet's datagram as one word, if they were stored so many units of
/// time ago, else [`NOT_STORED`].
// VERIFIER: a subprogram: the caller's frame has no space for a key.
#[inline(never)]
fn stored<F: Family>(packet: &Packet<F::Addr>, ago: u32) -> u64 {
    // SAFETY: the value is one word, read at once.
    unsafe { F::fragments().get(key_of::<F>(packet, ago)) }.map_or(NOT_STORED, |word| *word as u64)
}

const NOT_STORED: u64 = u64::MAX;

/// Gives a later fragment the ports of its datagram's first fragment; `false` if that was not
/// translated on this node.
#[inline(always)]
pub fn recall<F: Family>(packet: &mut Packet<F::Addr>) -> bool {
    let mut word = stored::<F>(packet, 0);
    if word == NOT_STORED {
        word = stored::<F>(packet, 1);
    }
    if word == NOT_STORED {
        return false;
    }
    let ports = Ports::from_word(word as u32);
    packet.key.set_ports(ports.src, ports.dst);
    true
}

/// Decides about a later fragment whose datagram's first fragment is not known: a fragment to a
/// cluster IP cannot be delivered, unless others deliver it.
#[inline(never)]
pub fn without_first<F: Family>(packet: &Packet<F::Addr>) -> Outcome {
    if lookup::is_cluster_ip::<F>(packet.key.dst) && !node::is_drained() {
        Outcome::drop(Counter::DroppedFragment)
    } else {
        Outcome::pass(Counter::Untouched)
    }
}
