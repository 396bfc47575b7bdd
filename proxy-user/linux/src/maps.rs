// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maps by bpf(2): creation, information, single elements. Used by `datapath`.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use super::{
    answers::none_if,
    bpf::{Command, address_of, bpf, object_info},
    plain::Plain,
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
#[derive(Default)]
pub(super) struct ElementRequest {
    pub(super) map: u32,
    pub(super) _pad: u32,
    pub(super) key: u64,
    /// The address of the value; for MapNextKey, the address that gets the next key.
    pub(super) value: u64,
    pub(super) flags: u64,
}

fn element<K>(fd: BorrowedFd<'_>, key: &K, value: u64) -> ElementRequest {
    ElementRequest {
        map: fd.as_raw_fd() as u32,
        _pad: 0,
        key: address_of(key),
        value,
        flags: 0,
    }
}

/// Fails unless a map's keys and values have the sizes of `K` and `V`: the kernel would otherwise
/// access memory out of bounds.
fn check_sizes<K, V>(info: &MapInfo) -> io::Result<()> {
    let found = (info.key_size as usize, info.value_size as usize);
    let wanted = (size_of::<K>(), size_of::<V>());
    if found == wanted {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        format!(
            "its keys and values have {} and {} bytes, not {} and {}: another program made it, or another version of portolan",
            found.0, found.1, wanted.0, wanted.1
        ),
    ))
}

/// A map whose keys and values are known to have the sizes of `K` and `V`.
pub struct Typed<K, V> {
    fd: OwnedFd,
    info: MapInfo,
    types: std::marker::PhantomData<fn() -> (K, V)>,
}

impl<K: Plain, V: Plain> Typed<K, V> {
    /// Wraps a map; fails if its keys and values do not have the sizes of `K` and `V`.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let info = map_info(&fd)?;
        check_sizes::<K, V>(&info)?;
        Ok(Self {
            fd,
            info,
            types: std::marker::PhantomData,
        })
    }
    /// Returns what the kernel said about the map when it was wrapped.
    pub fn info(&self) -> &MapInfo {
        &self.info
    }
    /// Returns the map's descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the value of a key; `None` if the map has no such key.
pub fn lookup<K: Plain, V: Plain>(map: &Typed<K, V>, key: &K) -> io::Result<Option<V>> {
    let mut value = V::zeroed();
    let mut request = element(map.fd(), key, std::ptr::from_mut(&mut value) as u64);
    // SAFETY: key and value are live and as long as the map's (checked by Typed::new).
    let read = unsafe { bpf(Command::MapLookup, &mut request) };
    Ok(none_if(&[libc::ENOENT], read)?.map(|_| value))
}

/// Returns the number of possible CPUs, each of which has a value in every per-CPU element.
pub fn possible_cpus() -> io::Result<usize> {
    aya::util::nr_cpus().map_err(|(_, error)| error)
}

/// A per-CPU array of 64-bit numbers, with a buffer for the values of one element.
struct Numbers {
    fd: OwnedFd,
    count: u32,
    values: Vec<u64>,
}

impl Numbers {
    fn new(fd: OwnedFd) -> io::Result<Self> {
        let info = map_info(&fd)?;
        if (info.kind, info.key_size, info.value_size) != (MapKind::PerCpuArray as u32, 4, 8) {
            return Err(io::Error::other("it is no per-CPU array of numbers"));
        }
        Ok(Self {
            fd,
            count: info.max_entries,
            values: vec![0; possible_cpus()?],
        })
    }
    /// Reads an element's values of all CPUs into `values`, or stores them from there.
    fn transfer(&mut self, command: Command, index: u32) -> io::Result<()> {
        let mut request = element(self.fd.as_fd(), &index, self.values.as_mut_ptr() as u64);
        // SAFETY: the kernel reads or writes eight bytes for each possible CPU, and the buffer has
        // that many.
        unsafe { bpf(command, &mut request) }.map(drop)
    }
}

/// Returns the elements of a per-CPU array of 64-bit numbers, each summed over the CPUs.
pub fn per_cpu_sums(fd: OwnedFd) -> io::Result<Vec<u64>> {
    let mut numbers = Numbers::new(fd)?;
    let mut sums = Vec::with_capacity(numbers.count as usize);
    for index in 0..numbers.count {
        numbers.transfer(Command::MapLookup, index)?;
        sums.push(numbers.values.iter().sum());
    }
    Ok(sums)
}

/// Adds the numbers in `more` to the first elements of a per-CPU array of 64-bit numbers, on its
/// first CPU. What a program adds to them at the same moment may be lost.
pub fn per_cpu_add(fd: OwnedFd, more: &[u64]) -> io::Result<()> {
    let mut numbers = Numbers::new(fd)?;
    for (index, more) in (0..numbers.count).zip(more) {
        numbers.transfer(Command::MapLookup, index)?;
        numbers.values[0] += more;
        numbers.transfer(Command::MapUpdate, index)?;
    }
    Ok(())
}

/// Stores one element; replaces the value if the key exists.
pub fn update<K: Plain, V: Plain>(map: &Typed<K, V>, key: &K, value: &V) -> io::Result<()> {
    let mut request = element(map.fd(), key, address_of(value));
    // SAFETY: as in `lookup`.
    unsafe { bpf(Command::MapUpdate, &mut request) }.map(drop)
}

/// Creates an array whose only element is these bytes.
pub fn create_bytes(bytes: &[u8]) -> io::Result<OwnedFd> {
    let map = create_map(MapKind::Array, 4, bytes.len() as u32, 1, 0, None)?;
    let mut request = element(map.as_fd(), &0_u32, bytes.as_ptr() as u64);
    // SAFETY: key and value are live and as long as the map's.
    unsafe { bpf(Command::MapUpdate, &mut request) }?;
    Ok(map)
}

/// Removes one element; true if it existed.
pub fn delete<K: Plain, V: Plain>(map: &Typed<K, V>, key: &K) -> io::Result<bool> {
    let mut request = element(map.fd(), key, 0);
    // SAFETY: as in `lookup`.
    let removed = unsafe { bpf(Command::MapDelete, &mut request) };
    Ok(none_if(&[libc::ENOENT], removed)?.is_some())
}
