// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks at compile time that types shared by the kernel programs and the agent have no hidden
//! padding.

use crate::{
    AffinityEntry, AffinityKey, Backend, FlowEntry, FlowKey, FrontendKey, LocalPod, PodAffinityKey,
    Prefix, Record, Settings, SocketBucket, SocketEntry, SocketKey, V4, V6,
    flow::{ExpiryRequest, Spare, places::FlowSlot},
    masquerade::{MasqueradeSources, SOURCES, Source},
    ranges::Ranges,
    service::{FragmentKey, SourceRangeKey},
    trace::{
        Event, Filter, HEAD, PacketEvent, Tuple,
        filter::{CLIENTS, SERVICES},
        follow::{Config, End, Followed, Offsets, SOURCES as FOLLOWED_SOURCES, Sighting},
        rate::Rate,
    },
    traffic::{RefusedKey, Traffic},
};

/// Asserts at compile time that a type is exactly as long as its fields.
macro_rules! assert_no_padding {
    ($type:ty = $($field:ty)*) => {
        const _: () = assert!(size_of::<$type>() == 0 $(+ size_of::<$field>())*, "padding in a shared type");
    };
}

assert_no_padding!(FrontendKey<V4> = V4 u16 u8 u8);
assert_no_padding!(FrontendKey<V6> = V6 u16 u8 u8);
assert_no_padding!(FlowKey<V4> = V4 V4 u16 u16 u8 [u8; 3]);
assert_no_padding!(FlowKey<V6> = V6 V6 u16 u16 u8 [u8; 3]);
assert_no_padding!(FlowEntry<V4> = u32 u8 u8 u16 V4 V4 u16 u16 u32 u32 u32 u32 u32 u64 u32 u32 u32 u32 Spare);
assert_no_padding!(FlowEntry<V6> = u32 u8 u8 u16 V6 V6 u16 u16 u32 u32 u32 u32 u32 u64 u32 u32 u32 u32 Spare);
assert_no_padding!(FlowSlot<V4> = FlowKey<V4> FlowEntry<V4>);
assert_no_padding!(FlowSlot<V6> = FlowKey<V6> FlowEntry<V6>);
assert_no_padding!(Record<V4> = u64 u64 u32 u32 u32 FrontendKey<V4> u32);
assert_no_padding!(Record<V6> = u64 u64 u32 u32 u32 FrontendKey<V6>);
assert_no_padding!(Backend<V4> = V4 u16 u16 u32 u32);
assert_no_padding!(Backend<V6> = V6 u16 u16 u32 u32);
assert_no_padding!(AffinityKey<V4> = u32 V4);
assert_no_padding!(AffinityKey<V6> = u32 V6);
assert_no_padding!(AffinityEntry = u32 u32 u32 u32 u64);
assert_no_padding!(PodAffinityKey = u32 u32 u64);
assert_no_padding!(SocketKey<V4> = u32 u32 V4 u16 u8 u8);
assert_no_padding!(SocketKey<V6> = u32 u32 V6 u16 u8 u8);
assert_no_padding!(SocketEntry<V4> = u32 u32 u32 u32 V4 V4 V4 u16 u16 u16 u8 u8 u32 u64);
assert_no_padding!(SocketEntry<V6> = u32 u32 u32 u32 V6 V6 V6 u16 u16 u16 u8 u8 u64);
assert_no_padding!(SocketBucket<V4> = u64 u32 u32 SocketEntry<V4>);
assert_no_padding!(SocketBucket<V6> = u64 u32 u32 SocketEntry<V6>);
assert_no_padding!(FragmentKey<V4> = V4 V4 u32 u8 [u8; 3]);
assert_no_padding!(FragmentKey<V6> = V6 V6 u32 u8 [u8; 3]);
assert_no_padding!(SourceRangeKey<V4> = u32 V4);
assert_no_padding!(SourceRangeKey<V6> = u32 V6);
assert_no_padding!(LocalPod = u32 u32 u32 [u8; 6] [u8; 6]);
assert_no_padding!(ExpiryRequest = u64 [u32; 6] u32 u32);
assert_no_padding!(Traffic = u64 u64 u64 u64 u64 u64 u64 u64 u64);
assert_no_padding!(RefusedKey = u32 u32);
assert_no_padding!(Source<V4> = V4 Prefix<V4>);
assert_no_padding!(Source<V6> = V6 Prefix<V6>);
assert_no_padding!(MasqueradeSources = [Source<V4>; SOURCES] [Source<V6>; SOURCES]);
assert_no_padding!(Ranges<V4> = [Prefix<V4>; 4] u32);
assert_no_padding!(Ranges<V6> = [Prefix<V6>; 4] u32);
assert_no_padding!(Settings = u32 [u16; 4] V4 V6 [Prefix<V4>; 4] [Prefix<V6>; 4] [Prefix<V4>; 4] [Prefix<V6>; 4] Ranges<V4> Ranges<V6> Ranges<V4> Ranges<V6> u64);
assert_no_padding!(Tuple = V6 V6 u16 u16 u8 u8 u8 u8);
assert_no_padding!(Event = u64 u64 Tuple Tuple u32 u32 u32 u32 u32 i32 u32 u32 u16 u8 [u8; 5] u64 [u8; 16]);
assert_no_padding!(PacketEvent = Event [u8; HEAD]);
assert_no_padding!(Config = Offsets u32);
assert_no_padding!(Offsets = [u32; 11]);
assert_no_padding!(End = V6 u16 u8 u8);
assert_no_padding!(Followed = [End; FOLLOWED_SOURCES] u64);
assert_no_padding!(Sighting = u64 u64 Tuple u32 u32 u32 u32 u32 u8 u8 [u8; 6] u32);
assert_no_padding!(Rate = u64 u64 u64);
assert_no_padding!(Filter = u64 [V6; CLIENTS] [u32; SERVICES] u32 u16 u8 u8);
