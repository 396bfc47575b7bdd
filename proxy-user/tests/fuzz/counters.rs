// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The counters, read in one system call after each packet, and elements of per-CPU arrays.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
};

use portolan::datapath::{maps::pins::map_path, sys::get_pinned};
use proxy_common::{Counter, maps};

use crate::subject::counter;

const CAPACITY: usize = Counter::CAPACITY as usize;

/// The map of counters, and their values after the last packet.
pub(crate) struct Counters {
    map: OwnedFd,
    values: Vec<u64>,
    before: Vec<u64>,
}

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

impl Counters {
    pub(crate) fn open(pin_dir: &Path) -> Self {
        let map = get_pinned(&map_path(pin_dir, maps::COUNTERS), false).expect("pinned");
        let mut counters = Self {
            map,
            values: vec![0; CAPACITY * cpus()],
            before: vec![0; CAPACITY],
        };
        counters.reset();
        counters
    }
    /// Takes the present values as those before the next packet.
    pub(crate) fn reset(&mut self) {
        self.read();
        let cpus = self.values.len() / CAPACITY;
        let sums = self.values.chunks(cpus).map(|values| values.iter().sum());
        self.before = sums.collect();
    }
    fn read(&mut self) {
        const LOOKUP_BATCH: i64 = 24;
        let mut keys = [0_u32; CAPACITY];
        let mut out = 0_u64;
        let mut batch = Batch {
            out_batch: (&raw mut out) as u64,
            keys: keys.as_mut_ptr() as u64,
            values: self.values.as_mut_ptr() as u64,
            count: CAPACITY as u32,
            map: self.map.as_raw_fd() as u32,
            ..Batch::default()
        };
        // SAFETY: there is room for this number of keys, and of values for every CPU.
        let result = unsafe {
            libc::syscall(libc::SYS_bpf, LOOKUP_BATCH, &raw mut batch, size_of::<Batch>())
        };
        let error = io::Error::last_os_error();
        let ended = error.raw_os_error() == Some(libc::ENOENT);
        assert!(result == 0 || ended, "read the counters: {error}");
    }
    /// The one counter that has moved, by one.
    pub(crate) fn moved(&mut self) -> Result<Counter, String> {
        self.read();
        let cpus = self.values.len() / CAPACITY;
        let mut moved = None;
        for (index, values) in self.values.chunks(cpus).enumerate() {
            let now: u64 = values.iter().sum();
            if now == self.before[index] {
                continue;
            }
            if now - self.before[index] != 1 || moved.is_some() {
                return Err(format!("more than one counter moves: {:?}", counter(index)));
            }
            self.before[index] = now;
            moved = counter(index);
        }
        moved.ok_or_else(|| "no counter moves".into())
    }
}

/// Stores zeroes in an element of an array, for every CPU; `length` is the element's, in bytes.
pub(crate) fn zero(pin_dir: &Path, map: &str, key: u32, length: usize) {
    const UPDATE: i64 = 2;
    let map = get_pinned(&map_path(pin_dir, map), false).expect("pinned");
    let value = vec![0_u8; length * cpus()];
    let mut element = Element {
        map: map.as_raw_fd() as u32,
        _pad: 0,
        key: (&raw const key) as u64,
        value: value.as_ptr() as u64,
        flags: 0,
    };
    // SAFETY: key and value are live, and the value is long enough for every CPU.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, UPDATE, &raw mut element, size_of::<Element>())
    };
    assert_eq!(result, 0, "store an element: {}", io::Error::last_os_error());
}
