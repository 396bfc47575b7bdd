// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The programs' counters for backends and service ports, summed over the CPUs. Used by `store`,
//! which creates the elements, by `succession` and by `read`.

use std::{io, os::fd::OwnedFd};

use linux::PerCpu;
use proxy_common::{
    BackendId, Counter, ServiceId,
    traffic::{RefusedKey, Traffic},
};

/// The traffic counters of one address family's backends.
pub(crate) struct TrafficMap(PerCpu<u32, Traffic>);

impl TrafficMap {
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        PerCpu::new(fd).map(Self)
    }
    /// Resets the counters of these backends, given by id and generation. Leaves out backends that
    /// are counted together in element 0.
    pub(crate) fn begin(&self, backends: &[(BackendId, u32)]) -> io::Result<()> {
        let counted = backends
            .iter()
            .filter(|(id, _)| id.0 < self.0.capacity() && id.0 != 0);
        let of_none = |(id, generation): &(BackendId, u32)| {
            let generation = u64::from(*generation);
            let traffic = Traffic {
                generation,
                ..Traffic::default()
            };
            (id.0, traffic)
        };
        self.0.store_all(&counted.map(of_none).collect::<Vec<_>>())
    }
    /// Calls `visit` with the index and the sum over all CPUs of every element below `end`.
    pub(crate) fn each(&self, end: u32, mut visit: impl FnMut(u32, Traffic)) -> io::Result<()> {
        if end == 0 {
            return Ok(());
        }
        self.0.each(|index, values| {
            visit(index, sum(values));
            index + 1 < end
        })
    }
    /// Adds another map's counts for a backend to the value of the first CPU.
    pub(crate) fn add(&self, id: u32, more: &Traffic) -> io::Result<()> {
        let index = if id < self.0.capacity() { id } else { 0 };
        self.0.change_first(&index, |first| first.add(more))
    }
}

fn sum(values: &[Traffic]) -> Traffic {
    let mut sum = Traffic::default();
    for value in values {
        sum.add(value);
        sum.generation = value.generation;
    }
    sum
}

/// The map that counts refused packets and connections for each service port and counter.
pub(crate) struct RefusedMap(PerCpu<RefusedKey, u64>);

impl RefusedMap {
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        PerCpu::new(fd).map(Self)
    }
    /// Creates the elements that count refusals which belong to no service.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        let refusals = Counter::ALL.iter().filter(|counter| counter.refuses());
        refusals
            .map(|counter| RefusedKey::of_none(*counter))
            .try_for_each(|key| self.0.enter(&key))
    }
    /// Returns the key of every element and its sum over all CPUs.
    pub(crate) fn entries(&self) -> io::Result<Vec<(RefusedKey, u64)>> {
        let mut entries = Vec::new();
        self.0.each(|key, values| {
            entries.push((key, values.iter().sum()));
            true
        })?;
        Ok(entries)
    }
    /// Removes the elements of those service ports for which `gone` returns true.
    pub(crate) fn forget(&self, gone: impl Fn(ServiceId) -> bool) -> io::Result<()> {
        for (key, _) in self.entries()? {
            if key.service != ServiceId::NONE && gone(key.service) {
                self.0.delete(&key)?;
            }
        }
        Ok(())
    }
    /// Adds another map's count for a service port and counter to the value of the first CPU.
    pub(crate) fn add(&self, key: RefusedKey, more: u64) -> io::Result<()> {
        self.0.enter(&key)?;
        self.0.change_first(&key, |first| *first += more)
    }
}
