// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies what flows need from old maps to new ones: port bits, known connections that bypass
//! services, fragments.

use std::{collections::HashSet, path::Path};

use linux::get_pinned;
use proxy_common::{V4, V6, maps, service::FragmentKey};

use super::translation::{each, table};
use crate::{
    error::DatapathError,
    maps::{PortFilter, family::Family, tables::Table},
};

/// Copies the port filter, the known connections that bypass services, and the known fragments of
/// packets.
pub(super) fn carry(source: &Path, target: &Path) -> Result<(), DatapathError> {
    let failed = DatapathError::of_map("carry over", maps::PORTS);
    let ports = get_pinned(&target.join(maps::PORTS), false)
        .and_then(PortFilter::new)
        .map_err(failed)?;
    each(source, target, maps::PORTS, |word: u32, bits: u64| {
        ports.merge(word, bits);
    })?;
    carry_direct(source, target)?;
    carry_fragments::<V4>(source, target)?;
    carry_fragments::<V6>(source, target)
}

/// Copies the known connections that bypass services, so that the new programs create no flow for
/// one of them, which would break it.
fn carry_direct(source: &Path, target: &Path) -> Result<(), DatapathError> {
    let table: Table<u32, u32> = table(target, maps::DIRECT)?;
    let here = table.entries();
    let here = here.map_err(DatapathError::of_map("carry over", maps::DIRECT))?;
    let known: HashSet<_> = here
        .into_iter()
        .filter(|(_, seen)| *seen != 0)
        .map(|(place, _)| place)
        .collect();
    let (mut places, mut all) = (Vec::new(), Vec::new());
    each(source, target, maps::DIRECT, |place: u32, seen: u32| {
        if seen != 0 && !known.contains(&place) {
            places.push(place);
            all.push(seen);
        }
    })?;
    // If the kernel refuses an element, that connection is not copied.
    _ = table.update_all(&places, &all);
    Ok(())
}

fn carry_fragments<A: Family>(source: &Path, target: &Path) -> Result<(), DatapathError> {
    let table: Table<FragmentKey<A>, u32> = table(target, A::FRAGMENTS)?;
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    each(source, target, A::FRAGMENTS, |key, value| {
        keys.push(key);
        values.push(value);
    })?;
    // A fragment that does not fit costs one datagram.
    _ = table.update_all(&keys, &values);
    Ok(())
}
