// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies the counters of backends and service ports from old maps to new ones, where these have
//! other ids. What the old programs count afterwards is lost.

use std::{io, os::fd::OwnedFd, path::Path};

use linux::get_pinned;
use proxy_common::{
    ServiceId, V4, V6, maps,
    traffic::{RefusedKey, Traffic},
};

use super::references::{Backends, References};
use crate::{
    error::DatapathError,
    maps::{
        counted::{RefusedMap, TrafficMap},
        family::Family,
    },
};

/// Copies the counters from the generation in `source` to the one in `target`. The new maps must
/// contain the services already.
pub(super) fn carry(
    source: &Path,
    target: &Path,
    references: &References,
) -> Result<(), DatapathError> {
    carry_traffic::<V4>(source, target, &references.v4)
        .map_err(DatapathError::of_map("carry over", V4::TRAFFIC))?;
    carry_traffic::<V6>(source, target, &references.v6)
        .map_err(DatapathError::of_map("carry over", V6::TRAFFIC))?;
    carry_refused(source, target, references)
        .map_err(DatapathError::of_map("carry over", maps::REFUSED))
}

/// Opens a map of the old generation, pinned in `source`; `None` if it does not exist or has
/// another layout.
fn old<T>(
    source: &Path,
    map: &str,
    wrap: impl FnOnce(OwnedFd) -> io::Result<T>,
) -> io::Result<Option<T>> {
    match get_pinned(&source.join(map), false) {
        Ok(fd) => Ok(wrap(fd).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn carry_traffic<A: Family>(source: &Path, target: &Path, backends: &Backends) -> io::Result<()> {
    let Some(old) = old(source, A::TRAFFIC, TrafficMap::new)? else {
        return Ok(());
    };
    let new = get_pinned(&target.join(A::TRAFFIC), false).and_then(TrafficMap::new)?;
    let mut sums = Vec::new();
    old.each(u32::MAX, |id, traffic| {
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
        match backends.id_of(id) {
            Some(found) => new.add(found.0, &traffic)?,
            None => of_none.add(&traffic),
        }
    }
    new.add(0, &of_none)
}

fn carry_refused(source: &Path, target: &Path, references: &References) -> io::Result<()> {
    let Some(old) = old(source, maps::REFUSED, RefusedMap::new)? else {
        return Ok(());
    };
    let new = get_pinned(&target.join(maps::REFUSED), false).and_then(RefusedMap::new)?;
    for (key, count) in old.entries()?.into_iter().filter(|(_, count)| *count > 0) {
        let service = references.services.get(key.service);
        let service = service.unwrap_or(ServiceId::NONE);
        new.add(RefusedKey { service, ..key }, count)?;
    }
    Ok(())
}
