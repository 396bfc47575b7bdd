// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maps whose elements have a value for each CPU, read and written by element and by batch. Used by
//! `datapath::maps`.

use std::{
    io,
    marker::PhantomData,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use super::{
    answers::none_if,
    batches::{BatchRequest, lookup},
    bpf::{Command, bpf},
    maps::{ElementRequest, MapInfo, MapKind, map_info, possible_cpus},
    plain::Plain,
};

/// About how many bytes of values one system call reads or stores.
const STEP_BYTES: usize = 1 << 20;

/// A map whose elements have a value of type `V` for each CPU.
pub struct PerCpu<K, V> {
    fd: OwnedFd,
    info: MapInfo,
    cpus: usize,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K: Plain, V: Plain> PerCpu<K, V> {
    /// Wraps a map; fails if it is not per CPU, or if keys and values do not have the sizes of `K`
    /// and `V`.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let info = map_info(&fd)?;
        let kinds = [MapKind::PerCpuArray as u32, MapKind::PerCpuHash as u32];
        let sizes = (info.key_size as usize, info.value_size as usize);
        // The kernel rounds each CPU's value up to a multiple of eight bytes.
        let is_whole = size_of::<V>().is_multiple_of(8);
        if !kinds.contains(&info.kind) || sizes != (size_of::<K>(), size_of::<V>()) || !is_whole {
            return Err(io::Error::other("it has no such value for each CPU"));
        }
        Ok(Self {
            fd,
            info,
            cpus: possible_cpus()?,
            types: PhantomData,
        })
    }
    /// Returns how many elements the map can have.
    pub fn capacity(&self) -> u32 {
        self.info.max_entries
    }

    /// Returns the values of a key, one for each CPU; None if the map has no such key.
    pub fn lookup(&self, key: &K) -> io::Result<Option<Vec<V>>> {
        let mut values = vec![V::zeroed(); self.cpus];
        let read = self.call(Command::MapLookup, key, values.as_mut_ptr() as u64, 0);
        Ok(none_if(&[libc::ENOENT], read)?.map(|()| values))
    }
    /// Stores the values of a key, one for each CPU. What a program adds to them at the same moment
    /// may be lost.
    pub fn update(&self, key: &K, values: &[V]) -> io::Result<()> {
        self.store(key, values, 0)
    }
    /// Creates an element with a value of zero on each CPU, unless the key exists.
    pub fn enter(&self, key: &K) -> io::Result<()> {
        const NO_EXIST: u64 = 1;
        let stored = self.store(key, &vec![V::zeroed(); self.cpus], NO_EXIST);
        none_if(&[libc::EEXIST], stored).map(drop)
    }
    fn store(&self, key: &K, values: &[V], flags: u64) -> io::Result<()> {
        assert_eq!(values.len(), self.cpus, "one value for each CPU");
        self.call(Command::MapUpdate, key, values.as_ptr() as u64, flags)
    }
    /// Removes an element; true if it existed.
    pub fn delete(&self, key: &K) -> io::Result<bool> {
        let removed = self.call(Command::MapDelete, key, 0, 0);
        Ok(none_if(&[libc::ENOENT], removed)?.is_some())
    }
    fn call(&self, command: Command, key: &K, value: u64, flags: u64) -> io::Result<()> {
        let mut request = ElementRequest {
            map: self.fd.as_raw_fd() as u32,
            key: std::ptr::from_ref(key) as u64,
            value,
            flags,
            ..ElementRequest::default()
        };
        // SAFETY: the key is as long as the map's; the value is absent, or there is one for each
        // CPU (checked by the callers).
        unsafe { bpf(command, &mut request) }.map(drop)
    }

    /// Stores elements whose value is the same on every CPU.
    pub fn store_all(&self, elements: &[(K, V)]) -> io::Result<()> {
        for part in elements.chunks(self.step()) {
            let keys: Vec<K> = part.iter().map(|(key, _)| *key).collect();
            let of_each = |(_, value): &(K, V)| std::iter::repeat_n(*value, self.cpus);
            let values: Vec<V> = part.iter().flat_map(of_each).collect();
            let mut request = BatchRequest {
                keys: keys.as_ptr() as u64,
                values: values.as_ptr() as u64,
                count: keys.len() as u32,
                map: self.fd.as_raw_fd() as u32,
                ..BatchRequest::default()
            };
            // SAFETY: the pointers lead to `count` keys, and to a value for every CPU of each.
            unsafe { bpf(Command::MapUpdateBatch, &mut request) }?;
        }
        Ok(())
    }
    /// Visits every element, as its key and its values of all CPUs, until `visit` returns false.
    pub fn each(&self, mut visit: impl FnMut(K, &[V]) -> bool) -> io::Result<()> {
        let (mut cursor, mut step) = (Vec::new(), self.step());
        loop {
            let mut keys = vec![K::zeroed(); step];
            let mut values = vec![V::zeroed(); step * self.cpus];
            let pointers = (keys.as_mut_ptr().cast(), values.as_mut_ptr().cast());
            // SAFETY: both buffers hold `step` elements of the map's sizes, with a value for every
            // CPU.
            let read =
                unsafe { lookup(self.fd.as_fd(), &mut cursor, size_of::<K>(), pointers, step) };
            let Some((count, last)) = none_if(&[libc::ENOSPC], read)? else {
                // One bucket of the hash table has more elements than a batch.
                step *= 2;
                continue;
            };
            let elements = keys.into_iter().zip(values.chunks_exact(self.cpus));
            for (key, values) in elements.take(count) {
                if !visit(key, values) {
                    return Ok(());
                }
            }
            if last {
                return Ok(());
            }
        }
    }
    /// Returns how many elements one system call reads or stores.
    fn step(&self) -> usize {
        let of_one = size_of::<V>() * self.cpus;
        (STEP_BYTES / of_one).clamp(64, 4096)
    }
}

/// Returns the elements of a per-CPU array of 64-bit numbers, each summed over the CPUs.
pub fn per_cpu_sums(fd: OwnedFd) -> io::Result<Vec<u64>> {
    let array = PerCpu::<u32, u64>::new(fd)?;
    let values = (0..array.capacity()).map(|index| array.lookup(&index));
    let sum = |values: Option<Vec<u64>>| values.iter().flatten().sum();
    values.map(|values| Ok(sum(values?))).collect()
}

/// Adds the numbers in `more` to the first elements of a per-CPU array of 64-bit numbers, on its
/// first CPU. What a program adds to them at the same moment may be lost.
pub fn per_cpu_add(fd: OwnedFd, more: &[u64]) -> io::Result<()> {
    let array = PerCpu::<u32, u64>::new(fd)?;
    for (index, more) in (0..array.capacity()).zip(more) {
        if let Some(mut values) = array.lookup(&index)? {
            values[0] += more;
            array.update(&index, &values)?;
        }
    }
    Ok(())
}
