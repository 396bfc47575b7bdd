// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads and writes many elements of a map by one system call (Linux 5.6). Used by `tables`.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use super::{
    answers::none_if,
    bpf::{Command, bpf},
    maps::{ElementRequest, MapInfo, map_info},
    plain::Plain,
    tables::Table,
};

/// The part of the kernel's `union bpf_attr` for commands on many elements.
#[repr(C)]
#[derive(Default)]
pub(super) struct BatchRequest {
    pub(super) in_batch: u64,
    pub(super) out_batch: u64,
    pub(super) keys: u64,
    pub(super) values: u64,
    pub(super) count: u32,
    pub(super) map: u32,
    pub(super) element_flags: u64,
    pub(super) flags: u64,
}

/// Stores elements in order. An error comes with the number of elements stored before it.
pub(super) fn update_batch<K: Plain, V: Plain>(
    map: &Table<K, V>,
    keys: &[K],
    values: &[V],
) -> Result<(), (usize, io::Error)> {
    assert_eq!(keys.len(), values.len(), "one value for each key");
    let values = values.as_ptr() as u64;
    // SAFETY: `values` has one for each key, each as long as the map's.
    unsafe { change(Command::MapUpdateBatch, map, keys, values) }
}

/// Removes elements in order. An error comes with the number of elements removed before it; a
/// missing key is an error.
pub(super) fn delete_batch<K: Plain, V: Plain>(
    map: &Table<K, V>,
    keys: &[K],
) -> Result<(), (usize, io::Error)> {
    // SAFETY: the command reads no values.
    unsafe { change(Command::MapDeleteBatch, map, keys, 0) }
}

/// Stores or removes elements. An error comes with the number of elements handled before it.
///
/// # Safety
/// `values` must be the address of as many values as there are keys, if the command reads them.
unsafe fn change<K: Plain, V: Plain>(
    command: Command,
    map: &Table<K, V>,
    keys: &[K],
    values: u64,
) -> Result<(), (usize, io::Error)> {
    if keys.is_empty() {
        return Ok(());
    }
    let mut request = BatchRequest {
        keys: keys.as_ptr() as u64,
        values,
        count: keys.len() as u32,
        map: map.fd().as_raw_fd() as u32,
        ..BatchRequest::default()
    };
    // SAFETY: `count` keys lie behind the pointer, each as long as the map's; the values are the
    // caller's promise.
    let changed = unsafe { bpf(command, &mut request) };
    // The kernel stores the count even when it fails, but perhaps not before the first element.
    let done = Some(request.count as usize).filter(|count| *count < keys.len());
    changed
        .map(drop)
        .map_err(|error| (done.unwrap_or(0), error))
}

/// Elements of a map as bytes, for types that are not known here: all keys one after another, and
/// all values.
#[derive(Debug, Default)]
pub struct Raw {
    pub keys: Vec<u8>,
    pub values: Vec<u8>,
}

/// Reads up to `count` elements, from `cursor` on (empty at the start), which it moves. Returns the
/// elements, and true if no more follow.
pub fn lookup_raw(
    map: BorrowedFd<'_>,
    cursor: &mut Vec<u8>,
    count: usize,
) -> io::Result<(Raw, bool)> {
    let info = map_info(map)?;
    let per_cpu = [5, 6, 10].contains(&info.kind);
    if per_cpu {
        return Err(io::Error::other("a value for each CPU"));
    }
    let (key, value) = (info.key_size as usize, info.value_size as usize);
    let mut raw = Raw {
        keys: vec![0; count * key],
        values: vec![0; count * value],
    };
    let pointers = (raw.keys.as_mut_ptr(), raw.values.as_mut_ptr());
    // SAFETY: both buffers hold `count` elements of the map's own sizes.
    let (read, last) = unsafe { lookup(map, cursor, key, pointers, count) }?;
    raw.keys.truncate(read * key);
    raw.values.truncate(read * value);
    Ok((raw, last))
}

/// Reads the value of one key, both as bytes, and removes it if `takes`. `value` gets the value and
/// must have the map's size. False if the map does not have the key.
pub fn lookup_one(
    map: BorrowedFd<'_>,
    info: &MapInfo,
    (key, value): (&[u8], &mut [u8]),
    takes: bool,
) -> io::Result<bool> {
    if (key.len(), value.len()) != (info.key_size as usize, info.value_size as usize) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut request = ElementRequest {
        map: map.as_raw_fd() as u32,
        key: key.as_ptr() as u64,
        value: value.as_mut_ptr() as u64,
        ..ElementRequest::default()
    };
    let command = if takes {
        Command::MapTake
    } else {
        Command::MapLookup
    };
    // SAFETY: both buffers are live, and as long as the map's keys and values.
    let read = unsafe { bpf(command, &mut request) };
    Ok(none_if(&[libc::ENOENT], read)?.is_some())
}

/// Reads elements from `cursor` on (empty at the start), which it moves, until the buffers are
/// full. Returns the number of elements read, and true if no more follow.
pub(super) fn lookup_batch<K: Plain, V: Plain>(
    map: &Table<K, V>,
    cursor: &mut Vec<u8>,
    keys: &mut [K],
    values: &mut [V],
) -> io::Result<(usize, bool)> {
    let count = keys.len().min(values.len());
    let pointers = (keys.as_mut_ptr().cast(), values.as_mut_ptr().cast());
    // SAFETY: both buffers hold `count` elements, each as long as the map's, for which every bit
    // pattern is valid.
    unsafe { lookup(map.fd(), cursor, size_of::<K>(), pointers, count) }
}

/// # Safety
/// The map's keys must have `key` bytes, and both buffers must have space for `count` elements.
pub(super) unsafe fn lookup(
    map: BorrowedFd<'_>,
    cursor: &mut Vec<u8>,
    key: usize,
    (keys, values): (*mut u8, *mut u8),
    count: usize,
) -> io::Result<(usize, bool)> {
    // The cursor of a hash map is a bucket number, that of an array or a trie is a key.
    let mut next = vec![0u8; key.max(size_of::<u64>())];
    let mut request = BatchRequest {
        in_batch: if cursor.is_empty() {
            0
        } else {
            cursor.as_ptr() as u64
        },
        out_batch: next.as_mut_ptr() as u64,
        keys: keys as u64,
        values: values as u64,
        count: count as u32,
        map: map.as_raw_fd() as u32,
        ..BatchRequest::default()
    };
    // SAFETY: the cursor (as long as `next`, from the last call) and `next` have space for a key;
    // the rest is the caller's promise.
    let read = unsafe { bpf(Command::MapLookupBatch, &mut request) };
    let is_last = none_if(&[libc::ENOENT], read)?.is_none();
    if !is_last {
        *cursor = next;
    }
    Ok((request.count as usize, is_last))
}
