// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads BPF maps with few system calls: counters after each packet, tables after a sequence.

use std::{
    io,
    marker::PhantomData,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
};

use datapath::maps::pins::map_path;
use linux::{Plain, get_pinned, map_info};
use proxy_common::{Counter, maps, ports};

const COUNTERS: usize = Counter::ALL.len();

const UPDATE: i64 = 2;
const LOOKUP_BATCH: i64 = 24;
const LOOKUP_AND_DELETE_BATCH: i64 = 25;

#[repr(C)]
#[derive(Default)]
struct Batch {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: u32,
    element_flags: u64,
    flags: u64,
}

#[repr(C)]
struct Element {
    map: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

fn cpus() -> usize {
    aya::util::nr_cpus().expect("the number of CPUs")
}

fn pinned(pin_dir: &Path, map: &str) -> OwnedFd {
    get_pinned(&map_path(pin_dir, map), false).expect("pinned")
}

/// Reads up to `count` elements of a map into `keys` and `values`, and removes them if `command`
/// says so; returns how many it has read.
fn batch(command: i64, map: &OwnedFd, keys: &mut [u8], values: &mut [u8], count: usize) -> usize {
    let mut out = [0_u64; 4];
    let mut batch = Batch {
        out_batch: out.as_mut_ptr() as u64,
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        count: count as u32,
        map: map.as_raw_fd() as u32,
        ..Batch::default()
    };
    // SAFETY: callers pass buffers for this number of keys, and of values for every CPU.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut batch, size_of::<Batch>()) };
    let error = io::Error::last_os_error();
    let ended = error.raw_os_error() == Some(libc::ENOENT);
    assert!(result == 0 || ended, "read a map: {error}");
    batch.count as usize
}

/// The map of counters, with the counts before the next packet.
pub(crate) struct Counters {
    map: OwnedFd,
    keys: Vec<u8>,
    values: Vec<u8>,
    before: Vec<u64>,
}

impl Counters {
    pub(crate) fn open(pin_dir: &Path) -> Self {
        let mut counters = Self {
            map: pinned(pin_dir, maps::COUNTERS),
            keys: vec![0; COUNTERS * 4],
            values: vec![0; COUNTERS * cpus() * 8],
            before: vec![0; COUNTERS],
        };
        counters.reset();
        counters
    }
    /// Reads the current counts as those before the next packet.
    pub(crate) fn reset(&mut self) {
        self.read();
        self.before = self.sums().collect();
    }
    fn read(&mut self) {
        let Self {
            map, keys, values, ..
        } = self;
        batch(LOOKUP_BATCH, map, keys, values, COUNTERS);
    }
    fn sums(&self) -> impl Iterator<Item = u64> {
        let of_each = self.values.chunks_exact(self.values.len() / COUNTERS);
        of_each.map(|values| {
            let (words, _) = values.as_chunks::<8>();
            words.iter().map(|word| u64::from_ne_bytes(*word)).sum()
        })
    }
    /// Returns the counter that the last packet has increased; fails unless only one has increased,
    /// by one. None if no counter has changed. FlowEvictedEarly may increase in addition and is not
    /// returned.
    pub(crate) fn moved(&mut self) -> Result<Option<Counter>, String> {
        const EVICTED: usize = Counter::FlowEvictedEarly as usize;
        self.read();
        let mut moved = None;
        let evicted = self.sums().nth(EVICTED).unwrap_or_default();
        self.before[EVICTED] = evicted;
        for (index, now) in self.sums().enumerate() {
            let by = now - self.before[index];
            if by == 0 {
                continue;
            }
            if by != 1 || moved.is_some() {
                return Err(format!("{:?} moves as well, by {by}", Counter::ALL[index]));
            }
            moved = Some(index);
        }
        let Some(index) = moved else {
            return Ok(None);
        };
        self.before[index] += 1;
        Ok(Some(Counter::ALL[index]))
    }
}

/// A hash map of the programs, which is read as a whole.
pub(crate) struct Hash<K, V> {
    map: OwnedFd,
    keys: Vec<u8>,
    values: Vec<u8>,
    capacity: usize,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K: Plain, V: Plain> Hash<K, V> {
    pub(crate) fn open(pin_dir: &Path, map: &str) -> Self {
        let map = pinned(pin_dir, map);
        let info = map_info(&map).expect("a map");
        assert_eq!(
            (info.key_size as usize, info.value_size as usize),
            (size_of::<K>(), size_of::<V>())
        );
        let capacity = info.max_entries as usize;
        Self {
            map,
            keys: vec![0; capacity * size_of::<K>()],
            values: vec![0; capacity * size_of::<V>()],
            capacity,
            types: PhantomData,
        }
    }
    /// Returns all elements of the map.
    pub(crate) fn read(&mut self) -> Vec<(K, V)> {
        self.all(LOOKUP_BATCH)
    }
    pub(crate) fn clear(&mut self) {
        let Self {
            map,
            keys,
            values,
            capacity,
            ..
        } = self;
        batch(LOOKUP_AND_DELETE_BATCH, map, keys, values, *capacity);
    }
    fn all(&mut self, command: i64) -> Vec<(K, V)> {
        let Self {
            map,
            keys,
            values,
            capacity,
            ..
        } = self;
        let count = batch(command, map, keys, values, *capacity);
        let keys = keys.chunks_exact(size_of::<K>()).take(count);
        let values = values.chunks_exact(size_of::<V>());
        let entry = |(key, value)| Some((K::from_bytes(key)?, V::from_bytes(value)?));
        keys.zip(values).filter_map(entry).collect()
    }
    /// Replaces every value in the map by what `change` makes of it.
    pub(crate) fn change(&mut self, change: impl Fn(&K, &mut V)) {
        for (key, mut value) in self.read() {
            change(&key, &mut value);
            update(&self.map, key.bytes(), value.bytes());
        }
    }
}

fn update(map: &OwnedFd, key: &[u8], value: &[u8]) {
    let mut element = Element {
        map: map.as_raw_fd() as u32,
        _pad: 0,
        key: key.as_ptr() as u64,
        value: value.as_ptr() as u64,
        flags: 0,
    };
    // SAFETY: key and value are live, and as long as the map's keys and values.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            UPDATE,
            &raw mut element,
            size_of::<Element>(),
        )
    };
    assert_eq!(
        result,
        0,
        "store an element: {}",
        io::Error::last_os_error()
    );
}

/// Other maps that the programs write. `remove` empties them at the beginning of a sequence.
pub(crate) struct Traces {
    ring_ends: OwnedFd,
    budget: OwnedFd,
    direct: OwnedFd,
    port_bits: *mut u64,
}

impl Traces {
    pub(crate) fn open(pin_dir: &Path) -> Self {
        let map = pinned(pin_dir, maps::PORTS);
        let (length, protection) = (
            ports::WORDS as usize * 8,
            libc::PROT_READ | libc::PROT_WRITE,
        );
        // SAFETY: a new mapping of memory, which exists until the process ends.
        let at = unsafe {
            let (null, fd) = (std::ptr::null_mut(), map.as_raw_fd());
            libc::mmap(null, length, protection, libc::MAP_SHARED, fd, 0)
        };
        assert_ne!(at, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        Self {
            ring_ends: pinned(pin_dir, maps::RING_ENDS),
            budget: pinned(pin_dir, maps::REJECT_BUDGET),
            direct: pinned(pin_dir, maps::DIRECT),
            port_bits: at.cast(),
        }
    }
    /// Empties the maps. `direct` has the slots of the map `direct` that may be in use.
    pub(crate) fn remove(&self, direct: impl Iterator<Item = u32>) {
        const BY_PROGRAMS: u64 = ports::REPLY | ports::MASQUERADE | ports::DIRECT;
        for end in 0..6_u32 {
            update(&self.ring_ends, &end.to_ne_bytes(), &[0; 16]);
        }
        // An empty budget of rejections fills up again as time passes.
        update(&self.budget, &[0; 4], &vec![0; 16 * cpus()]);
        for place in direct {
            update(&self.direct, &place.to_ne_bytes(), &[0; 4]);
        }
        // SAFETY: the mapping has this length, and nobody else writes to it while no program runs.
        let words =
            unsafe { std::slice::from_raw_parts_mut(self.port_bits, ports::WORDS as usize) };
        for word in words {
            if *word != 0 {
                *word &= !(BY_PROGRAMS * (u64::MAX / 0xff));
            }
        }
    }
}
