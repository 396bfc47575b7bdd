// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The types that are passed to the kernel and back as bytes. Used by all of `datapath`.

use proxy_common::{
    AffinityEntry, AffinityKey, Backend, FlowEntry, FlowKey, FrontendKey, LocalPod, PodAffinityKey,
    Record, Settings, SocketBucket, SocketEntry, SocketKey, V4, V6,
    flow::{ExpiryRequest, places::FlowSlot},
    masquerade::MasqueradeSources,
    service::{FragmentKey, ServiceName, SourceRangeKey},
    trace::{
        Event, Filter,
        follow::{Config, End, Followed, Sighting},
        rate::Rate,
    },
    traffic::{RefusedKey, Traffic},
};

/// Types without padding for which every bit pattern is valid.
///
/// # Safety
/// Implementors must be `repr(C)` or `repr(transparent)`, without padding, and valid for all bytes.
pub unsafe trait Plain: Copy + Send + Sync + 'static {
    /// Returns the all-zero value.
    fn zeroed() -> Self {
        // SAFETY: every bit pattern is valid for a plain type.
        unsafe { std::mem::zeroed() }
    }
    /// Returns the value as bytes.
    fn bytes(&self) -> &[u8] {
        // SAFETY: a plain type has no padding, so every byte is initialised; the lifetime is
        // self's.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
    /// Returns the value that these bytes represent; None if there are too few.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        // SAFETY: there are enough bytes, every bit pattern is valid, and the read needs no
        // alignment.
        (bytes.len() >= size_of::<Self>())
            .then(|| unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}

macro_rules! plain {
    ($($(#[$family:ident])? $type:ty,)*) => {
        $(
            // SAFETY: repr(C) or a primitive, without padding (proxy_common::layout asserts it for
            // both families), valid for every bit pattern.
            unsafe impl$(<$family: proxy_common::Addr + Plain>)? Plain for $type {}
        )*
    };
}

plain! {
    u8, u16, u32, u64,
    V4, V6,
    #[A] FrontendKey<A>,
    #[A] FlowKey<A>,
    #[A] FlowEntry<A>,
    #[A] FlowSlot<A>,
    #[A] Record<A>,
    #[A] Backend<A>,
    #[A] AffinityKey<A>,
    AffinityEntry,
    PodAffinityKey,
    #[A] SocketKey<A>,
    #[A] SocketEntry<A>,
    #[A] SocketBucket<A>,
    #[A] FragmentKey<A>,
    #[A] SourceRangeKey<A>,
    #[A] LpmKey<A>,
    MasqueradeSources,
    LocalPod,
    ExpiryRequest,
    Settings,
    ServiceName,
    RefusedKey,
    Traffic,
    Event,
    Filter,
    Rate,
    Config,
    End,
    Followed,
    Sighting,
}

// SAFETY: an array of plain values has no padding of its own.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Key of a `sources` map, which is a trie. Its prefix length also counts the 32 bits of the
/// service id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct LpmKey<A> {
    pub prefix: u32,
    pub data: SourceRangeKey<A>,
}

const _: () = assert!(size_of::<LpmKey<V4>>() == 4 + size_of::<SourceRangeKey<V4>>());
const _: () = assert!(size_of::<LpmKey<V6>>() == 4 + size_of::<SourceRangeKey<V6>>());
