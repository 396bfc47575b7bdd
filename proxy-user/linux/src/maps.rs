// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maps by bpf(2): creation, information, single elements. Used by `datapath`.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use super::bpf::{Command, address_of, bpf, object_info};

/// Flag `BPF_F_MMAPABLE`: the map's elements can be mapped into memory.
pub const MMAPABLE: u32 = 1 << 10;
/// Flag `BPF_F_NO_PREALLOC`: only existing elements use memory.
pub const NO_PREALLOC: u32 = 1;

/// The map types that portolan uses, with the kernel's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum MapKind {
    Hash = 1,
    Array = 2,
    PerCpuHash = 5,
    PerCpuArray = 6,
    LruHash = 9,
    LpmTrie = 11,
    ArrayOfMaps = 12,
}

/// What the kernel says about a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct MapInfo {
    pub kind: u32,
    pub id: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub flags: u32,
}

/// Returns what the kernel says about a map; fails if the descriptor is not a map's.
pub fn map_info(fd: impl AsFd) -> io::Result<MapInfo> {
    let mut info = MapInfo::default();
    object_info(fd.as_fd(), &mut info)?;
    Ok(info)
}

#[repr(C)]
#[derive(Default)]
struct CreateRequest {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
    inner: u32,
    numa_node: u32,
    name: [u8; 16],
}

/// Creates a map that is not pinned. For a map of maps, `inner` is a map like those that its
/// elements will be.
pub fn create_map(
    kind: MapKind,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
    inner: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    let mut request = CreateRequest {
        kind: kind as u32,
        key_size,
        value_size,
        max_entries,
        flags,
        inner: inner.map_or(0, |fd| fd.as_raw_fd() as u32),
        ..CreateRequest::default()
    };
    // SAFETY: the request holds no pointer; the result is a new descriptor that nobody else owns.
    unsafe { bpf(Command::MapCreate, &mut request).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// The part of the kernel's `union bpf_attr` for commands on single elements.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ElementRequest {
    pub(super) map: u32,
    pub(super) _pad: u32,
    pub(super) key: u64,
    /// The address of the value; for MapNextKey, the address that gets the next key.
    pub(super) value: u64,
    pub(super) flags: u64,
}

/// Returns the number of possible CPUs, each of which has a value in every per-CPU element.
pub fn possible_cpus() -> io::Result<usize> {
    aya::util::nr_cpus().map_err(|(_, error)| error)
}

/// Creates an array whose only element is these bytes.
pub fn create_bytes(bytes: &[u8]) -> io::Result<OwnedFd> {
    let map = create_map(MapKind::Array, 4, bytes.len() as u32, 1, 0, None)?;
    let mut request = ElementRequest {
        map: map.as_raw_fd() as u32,
        key: address_of(&0_u32),
        value: bytes.as_ptr() as u64,
        ..ElementRequest::default()
    };
    // SAFETY: key and value are live and as long as the map's.
    unsafe { bpf(Command::MapUpdate, &mut request) }?;
    Ok(map)
}
