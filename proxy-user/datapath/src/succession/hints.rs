// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies counters, and what flows need: port bits, known connections that bypass services,
//! fragments.

use std::{collections::HashSet, io, os::fd::OwnedFd};

use linux::{Plain, get_pinned, per_cpu_add, per_cpu_sums};
use proxy_common::{
    ServiceId, V4, V6, maps,
    service::FragmentKey,
    traffic::{RefusedKey, Traffic},
};

use super::references::Old;
use crate::{
    error::DatapathError,
    maps::{
        PortFilter,
        counted::{RefusedMap, TrafficMap},
        family::Family,
        tables::Table,
    },
};

/// Copies the port filter, the known connections that bypass services, and the known fragments of
/// packets.
pub(super) fn carry(old: &Old<'_>) -> Result<(), DatapathError> {
    let failed = DatapathError::of_map("carry over", maps::PORTS);
    let ports = get_pinned(&old.target.join(maps::PORTS), false)
        .and_then(PortFilter::new)
        .map_err(failed)?;
    old.each(maps::PORTS, |word, bits| ports.merge(word, bits))?;
    carry_direct(old)?;
    copy(old, V4::FRAGMENTS, |_: &FragmentKey<V4>, _: &u32| true)?;
    copy(old, V6::FRAGMENTS, |_: &FragmentKey<V6>, _: &u32| true)
}

/// Copies the known connections that bypass services, so that the new programs create no flow for
/// one of them, which would break it.
fn carry_direct(old: &Old<'_>) -> Result<(), DatapathError> {
    let table: Table<u32, u32> = old.new_table(maps::DIRECT)?;
    let here = table.entries();
    let here = here.map_err(DatapathError::of_map("carry over", maps::DIRECT))?;
    let known = here.into_iter().filter(|(_, seen)| *seen != 0);
    let known: HashSet<_> = known.map(|(place, _)| place).collect();
    copy(old, maps::DIRECT, |place: &u32, seen: &u32| {
        *seen != 0 && !known.contains(place)
    })
}

/// Copies the wanted elements of a map as far as the kernel takes them: a connection that is left
/// out is not known, and a fragment costs one datagram.
fn copy<K: Plain, V: Plain>(
    old: &Old<'_>,
    map: &'static str,
    wants: impl Fn(&K, &V) -> bool,
) -> Result<(), DatapathError> {
    let table: Table<K, V> = old.new_table(map)?;
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    old.each(map, |key, value| {
        if wants(&key, &value) {
            keys.push(key);
            values.push(value);
        }
    })?;
    _ = table.update_all(&keys, &values);
    Ok(())
}

/// Adds the counters of the old maps to those of the new ones, where backends and service ports
/// have other ids. What the old programs count afterwards is lost.
pub(super) fn carry_counters(old: &Old<'_>) -> Result<(), DatapathError> {
    let failed = |map| DatapathError::of_map("carry over", map);
    carry_outcomes(old).map_err(failed(maps::COUNTERS))?;
    carry_traffic::<V4>(old).map_err(failed(V4::TRAFFIC))?;
    carry_traffic::<V6>(old).map_err(failed(V6::TRAFFIC))?;
    carry_refused(old).map_err(failed(maps::REFUSED))
}

/// Opens the old map of this name and the new one; `None` if the old one does not exist or has
/// another layout.
fn both<T>(
    old: &Old<'_>,
    map: &str,
    wrap: impl Fn(OwnedFd) -> io::Result<T>,
) -> io::Result<Option<[T; 2]>> {
    let before = match get_pinned(&old.source.join(map), false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => wrap(found?),
    };
    let Ok(before) = before else {
        return Ok(None);
    };
    let now = get_pinned(&old.target.join(map), false).and_then(wrap)?;
    Ok(Some([before, now]))
}

fn carry_outcomes(old: &Old<'_>) -> io::Result<()> {
    let Some([counters, new]) = both(old, maps::COUNTERS, Ok)? else {
        return Ok(());
    };
    per_cpu_add(new, &per_cpu_sums(counters)?)
}

fn carry_traffic<A: Family>(old: &Old<'_>) -> io::Result<()> {
    let Some([counted, new]) = both(old, A::TRAFFIC, TrafficMap::new)? else {
        return Ok(());
    };
    let mut sums = Vec::new();
    counted.each(u32::MAX, |id, traffic| {
        let none = Traffic {
            generation: traffic.generation,
            ..Traffic::default()
        };
        if traffic != none {
            sums.push((id, traffic));
        }
    })?;
    // The counts of backends that are gone are added to element 0, which stands for no backend in
    // particular.
    let mut of_none = Traffic::default();
    for (id, traffic) in sums {
        match old.backends::<A>().id_of(id) {
            Some(found) => new.add(found.0, &traffic)?,
            None => of_none.add(&traffic),
        }
    }
    new.add(0, &of_none)
}

fn carry_refused(old: &Old<'_>) -> io::Result<()> {
    let Some([counted, new]) = both(old, maps::REFUSED, RefusedMap::new)? else {
        return Ok(());
    };
    let entries = counted.entries()?.into_iter();
    for (key, count) in entries.filter(|(_, count)| *count > 0) {
        let service = old.references.services.get(key.service);
        let service = service.unwrap_or(ServiceId::NONE);
        new.add(RefusedKey { service, ..key }, count)?;
    }
    Ok(())
}
