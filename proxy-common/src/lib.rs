// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel programs and the agent share: map layouts, names, limits, and every decision
//! about a packet. Nothing in this crate touches a map or a packet; both sides compile the same
//! functions.
//!
//! Byte order: addresses and ports are as on the wire ([`Addr`], [`Port`]); all other numbers are
//! native. Times are nanoseconds of `CLOCK_MONOTONIC` (the kernel's coarse reading), durations
//! whole seconds.
#![cfg_attr(not(any(test, feature = "user")), no_std)]

pub mod addr;
pub mod affinity;
pub mod backend;
pub mod carried;
pub mod check;
pub mod checksum;
pub mod counter;
pub mod crc32c;
pub mod filter;
pub mod flow;
pub mod layout;
pub mod lookup;
pub mod maps;
pub mod masquerade;
pub mod origin;
pub mod pod;
pub mod ports;
pub mod ranges;
pub mod select;
pub mod service;
pub mod settings;
pub mod socket;
pub mod trace;
pub mod traffic;
pub mod verdict;
pub mod xdp;

pub use addr::{Addr, Port, Prefix, Protocol, V4, V6};
pub use affinity::{AffinityEntry, AffinityKey, PodAffinityKey};
pub use backend::{Backend, BackendId, EndpointSet};
pub use counter::Counter;
pub use filter::FilterVerdict;
pub use flow::{FlowEntry, FlowKey, FlowKind, FlowState};
pub use origin::{Origin, origin_of_packet, origin_of_socket};
pub use pod::LocalPod;
pub use service::{Block, FrontendKey, FrontendKind, Record, RecordId, ServiceFlags, ServiceId};
pub use settings::Settings;
pub use socket::{SocketBucket, SocketCookie, SocketEntry, SocketKey, SocketRole};
pub use verdict::{Verdict, decide};

macro_rules! debug_by_name {
    ($($type:ty),*) => {
        $(impl core::fmt::Debug for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.name())
            }
        })*
    };
}
debug_by_name!(FlowKind, FlowState, Protocol, SocketRole);
