// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maps by bpf(2): creation, information, emptying. Used by `datapath`.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use super::{
    answers::none_if,
    batches::change,
    bpf::{Command, address_of, bpf, object_info},
    mapping::Mapping,
};

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

/// Removes every element of a map; those of an array become zero.
pub fn empty_map(map: impl AsFd) -> io::Result<()> {
    const PAGE: usize = 4096;
    let info = map_info(&map)?;
    if info.flags & MMAPABLE != 0 {
        let length = info.value_size.next_multiple_of(8) as usize * info.max_entries as usize;
        Mapping::new(&map, 0, length.next_multiple_of(PAGE))?.zero();
        return Ok(());
    }
    if [MapKind::Array as u32, MapKind::PerCpuArray as u32].contains(&info.kind) {
        return zero(map.as_fd(), &info);
    }
    let mut key = vec![0_u8; info.key_size as usize];
    let address = key.as_mut_ptr() as u64;
    // Without a key, the kernel writes the first key as the value.
    let [next, delete] = [(0, address), (address, 0)].map(|(key, value)| ElementRequest {
        map: map.as_fd().as_raw_fd() as u32,
        key,
        value,
        ..ElementRequest::default()
    });
    loop {
        // SAFETY: the buffer has the length of the map's keys.
        let found = unsafe { bpf(Command::MapNextKey, &mut { next }) };
        if none_if(&[libc::ENOENT], found)?.is_none() {
            return Ok(());
        }
        // SAFETY: a key of the map's length.
        unsafe { bpf(Command::MapDelete, &mut { delete }) }?;
    }
}

fn zero(map: BorrowedFd<'_>, info: &MapInfo) -> io::Result<()> {
    /// Elements per system call.
    const CHUNK: u32 = 8192;
    // The kernel reads one value for each CPU, rounded up to a multiple of eight bytes.
    let cpus = if info.kind == MapKind::PerCpuArray as u32 {
        possible_cpus()?
    } else {
        1
    };
    let length = info.value_size.next_multiple_of(8) as usize * cpus;
    let values = vec![0_u8; length * CHUNK.min(info.max_entries) as usize];
    let indices: Vec<u32> = (0..info.max_entries).collect();
    for keys in indices.chunks(CHUNK as usize) {
        let (at, values) = (keys.as_ptr() as u64, values.as_ptr() as u64);
        // SAFETY: so many keys, and values that are long enough for every CPU.
        let changed = unsafe { change(Command::MapUpdateBatch, map, at, values, keys.len()) };
        changed.map_err(|(_, error)| error)?;
    }
    Ok(())
}
