// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maps as tables of typed elements, read and written one by one, or many per system call. Used by
//! all of `datapath`.

use std::{
    io,
    marker::PhantomData,
    ops::Range,
    os::fd::{AsFd, OwnedFd},
    slice,
};

use super::{
    answers::{is_one_of, none_if},
    bpf::{Command, address_of},
    maps::{MapInfo, change, each_raw, element, map_info},
    plain::Plain,
};

pub use super::maps::{BATCH, Walk};

const TRIES: usize = 5;

/// A map whose keys and values are known to have the sizes of `K` and `V`.
pub struct Table<K, V> {
    fd: OwnedFd,
    info: MapInfo,
    /// How many values an element has: one, or one for each CPU.
    per_element: usize,
    types: PhantomData<fn() -> (K, V)>,
}

/// An element that the kernel refused to write or remove.
#[derive(Debug)]
pub struct Refused {
    /// The element's position in the caller's list.
    pub position: usize,
    pub error: io::Error,
}

impl<K: Plain, V: Plain> Table<K, V> {
    /// Wraps a map; fails if its keys and values do not have the sizes of `K` and `V`: the kernel
    /// would access memory out of bounds.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        Self::with_values(fd, 1)
    }
    /// Does the same for a map whose elements have so many values.
    pub(super) fn with_values(fd: OwnedFd, per_element: usize) -> io::Result<Self> {
        let info = map_info(&fd)?;
        let found = (info.key_size as usize, info.value_size as usize);
        let wanted = (size_of::<K>(), size_of::<V>());
        if found != wanted {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "its keys and values have {} and {} bytes, not {} and {}: another program made it, or another version of portolan",
                    found.0, found.1, wanted.0, wanted.1
                ),
            ));
        }
        Ok(Self {
            fd,
            info,
            per_element,
            types: PhantomData,
        })
    }
    pub fn capacity(&self) -> u32 {
        self.info.max_entries
    }

    /// Reads the values of a key; false if the map does not have the key.
    pub(super) fn read(&self, key: &K, values: &mut [V]) -> io::Result<bool> {
        assert_eq!(values.len(), self.per_element, "all values of an element");
        let addresses = (address_of(key), values.as_mut_ptr() as u64);
        // SAFETY: key and values are live, and as many and as long as the map's.
        let read = unsafe { element(self.fd.as_fd(), Command::MapLookup, addresses, 0) };
        Ok(none_if(&[libc::ENOENT], read)?.is_some())
    }
    pub(super) fn write(&self, key: &K, values: &[V], flags: u64) -> io::Result<()> {
        assert_eq!(values.len(), self.per_element, "all values of an element");
        let addresses = (address_of(key), values.as_ptr() as u64);
        // SAFETY: as in `read`.
        unsafe { element(self.fd.as_fd(), Command::MapUpdate, addresses, flags) }
    }
    /// Returns the value of a key; `None` if the map does not have the key.
    pub fn lookup(&self, key: &K) -> io::Result<Option<V>> {
        let mut value = V::zeroed();
        let is_there = self.read(key, slice::from_mut(&mut value))?;
        Ok(is_there.then_some(value))
    }
    /// Stores one element; replaces the value if the key exists.
    pub fn update(&self, key: &K, value: &V) -> io::Result<()> {
        self.write(key, slice::from_ref(value), 0)
    }
    /// Removes one element; true if it existed.
    pub fn delete(&self, key: &K) -> io::Result<bool> {
        let addresses = (address_of(key), 0);
        // SAFETY: the key is live; the command knows no value.
        let removed = unsafe { element(self.fd.as_fd(), Command::MapDelete, addresses, 0) };
        Ok(none_if(&[libc::ENOENT], removed)?.is_some())
    }

    /// Stores all elements. Skips those that the kernel refuses and returns them.
    pub fn update_all(&self, keys: &[K], values: &[V]) -> Vec<Refused> {
        in_batches(
            keys.len(),
            |part| self.store(&keys[part.clone()], &values[part]),
            |at| self.update(&keys[at], &values[at]),
        )
    }
    /// Stores elements in order. An error comes with the number of elements stored before it.
    pub(super) fn store(&self, keys: &[K], values: &[V]) -> Result<(), (usize, io::Error)> {
        let count = keys.len();
        assert_eq!(values.len(), count * self.per_element, "values of each key");
        let (fd, keys, values) = (self.fd.as_fd(), keys.as_ptr(), values.as_ptr());
        let update = Command::MapUpdateBatch;
        // SAFETY: so many keys, and all their values, each as long as the map's.
        unsafe { change(update, fd, keys as u64, values as u64, count) }
    }
    /// Removes the elements with these keys; missing ones count as removed. Returns those that the
    /// kernel refuses to remove.
    pub fn delete_all(&self, keys: &[K]) -> Vec<Refused> {
        let many = |part: Range<usize>| {
            let (fd, keys) = (self.fd.as_fd(), &keys[part]);
            let delete = Command::MapDeleteBatch;
            // SAFETY: so many keys, as long as the map's; the command reads no values.
            unsafe { change(delete, fd, keys.as_ptr() as u64, 0, keys.len()) }
        };
        in_batches(keys.len(), many, |at| self.delete(&keys[at]).map(drop))
    }
    /// Visits all elements, in parts. An element that is added or removed during the call may be
    /// missing, and one that moves may occur twice. The call always ends.
    pub fn each(&self, visit: impl FnMut(K, V)) -> io::Result<()> {
        each_raw(self.fd.as_fd(), typed(visit))
    }
    /// Returns all elements, as [`Self::each`] visits them.
    pub fn entries(&self) -> io::Result<Vec<(K, V)>> {
        let mut entries = Vec::new();
        self.each(|key, value| entries.push((key, value)))?;
        Ok(entries)
    }
}

/// Returns a function that visits elements that are given as bytes.
fn typed<K: Plain, V: Plain>(mut visit: impl FnMut(K, V)) -> impl FnMut(&[u8], &[u8]) {
    move |key: &[u8], value: &[u8]| {
        if let (Some(key), Some(value)) = (K::from_bytes(key), V::from_bytes(value)) {
            visit(key, value);
        }
    }
}

/// Handles this many elements, many at a time (`many`). `one` handles the one that failed. Returns
/// those that the kernel refuses.
fn in_batches(
    count: usize,
    many: impl Fn(Range<usize>) -> Result<(), (usize, io::Error)>,
    one: impl Fn(usize) -> io::Result<()>,
) -> Vec<Refused> {
    let mut refused = Vec::new();
    let mut position = 0;
    while position < count {
        let end = (position + BATCH).min(count);
        let Err((done, _)) = many(position..end) else {
            position = end;
            continue;
        };
        // Try the failed element alone to get its error; it may succeed once the bucket's lock is
        // free.
        position += done;
        if let Err(error) = retry(|| one(position)) {
            refused.push(Refused { position, error });
        }
        position += 1;
    }
    refused
}

/// Returns the error of the first refused element.
pub fn first_error(refused: Vec<Refused>) -> io::Result<()> {
    let first = refused.into_iter().next();
    first.map_or(Ok(()), |first| Err(first.error))
}

fn retry<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    const BUSY: [i32; 4] = [libc::EBUSY, libc::EAGAIN, libc::EINTR, libc::EDEADLK];
    for _ in 1..TRIES {
        match attempt() {
            Err(error) if is_one_of(&BUSY, &error) => {}
            result => return result,
        }
    }
    attempt()
}

impl Walk {
    /// Calls `visit` with the next elements. Returns `false` at the table's end; the next step then
    /// starts at the beginning.
    pub fn step<K: Plain, V: Plain>(
        &mut self,
        table: &Table<K, V>,
        visit: impl FnMut(K, V),
    ) -> io::Result<bool> {
        self.step_raw(table.fd.as_fd(), &table.info, 1, typed(visit))
    }
    /// Does the same for elements that may have several values.
    pub(super) fn step_by_values<K: Plain, V: Plain>(
        &mut self,
        table: &Table<K, V>,
        mut visit: impl FnMut(K, &[V]),
    ) -> io::Result<bool> {
        let (fd, per_element) = (table.fd.as_fd(), table.per_element);
        self.step_raw(fd, &table.info, per_element, |key, values| {
            let values = values.chunks_exact(size_of::<V>());
            let values: Vec<V> = values.filter_map(V::from_bytes).collect();
            if let Some(key) = K::from_bytes(key) {
                visit(key, &values);
            }
        })
    }
}
