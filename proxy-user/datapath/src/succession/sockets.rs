// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies the entries of sockets and of affinity from old maps to new ones.

use std::{collections::HashMap, hash::Hash, mem::offset_of, path::Path};

use linux::{Plain, get_pinned};
use proxy_common::{
    AffinityEntry, AffinityKey, PodAffinityKey, SocketBucket, SocketEntry, SocketKey, V4, V6,
    affinity::AffinityClient, maps,
};

use super::references::{Backends, GONE, Old};
use crate::{
    error::DatapathError,
    maps::{arrays::MappedArray, family::Family, tables::Table},
};

/// Copies the socket entries of one family. Returns how many entries are new, and how many did not
/// fit.
pub(super) fn carry<A: Family>(old: &Old<'_>) -> Result<(usize, usize), DatapathError> {
    let (services, backends) = (&old.references.services, old.backends::<A>());
    let mut found: Vec<(SocketKey<A>, SocketEntry<A>)> = Vec::new();
    let mut note = |key: SocketKey<A>, mut entry: SocketEntry<A>| {
        entry.service = services.get(entry.service).unwrap_or_default();
        let backend = backends.get(entry.backend, entry.generation);
        (entry.backend, entry.generation) = backend.unwrap_or(GONE);
        entry.seal(&key);
        found.push((key, entry));
    };
    old.each(A::SOCKETS, &mut note)?;
    old.each(A::SOCKET_BUCKETS, |_: u32, bucket: SocketBucket<A>| {
        if let Some(key) = bucket.key() {
            note(key, bucket.entry);
        }
    })?;
    let map: Table<SocketKey<A>, SocketEntry<A>> = old.new_table(A::SOCKETS)?;
    let buckets = Buckets::open(old.target)?;
    let (mut new, mut refused) = (0, 0);
    for (key, entry) in found {
        let overflowed = map.lookup(&key).ok().flatten();
        let known = overflowed.or_else(|| buckets.get(&key));
        if known.is_some_and(|known| known.last_used >= entry.last_used) {
            continue;
        }
        new += usize::from(known.is_none());
        if overflowed.is_none() && buckets.enter(&key, &entry) {
            continue;
        }
        let overflows = key.is_first() && overflowed.is_none();
        if overflows {
            // The bucket must count the entry before the hooks can find it.
            buckets.count_overflow(&key, 1);
        }
        if map.update(&key, &entry).is_err() {
            refused += 1;
            if overflows {
                buckets.count_overflow(&key, u32::MAX);
            }
        }
    }
    Ok((new, refused))
}

/// The map `sock_buckets`, one bucket for the first entry of a socket. The socket hooks change it
/// at the same time: see `socket::table` of the kernel programs.
struct Buckets<A: Family>(MappedArray<SocketBucket<A>>);

impl<A: Family> Buckets<A> {
    fn open(home: &Path) -> Result<Self, DatapathError> {
        let failed = DatapathError::of_map("carry over", A::SOCKET_BUCKETS);
        let array = get_pinned(&home.join(A::SOCKET_BUCKETS), false)
            .and_then(MappedArray::new)
            .map_err(failed)?;
        array.ensure(0, array.capacity()).map_err(failed)?;
        Ok(Self(array))
    }
    fn get(&self, key: &SocketKey<A>) -> Option<SocketEntry<A>> {
        let bucket = self.0.load(key.cookie.bucket_index());
        let is_its = key.is_first() && bucket.owner == SocketBucket::owner_of(key);
        is_its.then_some(bucket.entry)
    }
    /// Writes a socket's first entry into its bucket. Returns false for other entries, and if
    /// another socket has the bucket.
    fn enter(&self, key: &SocketKey<A>, entry: &SocketEntry<A>) -> bool {
        let index = key.cookie.bucket_index();
        let owner = SocketBucket::owner_of(key);
        let field = offset_of!(SocketBucket<A>, owner);
        if !key.is_first() || ![0, owner].contains(&self.0.exchange_u64(index, field, 0, owner)) {
            return false;
        }
        self.0
            .store_at(index, offset_of!(SocketBucket<A>, entry), entry);
        true
    }
    /// Adds to the bucket's number of first entries that are in the map `sockets` because the
    /// bucket was taken. Modulo 2^32: 2^32 - 1 subtracts 1.
    fn count_overflow(&self, key: &SocketKey<A>, by: u32) {
        let field = offset_of!(SocketBucket<A>, overflow);
        self.0.add_u32(key.cookie.bucket_index(), field, by);
    }
}

/// Copies the affinity of one family's clients.
pub(super) fn carry_affinity<A: Family>(old: &Old<'_>) -> Result<(), DatapathError> {
    carry_held(old, A::AFFINITY, |key: AffinityKey<A>| {
        let service = old.references.services.get(key.service)?;
        Some((AffinityKey { service, ..key }, old.backends::<A>()))
    })
}

/// Copies the affinity of pods known to the socket hooks.
pub(super) fn carry_pods(old: &Old<'_>) -> Result<(), DatapathError> {
    carry_held(old, maps::AFFINITY_PODS, |key: PodAffinityKey| {
        let service = old.references.services.get(key.service)?;
        let backends = if key.family == 6 {
            old.backends::<V6>()
        } else {
            old.backends::<V4>()
        };
        Some((PodAffinityKey { service, ..key }, backends))
    })
}

/// `translate` returns the key in the new map, and the backends of its family.
fn carry_held<'a, K: Plain + Eq + Hash + AffinityClient>(
    old: &Old<'_>,
    map: &'static str,
    translate: impl Fn(K) -> Option<(K, &'a Backends)>,
) -> Result<(), DatapathError> {
    let table: Table<K, AffinityEntry> = old.new_table(map)?;
    let here = table.entries();
    let here = here.map_err(DatapathError::of_map("carry over", map))?;
    let here: HashMap<_, _> = here.into_iter().collect();
    let (mut keys, mut entries) = (Vec::new(), Vec::new());
    old.each(map, |key: K, entry: AffinityEntry| {
        let Some((key, backends)) = translate(key) else {
            return;
        };
        let is_later = |known: &AffinityEntry| entry.last_used > known.last_used;
        if let Some((id, generation)) = backends.get(entry.backend, entry.generation)
            && here.get(&key).is_none_or(is_later)
        {
            keys.push(key);
            entries.push(AffinityEntry::new(&key, id, generation, entry.last_used));
        }
    })?;
    // The LRU map evicts old entries by itself.
    _ = table.update_all(&keys, &entries);
    Ok(())
}
