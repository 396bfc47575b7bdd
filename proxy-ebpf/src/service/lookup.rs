// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Finds the record of the service that a destination belongs to. The order of the look-ups is in
//! `proxy_common::lookup`.

use core::marker::PhantomData;

use proxy_common::{
    Addr, FrontendKey, Port, Protocol, Record, RecordId, Settings, V4, V6,
    lookup::{self, FrontendMaps},
    settings::any_contains,
};

use crate::{
    maps::{node, ports, tables::Tables},
    packet::{Ipv4, Ipv6},
};

/// Look-ups for an IP family, each of which the verifier checks as a program of its own.
pub trait Lookup: Tables {
    /// Returns the id of the record that a destination leads to, or [`NO_RECORD`].
    fn record_id(address: Self::Addr, port: Port, protocol: Protocol) -> u32;
    /// Whether this address lies in a range that cluster IPs are allocated from, is not the node's
    /// own, and packets to unallocated cluster IPs are to be dropped.
    fn is_allocatable(address: Self::Addr) -> bool;
    /// Whether packets from this address need the stack: 1 or 0.
    fn needs_stack(address: Self::Addr) -> u32;
}

const NO_RECORD: u32 = 0;

/// Returns the record that a destination leads to; None if the destination belongs to no service.
#[inline(always)]
pub fn record_of<L: Lookup>(
    address: L::Addr,
    port: Port,
    protocol: Protocol,
) -> Option<&'static Record<L::Addr>> {
    match L::record_id(address, port, protocol) {
        NO_RECORD => None,
        id => L::records().get(id),
    }
}

/// Whether an address of no service lies in a range that cluster IPs are allocated from, and
/// packets to such addresses are to be dropped. Called where no record was found.
#[inline(always)]
pub fn is_unallocated<L: Lookup>(address: L::Addr, settings: &Settings) -> bool {
    L::services(settings).contains(address) && L::is_allocatable(address)
}

/// Whether the address is a cluster IP.
#[inline(always)]
pub fn is_cluster_ip<T: Tables>(address: T::Addr) -> bool {
    lookup::guard_of(&Maps::<T>(PhantomData), address).is_some()
}

/// Whether the node answers echo requests to the address: it is a cluster IP, or the maps have a
/// frontend for echo requests to it.
#[inline(always)]
pub fn answers_echo<T: Tables>(address: T::Addr) -> bool {
    is_cluster_ip::<T>(address)
        || Maps::<T>(PhantomData)
            .record(&FrontendKey::echo(address))
            .is_some()
}

/// The kernel programs' maps, for the look-ups in `proxy_common::lookup`.
struct Maps<T>(PhantomData<T>);

impl<T: Tables> FrontendMaps<T::Addr> for Maps<T> {
    #[inline(always)]
    fn bits(&self, port: Port) -> u64 {
        ports::bits(port)
    }
    /// The kernel may reuse a hash element while it is read, so the record carries its key. If the
    /// keys differ, a second look-up finds the finished change.
    #[inline(always)]
    fn record(&self, key: &FrontendKey<T::Addr>) -> Option<RecordId> {
        for _ in 0..2 {
            // SAFETY: the value is one word, read at once.
            let id = *unsafe { T::frontends().get(key) }?;
            let record = T::records().get(id.0)?;
            if record.key == *key {
                return Some(id);
            }
        }
        None
    }
    #[inline(always)]
    fn serves_node_ports(&self, address: T::Addr) -> bool {
        node::serves_node_ports::<T>(address)
    }
    #[inline(always)]
    fn in_service_range(&self, address: T::Addr) -> bool {
        node::settings().is_some_and(|settings| T::services(settings).contains(address))
    }
}

#[inline(always)]
fn find_id<T: Tables>(address: T::Addr, port: Port, protocol: Protocol) -> u32 {
    lookup::find_record(&Maps::<T>(PhantomData), address, port, protocol)
        .map_or(NO_RECORD, |record| record.0)
}

/// Returns 1 if the stack must handle packets from this address, else 0. A packet whose source is
/// an address of the node never comes in by an interface.
#[inline(always)]
fn for_stack<T: Tables>(address: T::Addr) -> u32 {
    (!address.may_be_forwarded() || node::is_node_address::<T>(&address)) as u32
}

#[inline(always)]
fn allocatable<T: Tables>(address: T::Addr) -> u32 {
    // Packets to an address of the node's own may be answered by a process of the node.
    let is_in_range =
        node::settings().is_some_and(|settings| any_contains(T::allocated(settings), address));
    (is_in_range && !node::is_node_address::<T>(&address)) as u32
}

impl Lookup for Ipv4 {
    #[inline(always)]
    fn record_id(address: V4, port: Port, protocol: Protocol) -> u32 {
        portolan_find_record_v4(address.word(), port.0 as u32, protocol.0 as u32)
    }
    #[inline(always)]
    fn is_allocatable(address: V4) -> bool {
        portolan_is_allocatable_v4(address.word()) != 0
    }
    #[inline(always)]
    fn needs_stack(address: V4) -> u32 {
        portolan_needs_stack_v4(address.word())
    }
}

impl Lookup for Ipv6 {
    #[inline(always)]
    fn record_id(address: V6, port: Port, protocol: Protocol) -> u32 {
        let [a, b, c, d] = address.words();
        portolan_find_record_v6(a, b, c, d, (port.0 as u32) << 8 | protocol.0 as u32)
    }
    #[inline(always)]
    fn is_allocatable(address: V6) -> bool {
        let [a, b, c, d] = address.words();
        portolan_is_allocatable_v6(a, b, c, d) != 0
    }
    #[inline(always)]
    fn needs_stack(address: V6) -> u32 {
        let [a, b, c, d] = address.words();
        portolan_needs_stack_v6(a, b, c, d)
    }
}

// VERIFIER: the following functions are exported and take plain numbers, so that each is verified
// once and not on every path that leads to it.

/// See [`Lookup::record_id`]; the address as one word and the port, both as on the wire.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn portolan_find_record_v4(address: u32, port: u32, protocol: u32) -> u32 {
    let (port, protocol) = (Port(port as u16), Protocol(protocol as u8));
    find_id::<Ipv4>(V4::from_word(address), port, protocol)
}

/// See [`Lookup::record_id`]; the address as four words, as on the wire. `port` has the port, as on
/// the wire, above the protocol in the lowest byte.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn portolan_find_record_v6(a: u32, b: u32, c: u32, d: u32, port: u32) -> u32 {
    let (port, protocol) = (Port((port >> 8) as u16), Protocol(port as u8));
    find_id::<Ipv6>(V6::from_words([a, b, c, d]), port, protocol)
}

/// See [`Lookup::is_allocatable`]; the address as one word, as on the wire. 1 or 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn portolan_is_allocatable_v4(address: u32) -> u32 {
    allocatable::<Ipv4>(V4::from_word(address))
}

/// See [`Lookup::is_allocatable`]; the address as four words, as on the wire. 1 or 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn portolan_is_allocatable_v6(a: u32, b: u32, c: u32, d: u32) -> u32 {
    allocatable::<Ipv6>(V6::from_words([a, b, c, d]))
}

/// See [`Lookup::needs_stack`]; the address as one word, as on the wire.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn portolan_needs_stack_v4(address: u32) -> u32 {
    for_stack::<Ipv4>(V4::from_word(address))
}

/// See [`Lookup::needs_stack`]; the address as four words, as on the wire.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn portolan_needs_stack_v6(a: u32, b: u32, c: u32, d: u32) -> u32 {
    for_stack::<Ipv6>(V6::from_words([a, b, c, d]))
}
