// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maps by bpf(2): creation, information, emptying, and many elements by one system call (Linux
//! 5.6). Used by `datapath` and `tables`.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use super::{
    answers::{is_one_of, none_if},
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
struct ElementRequest {
    map: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Calls a command on one element. `value`: the address of its values; for MapNextKey, the address
/// that gets the next key.
///
/// # Safety
/// `key` and `value` must be addresses of what the command reads or writes there.
pub(super) unsafe fn element(
    map: BorrowedFd<'_>,
    command: Command,
    (key, value): (u64, u64),
    flags: u64,
) -> io::Result<()> {
    let mut request = ElementRequest {
        map: map.as_raw_fd() as u32,
        _pad: 0,
        key,
        value,
        flags,
    };
    // SAFETY: the caller's promise.
    unsafe { bpf(command, &mut request) }.map(drop)
}

/// Returns the number of possible CPUs, each of which has a value in every per-CPU element.
pub fn possible_cpus() -> io::Result<usize> {
    aya::util::nr_cpus().map_err(|(_, error)| error)
}

/// Creates an array whose only element is these bytes.
pub fn create_bytes(bytes: &[u8]) -> io::Result<OwnedFd> {
    let map = create_map(MapKind::Array, 4, bytes.len() as u32, 1, 0, None)?;
    let first = (address_of(&0_u32), bytes.as_ptr() as u64);
    // SAFETY: key and value are live and as long as the map's.
    unsafe { element(map.as_fd(), Command::MapUpdate, first, 0) }?;
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
    loop {
        // SAFETY: the buffer has the length of the map's keys.
        let found = unsafe { element(map.as_fd(), Command::MapNextKey, (0, address), 0) };
        if none_if(&[libc::ENOENT], found)?.is_none() {
            return Ok(());
        }
        // SAFETY: a key of the map's length.
        unsafe { element(map.as_fd(), Command::MapDelete, (address, 0), 0) }?;
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

/// The part of the kernel's `union bpf_attr` for commands on many elements.
#[repr(C)]
#[derive(Default)]
struct BatchRequest {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: u32,
    element_flags: u64,
    flags: u64,
}

/// Stores or removes elements in order. An error comes with the number of elements handled before
/// it; to remove a missing key is an error.
///
/// # Safety
/// `keys` must be the address of `count` keys, and `values` that of the values of as many elements
/// if the command reads them.
pub(super) unsafe fn change(
    command: Command,
    map: BorrowedFd<'_>,
    keys: u64,
    values: u64,
    count: usize,
) -> Result<(), (usize, io::Error)> {
    if count == 0 {
        return Ok(());
    }
    let mut request = BatchRequest {
        keys,
        values,
        count: count as u32,
        map: map.as_raw_fd() as u32,
        ..BatchRequest::default()
    };
    // SAFETY: the keys and values are the caller's promise.
    let changed = unsafe { bpf(command, &mut request) };
    // The kernel stores the count even when it fails, but perhaps not before the first element.
    let done = Some(request.count as usize).filter(|done| *done < count);
    changed
        .map(drop)
        .map_err(|error| (done.unwrap_or(0), error))
}

/// Reads the value of one key, both as bytes, and removes it if `takes`. `value` gets the value and
/// must have the map's size. False if the map does not have the key.
pub fn lookup_one(
    map: BorrowedFd<'_>,
    info: &MapInfo,
    (key, value): (&[u8], &mut [u8]),
    takes: bool,
) -> io::Result<bool> {
    if (key.len(), value.len()) != (info.key_size as usize, info.value_size as usize) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let command = if takes {
        Command::MapTake
    } else {
        Command::MapLookup
    };
    let addresses = (key.as_ptr() as u64, value.as_mut_ptr() as u64);
    // SAFETY: both buffers are live, and as long as the map's keys and values.
    let read = unsafe { element(map, command, addresses, 0) };
    Ok(none_if(&[libc::ENOENT], read)?.is_some())
}

/// Elements per system call. Larger batches are no faster (measured) and need larger buffers.
pub const BATCH: usize = 4096;

/// Visits every element of a map, whatever its types: the bytes of its key, and of its value. An
/// element that is added or removed during the call may be missing, and one that moves may occur
/// twice. The call always ends.
pub fn each_raw(map: BorrowedFd<'_>, mut visit: impl FnMut(&[u8], &[u8])) -> io::Result<()> {
    let info = map_info(map)?;
    let per_cpu = [5, 6, 10].contains(&info.kind);
    if per_cpu {
        return Err(io::Error::other("a value for each CPU"));
    }
    let mut walk = Walk::new(BATCH.min(info.max_entries.max(1) as usize));
    // A walk through a trie restarts when the key of its cursor is removed, so it needs a limit. A
    // walk through a hash map does not.
    for _ in 0..4 * info.max_entries as usize / BATCH + 64 {
        if !walk.step_raw(map, &info, 1, &mut visit)? {
            break;
        }
    }
    Ok(())
}

/// A walk through a map in steps, bucket by bucket. It reaches an end even if the map changes all
/// the time.
pub struct Walk {
    cursor: Vec<u8>,
    batch: usize,
}

impl Walk {
    /// Returns a walk from the start, with at most `batch` elements per step.
    pub fn new(batch: usize) -> Self {
        Self {
            cursor: Vec::new(),
            batch,
        }
    }
    /// True if the next step starts at the beginning.
    pub fn is_at_start(&self) -> bool {
        self.cursor.is_empty()
    }
    /// Calls `visit` with the bytes of the next elements: of a key, and of its values, of which an
    /// element has `per_element`. Returns `false` at the map's end; the next step then starts at
    /// the beginning. `info` must be this map's.
    pub(super) fn step_raw(
        &mut self,
        map: BorrowedFd<'_>,
        info: &MapInfo,
        per_element: usize,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> io::Result<bool> {
        let key = info.key_size as usize;
        let value = info.value_size as usize * per_element;
        let mut interruptions = 0;
        loop {
            let mut keys = vec![0_u8; self.batch * key];
            let mut values = vec![0_u8; self.batch * value];
            // The cursor of a hash map is a bucket number, that of an array or a trie is a key.
            let mut next = vec![0_u8; key.max(size_of::<u64>())];
            let start = (!self.cursor.is_empty()).then_some(self.cursor.as_ptr() as u64);
            let mut request = BatchRequest {
                in_batch: start.unwrap_or(0),
                out_batch: next.as_mut_ptr() as u64,
                keys: keys.as_mut_ptr() as u64,
                values: values.as_mut_ptr() as u64,
                count: self.batch as u32,
                map: map.as_raw_fd() as u32,
                ..BatchRequest::default()
            };
            // SAFETY: the cursor (as long as `next`, from the last call) and `next` have space for
            // a key; both buffers hold so many elements of the map's own sizes.
            let read = unsafe { bpf(Command::MapLookupBatch, &mut request) };
            let is_last = match none_if(&[libc::ENOENT], read) {
                Ok(read) => read.is_none(),
                // One bucket contains more elements than a batch.
                Err(error) if is_one_of(&[libc::ENOSPC], &error) => {
                    self.batch *= 2;
                    continue;
                }
                // A trie's cursor is a key, which may have been removed.
                Err(error) if is_one_of(&[libc::EINTR], &error) && interruptions < 64 => {
                    interruptions += 1;
                    continue;
                }
                Err(error) => return Err(error),
            };
            self.cursor = if is_last { Vec::new() } else { next };
            let elements = keys.chunks_exact(key).zip(values.chunks_exact(value));
            let found = elements.take(request.count as usize);
            found.for_each(|(key, value)| visit(key, value));
            return Ok(!is_last);
        }
    }
}
