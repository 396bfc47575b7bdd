// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The system calls that aya has not: batches, memory-mapped arrays, links by interface index, test runs.
//! The only unsafe code of this crate; everything it exports is safe to call. Used by all of `datapath`.
#![expect(
    unsafe_code,
    reason = "bpf(2) and mmap(2) take pointers, and shared types are passed as bytes"
)]

mod conntrack;
mod maps;
mod netlink;
mod objects;
mod sock_diag;

use std::io;

use proxy_common::{
    AffinityEntry, AffinityKey, Backend, FlowEntry, FlowKey, FrontendKey, PodAffinityKey, Record,
    Settings, SocketBucket, SocketEntry, SocketKey, V4, V6,
    flow::ExpiryRequest,
    masquerade::MasqueradeSource,
    service::{FragmentKey, ServiceName, SourceRangeKey},
};

pub use conntrack::has_translated;
pub use maps::{
    MapInfo, MapKind, Mapping, Typed, create_map, delete, delete_batch, lookup, lookup_batch,
    map_info, per_cpu_sums, trim_heap, update, update_batch,
};
pub use objects::{
    LinkInfo, TestRun, attach_cgroup, attach_tcx, get_pinned, link_info, pin, program_id,
    query_tcx, replace, test_run,
};

pub use sock_diag::{Destroyed, destroy_udp, network_namespace};

/// Types that are nothing but their bytes: no padding, every bit pattern valid.
///
/// # Safety
/// Implementors must be `repr(C)` or `repr(transparent)`, without padding, and valid for all bytes.
pub unsafe trait Plain: Copy + Send + Sync + 'static {
    /// The all-zero value.
    fn zeroed() -> Self {
        // SAFETY: every bit pattern is valid for a plain type.
        unsafe { std::mem::zeroed() }
    }
    /// The value as bytes.
    fn bytes(&self) -> &[u8] {
        // SAFETY: a plain type has no padding, so every byte is initialised; the lifetime is self's.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
    /// The value that these bytes are, or `None` if there are too few.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        // SAFETY: there are enough bytes, every bit pattern is valid, and the read needs no alignment.
        (bytes.len() >= size_of::<Self>())
            .then(|| unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}

macro_rules! plain {
    ($($(#[$family:ident])? $type:ty,)*) => {
        $(
            // SAFETY: repr(C) or a primitive, without padding (proxy_common::layout asserts it for both
            // families), valid for every bit pattern.
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
    MasqueradeSource,
    ExpiryRequest,
    Settings,
    ServiceName,
}

// SAFETY: an array of plain values has no padding of its own.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Key of a `sources` trie: the prefix length counts the service id's 32 bits as well.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct LpmKey<A> {
    pub prefix: u32,
    pub data: SourceRangeKey<A>,
}

const _: () = assert!(size_of::<LpmKey<V4>>() == 4 + size_of::<SourceRangeKey<V4>>());
const _: () = assert!(size_of::<LpmKey<V6>>() == 4 + size_of::<SourceRangeKey<V6>>());

/// Commands of bpf(2), from the kernel's `enum bpf_cmd`.
#[derive(Clone, Copy)]
#[repr(i32)]
enum Command {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    ObjectPin = 6,
    ObjectGet = 7,
    TestRun = 10,
    ObjectInfo = 15,
    ProgramQuery = 16,
    MapLookupBatch = 24,
    MapUpdateBatch = 26,
    MapDeleteBatch = 27,
    LinkCreate = 28,
    LinkUpdate = 29,
}

/// Calls bpf(2). `attributes` is the part of the kernel's `union bpf_attr` that the command reads.
///
/// # Safety
/// Every pointer in the attributes must be valid for what the command does with it.
unsafe fn bpf<T>(command: Command, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: the attributes are a live value of the size given; their pointers are the caller's promise.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as i32,
            std::ptr::from_mut(attributes),
            size_of::<T>() as u32,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result as i32)
}

fn address_of<T>(value: &T) -> u64 {
    std::ptr::from_ref(value) as u64
}
