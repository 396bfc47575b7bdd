// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Counters of each backend, and counters of refused packets for each service port.

use core::ptr::addr_of_mut;

use aya_ebpf::bindings::BPF_NOEXIST;
use proxy_common::{
    BackendId, FlowEntry, ServiceId,
    traffic::{RefusedKey, Traffic, event},
};

use crate::{
    helpers::increment,
    maps::{REFUSED, tables::Tables},
    packet::{Packet, Skb},
};

/// The direction of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Direction {
    /// The packet goes to the backend.
    In,
    /// The packet comes from the backend.
    Out,
}

/// Counts a packet of a flow for the flow's backend, with the packet's bytes from the IP header on.
#[inline(always)]
pub fn count<T: Tables>(
    skb: Skb,
    packet: &Packet<T::Addr>,
    entry: &FlowEntry<T::Addr>,
    direction: Direction,
) {
    let bytes = skb.len().wrapping_sub(packet.l3) as u64;
    count_bytes::<T>(entry.backend, entry.generation, bytes, direction);
}

/// Counts a packet to or from this backend; `bytes` are its bytes from the IP header on.
#[inline(always)]
pub fn count_bytes<T: Tables>(
    backend: BackendId,
    generation: u32,
    bytes: u64,
    direction: Direction,
) {
    let Some(element) = element::<T>(backend, generation) else {
        return;
    };
    // SAFETY: this CPU's own element; programs do not interrupt each other at tc and XDP.
    unsafe {
        match direction {
            Direction::In => {
                (*element).packets_in += 1;
                (*element).bytes_in += bytes;
            }
            Direction::Out => {
                (*element).packets_out += 1;
                (*element).bytes_out += bytes;
            }
        }
    }
}

by_family! {
    /// Counts events of a connection to a backend; `events` are bits of [`event`].
    pub fn note(backend, generation, events) = portolan_note_v4 portolan_note_v6 of note_in
}

#[inline(always)]
fn note_in<T: Tables>(backend: u32, generation: u32, events: u32) -> u32 {
    let Some(element) = element::<T>(BackendId(backend), generation) else {
        return 0;
    };
    // Atomically: a socket hook runs in process context, which a tc program may interrupt.
    // SAFETY: words of this CPU's own element.
    unsafe {
        if events & event::BEGUN != 0 {
            increment(addr_of_mut!((*element).connections));
        }
        if events & event::HELD != 0 {
            increment(addr_of_mut!((*element).affinity_hits));
        }
        if events & event::RETRANSMITTED != 0 {
            increment(addr_of_mut!((*element).retransmitted));
        }
        if events & event::UNANSWERED != 0 {
            increment(addr_of_mut!((*element).unanswered));
        }
    }
    0
}

/// Returns this CPU's counters for a connection to this backend; `None` if the connection is of no
/// service.
#[inline(always)]
fn element<T: Tables>(backend: BackendId, generation: u32) -> Option<*mut Traffic> {
    if backend == BackendId(0) {
        return None;
    }
    if let Some(own) = T::traffic().get_ptr_mut(backend.0) {
        // SAFETY: this CPU's own element.
        if unsafe { (*own).generation } == generation as u64 {
            return Some(own);
        }
    }
    T::traffic().get_ptr_mut(0)
}

/// Counts a refused packet or call of a service port; `counter` is the index of the counter that
/// says why. The returned 0 has no meaning.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn portolan_refuse(service: u32, counter: u32) -> u32 {
    let service = ServiceId(service);
    if !refuse_as(RefusedKey { service, counter }) {
        // The map is full. The agent has entered the keys of `ServiceId::NONE`.
        let service = ServiceId::NONE;
        refuse_as(RefusedKey { service, counter });
    }
    0
}

#[inline(always)]
fn refuse_as(key: RefusedKey) -> bool {
    for _ in 0..2 {
        if let Some(count) = REFUSED.get_ptr_mut(&key) {
            // SAFETY: this CPU's own word.
            unsafe { increment(count) };
            return true;
        }
        // Another CPU may have inserted the key first.
        let _ = REFUSED.insert(&key, &0, BPF_NOEXIST as u64);
    }
    false
}
