// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists every pinned map: its size, how much of it is in use, and the kernel memory that it takes.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use control::apply::Fill;
use linux::{MapInfo, MapKind, Plain, each_raw, get_pinned, map_info};
use proxy_common::{
    Backend, SocketBucket, V4, V6,
    flow::places::{Tags, VALID},
    maps,
};
use serde::Serialize;

use super::failed;
use crate::{
    error::DatapathError,
    maps::{
        pins::{layout_dir, nothing_readable},
        tables::Table,
    },
};

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MapRow {
    pub name: String,
    pub kind: &'static str,
    pub id: u32,
    /// The number of elements in use; `None` for a map whose elements always exist.
    pub entries: Option<u64>,
    pub capacity: u32,
    /// Bytes of kernel memory that the map takes according to the kernel (`memlock` in fdinfo).
    pub memory: Option<u64>,
}

impl MapRow {
    /// Returns the number of elements in use in percent of the capacity.
    pub fn fill(&self) -> Option<u64> {
        let capacity = u64::from(self.capacity).max(1);
        self.entries.map(|entries| entries * 100 / capacity)
    }
}

/// Returns every map pinned below a directory, sorted by name. Reads all elements, which takes some
/// 100 ms for a million flows.
pub fn pinned_maps(pin_dir: &Path) -> Result<Vec<MapRow>, DatapathError> {
    let home = layout_dir(pin_dir);
    fs::read_dir(&home).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => nothing_readable(pin_dir),
        _ => DatapathError::of_file("read", &home)(source),
    })?;
    let mut rows = Vec::new();
    for name in maps::ALL {
        let path = home.join(name);
        match get_pinned(&path, true) {
            Ok(fd) => rows.extend(row(name, &path, fd).ok()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(failed(name)(error));
            }
            // Another version made no such map, or the agent is removing it.
            Err(_) => {}
        }
    }
    rows.sort();
    Ok(rows)
}

/// Counts the elements of the maps of affinity and sockets, which only the kernel programs fill.
/// Reads them completely, which takes some 10 ms for full ones. The flow tables are left out: the
/// agent walks through them anyway.
pub fn fills(pin_dir: &Path) -> Result<Vec<Fill>, DatapathError> {
    const MAPS: [&str; 7] = [
        maps::AFFINITY_V4,
        maps::AFFINITY_V6,
        maps::AFFINITY_PODS,
        maps::SOCKETS_V4,
        maps::SOCKETS_V6,
        maps::SOCKET_BUCKETS_V4,
        maps::SOCKET_BUCKETS_V6,
    ];
    let home = layout_dir(pin_dir);
    let fill = |map| {
        let path = home.join(map);
        let row = get_pinned(&path, true).and_then(|fd| row(map, &path, fd));
        let row = row.map_err(failed(map))?;
        let entries = row.entries.unwrap_or(0) as u32;
        Ok(Fill::new(map, entries, row.capacity))
    };
    MAPS.into_iter().map(fill).collect()
}

fn row(name: &str, path: &Path, fd: OwnedFd) -> io::Result<MapRow> {
    let info = map_info(&fd)?;
    Ok(MapRow {
        name: name.to_owned(),
        kind: kind(&info),
        id: info.id,
        entries: entries(name, path, &info, &fd)?,
        capacity: info.max_entries,
        memory: memory(&fd),
    })
}

fn kind(info: &MapInfo) -> &'static str {
    let kinds = [
        (MapKind::Hash, "hash"),
        (MapKind::Array, "array"),
        (MapKind::PerCpuHash, "percpu_hash"),
        (MapKind::PerCpuArray, "percpu_array"),
        (MapKind::LruHash, "lru_hash"),
        (MapKind::LpmTrie, "lpm_trie"),
        (MapKind::ArrayOfMaps, "array_of_maps"),
    ];
    let known = kinds
        .into_iter()
        .find(|(kind, _)| *kind as u32 == info.kind);
    known.map_or("other", |(_, name)| name)
}

fn entries(name: &str, path: &Path, info: &MapInfo, fd: &OwnedFd) -> io::Result<Option<u64>> {
    let count = match name {
        maps::BACKENDS_V4 => elements(path, |one: &Backend<V4>| one.service.0 != 0),
        maps::BACKENDS_V6 => elements(path, |one: &Backend<V6>| one.service.0 != 0),
        maps::FLOW_SLOTS_V4 => elements(&path.with_file_name(maps::FLOW_TAGS_V4), used),
        maps::FLOW_SLOTS_V6 => elements(&path.with_file_name(maps::FLOW_TAGS_V6), used),
        maps::SOCKET_BUCKETS_V4 => elements(path, |one: &SocketBucket<V4>| one.key().is_some()),
        maps::SOCKET_BUCKETS_V6 => elements(path, |one: &SocketBucket<V6>| one.key().is_some()),
        _ if ["hash", "lru_hash", "lpm_trie"].contains(&kind(info)) => keys(fd),
        _ => return Ok(None),
    };
    count.map(Some)
}

/// Returns how many slots of a set have an entry.
fn used(tags: &Tags) -> u32 {
    tags.iter().map(|word| u32::from(word & VALID != 0)).sum()
}

/// Returns the sum of what `used` returns for each element of an array.
fn elements<V: Plain, N: Into<u64>>(path: &Path, used: impl Fn(&V) -> N) -> io::Result<u64> {
    let table: Table<u32, V> = Table::new(get_pinned(path, true)?)?;
    let mut count = 0;
    table.each(|_, value| count += Into::<u64>::into(used(&value)))?;
    Ok(count)
}

/// Counts the keys of a hash map or trie.
fn keys(fd: &OwnedFd) -> io::Result<u64> {
    let mut count = 0;
    each_raw(fd.as_fd(), |_, _| count += 1)?;
    Ok(count)
}

fn memory(fd: &OwnedFd) -> Option<u64> {
    let path = PathBuf::from(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()));
    memlock(&fs::read_to_string(path).ok()?)
}

fn memlock(fdinfo: &str) -> Option<u64> {
    let line = fdinfo
        .lines()
        .find_map(|line| line.strip_prefix("memlock:"));
    line?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_map_is_parsed_from_fdinfo() {
        let fdinfo = "pos:\t0\nmap_type:\t1\nmemlock:\t1050624\nmap_id:\t7\n";
        assert_eq!(memlock(fdinfo), Some(1_050_624));
        assert_eq!(memlock("pos:\t0\n"), None);
    }
}
