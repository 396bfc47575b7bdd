// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maps by bpf(2) and mmap(2): creation, information, elements, batches, memory-mapped windows.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering},
};

use super::{Command, Plain, address_of, bpf};

/// Map types that portolan has, by the kernel's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum MapKind {
    Hash = 1,
    Array = 2,
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

#[repr(C)]
#[derive(Default)]
struct InfoRequest {
    fd: u32,
    length: u32,
    info: u64,
}

/// Fills `info` by BPF_OBJ_GET_INFO_BY_FD; the kernel writes at most its size.
pub(super) fn object_info<T>(fd: BorrowedFd<'_>, info: &mut T) -> io::Result<()> {
    let mut request = InfoRequest {
        fd: fd.as_raw_fd() as u32,
        length: size_of::<T>() as u32,
        info: std::ptr::from_mut(info) as u64,
    };
    // SAFETY: `info` is exclusively borrowed and `length` is its size.
    unsafe { bpf(Command::ObjectInfo, &mut request) }.map(drop)
}

/// What the kernel says about a map; an error if the descriptor is none.
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

/// Makes a map that nobody else sees. `inner` is the template of a map of maps.
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

#[repr(C)]
struct ElementRequest {
    map: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
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

/// Checks that a map's elements have the sizes that the caller's types have, without which a call with
/// pointers to them would be out of bounds.
fn assert_sizes<K, V>(info: &MapInfo) {
    assert_eq!(
        (info.key_size as usize, info.value_size as usize),
        (size_of::<K>(), size_of::<V>()),
        "cannot fail because maps are checked against their types before they are used"
    );
}

/// A map whose element sizes are known to be those of `K` and `V`.
pub struct Typed<K, V> {
    fd: OwnedFd,
    info: MapInfo,
    types: std::marker::PhantomData<fn() -> (K, V)>,
}

impl<K: Plain, V: Plain> Typed<K, V> {
    /// Wraps a map; panics if its sizes are not those of the types.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let info = map_info(&fd)?;
        assert_sizes::<K, V>(&info);
        Ok(Self {
            fd,
            info,
            types: std::marker::PhantomData,
        })
    }
    /// What the kernel said about it.
    pub fn info(&self) -> &MapInfo {
        &self.info
    }
    /// Its descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The value of a key.
pub fn lookup<K: Plain, V: Plain>(map: &Typed<K, V>, key: &K) -> io::Result<Option<V>> {
    let mut value = V::zeroed();
    let mut request = element(map.fd(), key, std::ptr::from_mut(&mut value) as u64);
    // SAFETY: key and value are live and as long as the map's (checked by Typed::new).
    match unsafe { bpf(Command::MapLookup, &mut request) } {
        Ok(_) => Ok(Some(value)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Every element of a per-CPU array of numbers, summed over the CPUs.
pub fn per_cpu_sums(fd: OwnedFd) -> io::Result<Vec<u64>> {
    const PER_CPU_ARRAY: u32 = 6;
    let info = map_info(&fd)?;
    if (info.kind, info.key_size, info.value_size) != (PER_CPU_ARRAY, 4, 8) {
        return Err(io::Error::other("it is no per-CPU array of numbers"));
    }
    let mut values = vec![0_u64; possible_cpus()?];
    let mut sums = Vec::with_capacity(info.max_entries as usize);
    for index in 0..info.max_entries {
        let mut request = element(fd.as_fd(), &index, values.as_mut_ptr() as u64);
        // SAFETY: the kernel writes eight bytes for each possible CPU, and that many are there.
        unsafe { bpf(Command::MapLookup, &mut request) }?;
        sums.push(values.iter().sum());
    }
    Ok(sums)
}

/// CPUs that the kernel keeps per-CPU values for: one more than the last one it names.
fn possible_cpus() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text
        .trim()
        .rsplit(['-', ','])
        .next()
        .and_then(|cpu| cpu.parse::<usize>().ok());
    last.map(|cpu| cpu + 1)
        .ok_or_else(|| io::Error::other("no list of possible CPUs"))
}

/// Stores one element.
pub fn update<K: Plain, V: Plain>(map: &Typed<K, V>, key: &K, value: &V) -> io::Result<()> {
    let mut request = element(map.fd(), key, address_of(value));
    // SAFETY: as in `lookup`.
    unsafe { bpf(Command::MapUpdate, &mut request) }.map(drop)
}

/// Removes one element; whether it was there.
pub fn delete<K: Plain, V: Plain>(map: &Typed<K, V>, key: &K) -> io::Result<bool> {
    let mut request = element(map.fd(), key, 0);
    // SAFETY: as in `lookup`.
    match unsafe { bpf(Command::MapDelete, &mut request) } {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

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

/// Stores elements in order. On an error, how many came before the one that failed.
pub fn update_batch<K: Plain, V: Plain>(
    map: &Typed<K, V>,
    keys: &[K],
    values: &[V],
) -> Result<(), (usize, io::Error)> {
    assert_eq!(keys.len(), values.len(), "one value for each key");
    if keys.is_empty() {
        return Ok(());
    }
    let mut request = BatchRequest {
        keys: keys.as_ptr() as u64,
        values: values.as_ptr() as u64,
        count: keys.len() as u32,
        map: map.fd.as_raw_fd() as u32,
        ..BatchRequest::default()
    };
    // SAFETY: `count` keys and values lie behind the pointers, each as long as the map's.
    match unsafe { bpf(Command::MapUpdateBatch, &mut request) } {
        Ok(_) => Ok(()),
        // The kernel stores the count even when it fails.
        Err(error) => Err((done(&request, keys.len()), error)),
    }
}

/// Removes elements in order. On an error (a missing key is one), how many came before.
pub fn delete_batch<K: Plain, V: Plain>(
    map: &Typed<K, V>,
    keys: &[K],
) -> Result<(), (usize, io::Error)> {
    if keys.is_empty() {
        return Ok(());
    }
    let mut request = BatchRequest {
        keys: keys.as_ptr() as u64,
        count: keys.len() as u32,
        map: map.fd.as_raw_fd() as u32,
        ..BatchRequest::default()
    };
    // SAFETY: `count` keys lie behind the pointer, each as long as the map's.
    match unsafe { bpf(Command::MapDeleteBatch, &mut request) } {
        Ok(_) => Ok(()),
        Err(error) => Err((done(&request, keys.len()), error)),
    }
}

/// A kernel that failed before its first element may leave the count alone.
fn done(request: &BatchRequest, all: usize) -> usize {
    let count = request.count as usize;
    if count >= all { 0 } else { count }
}

/// Reads on from `cursor` (empty at the start) up to the buffers' length. Returns how many elements were
/// read and whether these were the last.
pub fn lookup_batch<K: Plain, V: Plain>(
    map: &Typed<K, V>,
    cursor: &mut Vec<u8>,
    keys: &mut [K],
    values: &mut [V],
) -> io::Result<(usize, bool)> {
    // A hash map's cursor is a bucket number, an array's or a trie's a key.
    let length = size_of::<K>().max(size_of::<u64>());
    let mut next = vec![0u8; length];
    let mut request = BatchRequest {
        in_batch: if cursor.is_empty() {
            0
        } else {
            cursor.as_ptr() as u64
        },
        out_batch: next.as_mut_ptr() as u64,
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        count: keys.len().min(values.len()) as u32,
        map: map.fd.as_raw_fd() as u32,
        ..BatchRequest::default()
    };
    // SAFETY: cursor (of this length, from the last call) and `next` hold at least a key; `count` keys and
    // values lie behind the pointers, each as long as the map's, every bit pattern of them valid.
    match unsafe { bpf(Command::MapLookupBatch, &mut request) } {
        Ok(_) => {
            *cursor = next;
            Ok((request.count as usize, false))
        }
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
            Ok((request.count as usize, true))
        }
        Err(error) => Err(error),
    }
}

/// A window into an array's elements, shared with the kernel. Accesses are whole words, never torn.
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory is shared with the kernel anyway and accessed through atomics only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes from `offset`, both multiples of the page size.
    pub fn new(fd: impl AsFd, offset: usize, length: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choosing touches no memory of ours.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_fd().as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Self { start, length })
    }

    fn word<W>(&self, offset: usize) -> &W {
        assert!(
            offset.is_multiple_of(align_of::<W>()) && offset + size_of::<W>() <= self.length,
            "cannot fail because ids are checked against the map's capacity"
        );
        // SAFETY: in bounds and aligned (just checked); the memory lives as long as self; W is one of the
        // atomic integers below, for which shared mutation is fine and every bit pattern valid.
        unsafe { self.start.add(offset).cast().as_ref() }
    }
    /// Stores a word after everything stored before it.
    pub fn store_u64(&self, offset: usize, value: u64) {
        self.word::<AtomicU64>(offset)
            .store(value, Ordering::Release);
    }
    /// Sets bits of a word in which others do so, too.
    pub fn set_bits(&self, offset: usize, bits: u64) {
        self.word::<AtomicU64>(offset)
            .fetch_or(bits, Ordering::Release);
    }
    /// Clears such bits.
    pub fn clear_bits(&self, offset: usize, bits: u64) {
        self.word::<AtomicU64>(offset)
            .fetch_and(!bits, Ordering::Release);
    }
    /// As [`Self::store_u64`].
    pub fn store_u32(&self, offset: usize, value: u32) {
        self.word::<AtomicU32>(offset)
            .store(value, Ordering::Release);
    }
    /// As [`Self::store_u64`].
    pub fn store_u16(&self, offset: usize, value: u16) {
        self.word::<AtomicU16>(offset)
            .store(value, Ordering::Release);
    }
    /// Loads a word.
    pub fn load_u32(&self, offset: usize) -> u32 {
        self.word::<AtomicU32>(offset).load(Ordering::Relaxed)
    }
    /// Copies a value out, word by word; its size must be a multiple of four.
    pub fn load<T: Plain>(&self, offset: usize) -> T {
        let mut value = T::zeroed();
        let words = size_of::<T>() / 4;
        // SAFETY: T is plain, exclusively borrowed, and as long as `words` words, which need no alignment
        // when written as bytes.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(std::ptr::from_mut(&mut value).cast::<[u8; 4]>(), words)
        };
        for (i, bytes) in bytes.iter_mut().enumerate() {
            *bytes = self.load_u32(offset + 4 * i).to_ne_bytes();
        }
        value
    }
    /// Copies a value in, word by word; only for elements that nobody can reach.
    pub fn store<T: Plain>(&self, offset: usize, value: &T) {
        for (i, word) in value.bytes().chunks_exact(4).enumerate() {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(word);
            self.store_u32(offset + 4 * i, u32::from_ne_bytes(bytes));
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what mmap returned, and no reference into it outlives self.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// Gives memory that a large passing need has left behind back to the kernel.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes and returns plain integers; any thread may call it.
    unsafe {
        libc::malloc_trim(0);
    }
}
