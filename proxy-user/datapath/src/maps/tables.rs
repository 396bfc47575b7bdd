// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hash maps and tries, read and written in batches of many elements per system call. Used by all
//! other modules.

use std::{io, os::fd::OwnedFd};

use linux::{Plain, Typed};

/// Elements per system call. Larger batches are no faster (measured) and need larger buffers.
const BATCH: usize = 4096;
const TRIES: usize = 5;

/// A hash map or trie.
pub struct Table<K, V> {
    map: Typed<K, V>,
}

/// An element that the kernel refused to write or remove.
#[derive(Debug)]
pub struct Refused {
    /// The element's position in the caller's list.
    pub position: usize,
    pub error: io::Error,
}

impl<K: Plain, V: Plain> Table<K, V> {
    /// Wraps a map. Its shape must have been checked.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            map: Typed::new(fd)?,
        })
    }
    /// Returns the maximum number of elements.
    pub fn capacity(&self) -> u32 {
        self.map.info().max_entries
    }
    /// Returns the value of a key; `None` if the map does not have the key.
    pub fn lookup(&self, key: &K) -> io::Result<Option<V>> {
        linux::lookup(&self.map, key)
    }
    /// Stores one element.
    pub fn update(&self, key: &K, value: &V) -> io::Result<()> {
        linux::update(&self.map, key, value)
    }
    /// Removes one element; true if it existed.
    pub fn delete(&self, key: &K) -> io::Result<bool> {
        linux::delete(&self.map, key)
    }

    /// Stores all elements. Skips those that the kernel refuses and returns them.
    pub fn update_all(&self, keys: &[K], values: &[V]) -> Vec<Refused> {
        let mut refused = Vec::new();
        let mut at = 0;
        while at < keys.len() {
            let end = (at + BATCH).min(keys.len());
            let Err((done, _)) = linux::update_batch(&self.map, &keys[at..end], &values[at..end])
            else {
                at = end;
                continue;
            };
            // Try the failed element alone to get its error; it may succeed once the bucket's lock
            // is free.
            at += done;
            if let Err(error) = retry(|| self.update(&keys[at], &values[at])) {
                refused.push(Refused {
                    position: at,
                    error,
                });
            }
            at += 1;
        }
        refused
    }
    /// Removes the elements with these keys; missing ones count as removed. Returns those that the
    /// kernel refuses to remove.
    pub fn delete_all(&self, keys: &[K]) -> Vec<Refused> {
        let mut refused = Vec::new();
        let mut at = 0;
        while at < keys.len() {
            let end = (at + BATCH).min(keys.len());
            let Err((done, _)) = linux::delete_batch(&self.map, &keys[at..end]) else {
                at = end;
                continue;
            };
            at += done;
            if let Err(error) = retry(|| self.delete(&keys[at])) {
                refused.push(Refused {
                    position: at,
                    error,
                });
            }
            at += 1;
        }
        refused
    }
    /// Returns all elements. An element that is added or removed during the call may be missing,
    /// and one that moves may occur twice. The call always ends.
    pub fn entries(&self) -> io::Result<Vec<(K, V)>> {
        let mut entries = Vec::new();
        let mut walk = Walk::new(BATCH.min(self.capacity().max(1) as usize));
        // A walk through a trie restarts when the key of its cursor is removed, so it needs a
        // limit. A walk through a hash map does not.
        for _ in 0..4 * self.capacity() as usize / BATCH + 64 {
            if !walk.step(self, |key, value| entries.push((key, value)))? {
                break;
            }
        }
        Ok(entries)
    }
}

fn retry<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..TRIES {
        match attempt() {
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EBUSY | libc::EAGAIN | libc::EINTR | libc::EDEADLK)
                ) => {}
            result => return result,
        }
    }
    attempt()
}

/// A walk through a table in steps, bucket by bucket. It reaches an end even if the table changes
/// all the time.
pub struct Walk {
    cursor: Vec<u8>,
    batch: usize,
}

impl Walk {
    /// Returns a walk from the start, with at most `batch` elements per step.
    pub fn new(batch: usize) -> Self {
        Self {
            cursor: Vec::new(),
            batch,
        }
    }
    /// True if the next step starts at the beginning.
    pub fn is_at_start(&self) -> bool {
        self.cursor.is_empty()
    }
    /// Calls `visit` with the next elements. Returns `false` at the table's end; the next step then
    /// starts at the beginning.
    pub fn step<K: Plain, V: Plain>(
        &mut self,
        table: &Table<K, V>,
        mut visit: impl FnMut(K, V),
    ) -> io::Result<bool> {
        let mut interruptions = 0;
        loop {
            let mut keys = vec![K::zeroed(); self.batch];
            let mut values = vec![V::zeroed(); self.batch];
            match linux::lookup_batch(&table.map, &mut self.cursor, &mut keys, &mut values) {
                Ok((count, last)) => {
                    keys.into_iter()
                        .zip(values)
                        .take(count)
                        .for_each(|(key, value)| visit(key, value));
                    if last {
                        self.cursor.clear();
                    }
                    return Ok(!last);
                }
                // One bucket contains more elements than a batch.
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => self.batch *= 2,
                // A trie's cursor is a key, which may have been removed.
                Err(error) if error.raw_os_error() == Some(libc::EINTR) && interruptions < 64 => {
                    interruptions += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }
}
