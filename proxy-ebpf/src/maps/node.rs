// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! What the agent has stored about the node: its settings, its addresses, its interfaces.

use proxy_common::{
    LocalPod, Settings,
    carried::{Key, is_key},
    flow::ClientInterface,
    maps::{SEVERAL_SHARED, SHARED_INTERFACE_SLOTS, generation, interface, node_address},
    masquerade::Marks,
    xdp::Uplink,
};

use crate::{
    globals, helpers,
    maps::{
        DRAINED, HEADER_KEYS, INTERFACES, MACS, ROUTE_EPOCH, SETTINGS, SHARED_INTERFACES, UPLINKS,
        tables::Tables,
    },
};

/// Returns the node's settings; `None` only before the agent has written them.
#[inline(always)]
pub fn settings() -> Option<&'static Settings> {
    SETTINGS.get(0)
}

/// Returns the bit of the packet mark by which ingress asks egress to masquerade a packet.
#[inline(always)]
pub fn masquerade_mark() -> u32 {
    let mark = globals::MASQUERADE_MARK.load();
    match settings() {
        Some(settings) if settings.has(Settings::OTHERS_MASQUERADE) => Marks::beside_rules(mark),
        _ => mark,
    }
}

/// Whether others decide about all new flows and sockets: programs over other maps, which have
/// taken over and see packets after these programs, or another proxy.
#[inline(always)]
pub fn is_drained() -> bool {
    let word = generation_word();
    word & generation::DRAINED != 0 || generation::is_abandoned(word, helpers::now)
}

/// Whether these programs have served without an agent for as long as they may.
#[inline(always)]
pub fn is_abandoned() -> bool {
    generation::is_abandoned(generation_word(), helpers::now)
}

/// Whether programs over other maps see packets before these programs, so that packets may come
/// here translated.
#[inline(always)]
pub fn is_behind() -> bool {
    is_in_succession(generation::BEHIND)
}

/// Whether one of these bits of [`generation`] is set.
#[inline(always)]
pub fn is_in_succession(bits: u32) -> bool {
    generation_word() & bits != 0
}

#[inline(always)]
fn generation_word() -> u32 {
    DRAINED.get(0).copied().unwrap_or_default()
}

#[inline(always)]
pub fn serves_node_ports<T: Tables>(address: T::Addr) -> bool {
    // SAFETY: the value is one word, read at once.
    unsafe { T::node_addresses().get(address) }
        .is_some_and(|flags| flags & node_address::NODE_PORT != 0)
}

/// Fills in `pod`, how packets reach a pod of this node; `true` if the agent knows a pod with this
/// address.
#[inline(always)]
pub fn local_pod<T: Tables>(address: &T::Addr, pod: &mut LocalPod) -> bool {
    let Some(element) = T::pods().get_ptr(address) else {
        return false;
    };
    // SAFETY: the kernel keeps the element's memory; the copy is checked by its check word.
    unsafe { core::ptr::copy_nonoverlapping(element, pod, 1) };
    // The compiler must not read the element again: the copy that is checked is the one that is
    // used.
    helpers::reread(element.cast_mut());
    pod.is_whole(*address)
}

#[inline(always)]
pub fn is_node_address<T: Tables>(address: &T::Addr) -> bool {
    T::node_addresses().get_ptr(address).is_some()
}

/// Returns the bits of the agent's data on an interface, see [`interface`]; 0 for an interface
/// without our programs.
#[inline(always)]
pub fn interface(index: u32) -> u32 {
    interface::bits(interface_word(index))
}

/// Returns the agent's complete data on an interface, in one word; 0 for an interface without our
/// programs.
#[inline(always)]
pub fn interface_word(index: u32) -> u64 {
    // SAFETY: the value is one word, read at once.
    unsafe { INTERFACES.get(index) }.copied().unwrap_or(0)
}

/// Returns the interface that packets of the interface with this index have to the stack: for a
/// bridge's port, the bridge. `word` is the agent's data on the interface.
#[inline(always)]
pub fn through(word: u64, index: u32) -> u32 {
    match interface::bridge(word) {
        0 => index,
        bridge => bridge,
    }
}

/// Returns the key with this number by which tokens of outer headers are made; `None` without one.
#[inline(always)]
pub fn header_key(number: u32) -> Option<Key> {
    HEADER_KEYS.get(number).copied().filter(|key| is_key(*key))
}

#[inline(always)]
pub fn has_mac(mac: [u8; 6]) -> bool {
    MACS.get_ptr(interface::mac(mac)).is_some()
}

/// Returns the agent's data on an uplink; for an unknown uplink, a value that permits nothing.
#[inline(always)]
pub fn uplink(index: u32) -> Uplink {
    // SAFETY: the value is one word, read at once.
    unsafe { UPLINKS.get(index) }.copied().unwrap_or_default()
}

/// Returns the current epoch of routes and neighbours: a count of their changes.
#[inline(always)]
pub fn route_epoch() -> u32 {
    ROUTE_EPOCH.get(0).copied().unwrap_or_default()
}

/// Returns the interface with this index in the form of flow keys.
#[inline(always)]
pub fn client_interface(index: u32) -> ClientInterface {
    let shared = SHARED_INTERFACES.get(index % SHARED_INTERFACE_SLOTS);
    match shared.copied().unwrap_or(0) {
        shared if shared == index => ClientInterface::SHARED,
        SEVERAL_SHARED if portolan_is_shared(index) != 0 => ClientInterface::SHARED,
        _ => ClientInterface::of_pod(index),
    }
}

/// Whether many clients come in by the interface with this index: 1 or 0. Called only where several
/// shared interfaces fall into one slot.
// VERIFIER: exported, so that it is verified once and not on every path that leads here.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn portolan_is_shared(index: u32) -> u32 {
    (interface(index) & interface::SHARED != 0) as u32
}

/// Whether pods are behind the interface with this index: 1 or 0.
// VERIFIER: exported, so that it is verified once and not on every path that leads here.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn portolan_has_pods(index: u32) -> u32 {
    (interface(index) & interface::PODS != 0) as u32
}
