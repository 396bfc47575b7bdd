// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts how full those maps are that the kernel programs fill. Leaves out the flow tables, which
//! the agent walks through anyway.

use std::path::Path;

use control::apply::Fill;
use linux::{Plain, get_pinned};
use proxy_common::{
    AffinityEntry, AffinityKey, PodAffinityKey, SocketBucket, SocketEntry, SocketKey, V4, V6, maps,
};

use super::failed;
use crate::{
    error::DatapathError,
    maps::{
        family::Family,
        pins::map_path,
        tables::{Table, Walk},
    },
};

/// How many elements one system call reads.
const STEP: usize = 4096;

/// Counts the elements of the maps of affinity and sockets. Reads them completely, which takes some
/// 10 ms for full ones.
pub fn fills(pin_dir: &Path) -> Result<Vec<Fill>, DatapathError> {
    Ok(vec![
        count::<AffinityKey<V4>, AffinityEntry>(pin_dir, V4::AFFINITY, |_| true)?,
        count::<AffinityKey<V6>, AffinityEntry>(pin_dir, V6::AFFINITY, |_| true)?,
        count::<PodAffinityKey, AffinityEntry>(pin_dir, maps::AFFINITY_PODS, |_| true)?,
        count::<SocketKey<V4>, SocketEntry<V4>>(pin_dir, V4::SOCKETS, |_| true)?,
        count::<SocketKey<V6>, SocketEntry<V6>>(pin_dir, V6::SOCKETS, |_| true)?,
        buckets::<V4>(pin_dir)?,
        buckets::<V6>(pin_dir)?,
    ])
}

fn buckets<A: Family>(pin_dir: &Path) -> Result<Fill, DatapathError> {
    let is_used = |bucket: &SocketBucket<A>| bucket.key().is_some();
    count::<u32, SocketBucket<A>>(pin_dir, A::SOCKET_BUCKETS, is_used)
}

fn count<K: Plain, V: Plain>(
    pin_dir: &Path,
    map: &'static str,
    counts: impl Fn(&V) -> bool,
) -> Result<Fill, DatapathError> {
    let table: Table<K, V> = get_pinned(&map_path(pin_dir, map), true)
        .and_then(Table::new)
        .map_err(failed(map))?;
    let mut walk = Walk::new(STEP);
    let mut entries = 0;
    // The walk goes bucket by bucket, so it ends.
    while walk
        .step(&table, |_, value| entries += u32::from(counts(&value)))
        .map_err(failed(map))?
    {}
    Ok(Fill {
        map,
        entries,
        capacity: table.capacity(),
    })
}
