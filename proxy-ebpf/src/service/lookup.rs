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

const NO_RECORD: u32 = 0;

/// Returns the record that a destination leads to; None if the destination belongs to no service.
#[inline(always)]
pub fn record_of<T: Tables>(
    address: T::Addr,
    port: Port,
    protocol: Protocol,
) -> Option<&'static Record<T::Addr>> {
    match record_id::<T>(address, (port.0 as u32) << 8 | protocol.0 as u32) {
        NO_RECORD => None,
        id => T::records().get(id),
    }
}

/// Whether an address of no service lies in a range that cluster IPs are allocated from, and
/// packets to such addresses are to be dropped. Called where no record was found.
#[inline(always)]
pub fn is_unallocated<T: Tables>(address: T::Addr, settings: &Settings) -> bool {
    T::services(settings).contains(address) && is_allocatable::<T>(address) != 0
}

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

/// Makes the subprograms `$v4` and `$v6` of the generic function `$body`, which takes an address,
/// and the generic function `$name`, which calls the subprogram of its family.
// VERIFIER: they are exported and take plain numbers, so that each is verified once and not on
// every path that leads to it.
macro_rules! by_address {
    ($(#[$doc:meta])* $vis:vis fn $name:ident(address $(, $word:ident)?) = $v4:ident $v6:ident of $body:ident) => {
        $(#[$doc])*
        #[inline(always)]
        $vis fn $name<T: Tables>(address: T::Addr $(, $word: u32)?) -> u32 {
            let [a, b, c, d] = T::words(address);
            if T::VERSION == 4 {
                $v4(d $(, $word)?)
            } else {
                $v6(a, b, c, d $(, $word)?)
            }
        }
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $v4(address: u32 $(, $word: u32)?) -> u32 {
            $body::<Ipv4>(V4::from_word(address) $(, $word)?)
        }
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $v6(a: u32, b: u32, c: u32, d: u32 $(, $word: u32)?) -> u32 {
            $body::<Ipv6>(V6::from_words([a, b, c, d]) $(, $word)?)
        }
    };
}

by_address! {
    /// Returns the id of the record that a destination leads to, or [`NO_RECORD`]. `port` has the
    /// port, as on the wire, above the protocol in the lowest byte.
    fn record_id(address, port) = portolan_find_record_v4 portolan_find_record_v6 of find_id
}

by_address! {
    /// Whether this address lies in a range that cluster IPs are allocated from, is not the node's
    /// own, and packets to unallocated cluster IPs are to be dropped: 1 or 0.
    fn is_allocatable(address)
        = portolan_is_allocatable_v4 portolan_is_allocatable_v6 of allocatable
}

by_address! {
    /// Whether the stack must handle packets from this address: 1 or 0.
    pub fn needs_stack(address) = portolan_needs_stack_v4 portolan_needs_stack_v6 of for_stack
}

#[inline(always)]
fn find_id<T: Tables>(address: T::Addr, port: u32) -> u32 {
    let (port, protocol) = (Port((port >> 8) as u16), Protocol(port as u8));
    lookup::find_record(&Maps::<T>(PhantomData), address, port, protocol)
        .map_or(NO_RECORD, |record| record.0)
}

#[inline(always)]
fn allocatable<T: Tables>(address: T::Addr) -> u32 {
    // Packets to an address of the node's own may be answered by a process of the node.
    let is_in_range =
        node::settings().is_some_and(|settings| any_contains(T::allocated(settings), address));
    (is_in_range && !node::is_node_address::<T>(&address)) as u32
}

/// A packet whose source is an address of the node never comes in by an interface.
#[inline(always)]
fn for_stack<T: Tables>(address: T::Addr) -> u32 {
    (!address.may_be_forwarded() || node::is_node_address::<T>(&address)) as u32
}
