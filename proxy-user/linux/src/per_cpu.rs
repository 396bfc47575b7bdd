// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maps whose elements have a value for each CPU, read and written by element and by batch. Used by
//! `datapath::maps`.

use std::{io, iter::repeat_n, os::fd::OwnedFd};

use super::{
    answers::none_if,
    maps::{MapKind, map_info, possible_cpus},
    plain::Plain,
    tables::{Table, Walk},
};

/// About how many bytes of values one system call reads or stores.
const STEP_BYTES: usize = 1 << 20;

/// A map whose elements have a value of type `V` for each CPU.
pub struct PerCpu<K, V> {
    table: Table<K, V>,
    cpus: usize,
}

impl<K: Plain, V: Plain> PerCpu<K, V> {
    /// Wraps a map; fails if it is not per CPU, or if keys and values do not have the sizes of `K`
    /// and `V`.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let kinds = [MapKind::PerCpuArray as u32, MapKind::PerCpuHash as u32];
        // The kernel rounds each CPU's value up to a multiple of eight bytes.
        let is_whole = size_of::<V>().is_multiple_of(8);
        if !kinds.contains(&map_info(&fd)?.kind) || !is_whole {
            return Err(io::Error::other("it has no such value for each CPU"));
        }
        let cpus = possible_cpus()?;
        let table = Table::with_values(fd, cpus)?;
        Ok(Self { table, cpus })
    }
    pub fn capacity(&self) -> u32 {
        self.table.capacity()
    }

    /// Returns the values of a key, one for each CPU; None if the map has no such key.
    pub fn lookup(&self, key: &K) -> io::Result<Option<Vec<V>>> {
        let mut values = vec![V::zeroed(); self.cpus];
        let is_there = self.table.read(key, &mut values)?;
        Ok(is_there.then_some(values))
    }
    /// Stores the values of a key, one for each CPU. What a program adds to them at the same moment
    /// may be lost.
    pub fn update(&self, key: &K, values: &[V]) -> io::Result<()> {
        self.table.write(key, values, 0)
    }
    /// Changes the value of the first CPU, if the map has the key, as [`Self::update`] does.
    pub fn change_first(&self, key: &K, change: impl FnOnce(&mut V)) -> io::Result<()> {
        let Some(mut values) = self.lookup(key)? else {
            return Ok(());
        };
        values.first_mut().map(change);
        self.update(key, &values)
    }
    /// Creates an element with a value of zero on each CPU, unless the key exists.
    pub fn enter(&self, key: &K) -> io::Result<()> {
        const NO_EXIST: u64 = 1;
        let zeros = vec![V::zeroed(); self.cpus];
        let stored = self.table.write(key, &zeros, NO_EXIST);
        none_if(&[libc::EEXIST], stored).map(drop)
    }
    pub fn delete(&self, key: &K) -> io::Result<bool> {
        self.table.delete(key)
    }

    /// Stores elements whose value is the same on every CPU.
    pub fn store_all(&self, elements: &[(K, V)]) -> io::Result<()> {
        for part in elements.chunks(self.step()) {
            let keys: Vec<K> = part.iter().map(|(key, _)| *key).collect();
            let of_each = |(_, value): &(K, V)| repeat_n(*value, self.cpus);
            let values: Vec<V> = part.iter().flat_map(of_each).collect();
            let stored = self.table.store(&keys, &values);
            stored.map_err(|(_, error)| error)?;
        }
        Ok(())
    }
    /// Visits every element, as its key and its values of all CPUs, until `visit` returns false.
    pub fn each(&self, mut visit: impl FnMut(K, &[V]) -> bool) -> io::Result<()> {
        let (mut walk, mut goes_on) = (Walk::new(self.step()), true);
        while goes_on {
            let more = walk.step_by_values(&self.table, |key, values| {
                goes_on = goes_on && visit(key, values);
            })?;
            goes_on &= more;
        }
        Ok(())
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
        array.change_first(&index, |first| *first += more)?;
    }
    Ok(())
}
