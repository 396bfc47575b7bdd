// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads and writes many elements of a map by one system call (Linux 5.6). Used by `tables` and
//! `empty`.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use super::{
    answers::none_if,
    bpf::{Command, bpf},
    maps::map_info,
};

/// The part of the kernel's `union bpf_attr` for commands on many elements.
#[repr(C)]
#[derive(Default)]
struct BatchRequest {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: u32,
    element_flags: u64,
    flags: u64,
}

/// Stores or removes elements in order. An error comes with the number of elements handled before
/// it; to remove a missing key is an error.
///
/// # Safety
/// `keys` must be the address of `count` keys, and `values` that of the values of as many elements
/// if the command reads them.
pub(super) unsafe fn change(
    command: Command,
    map: BorrowedFd<'_>,
    keys: u64,
    values: u64,
    count: usize,
) -> Result<(), (usize, io::Error)> {
    if count == 0 {
        return Ok(());
    }
    let mut request = BatchRequest {
        keys,
        values,
        count: count as u32,
        map: map.as_raw_fd() as u32,
        ..BatchRequest::default()
    };
    // SAFETY: the keys and values are the caller's promise.
    let changed = unsafe { bpf(command, &mut request) };
    // The kernel stores the count even when it fails, but perhaps not before the first element.
    let done = Some(request.count as usize).filter(|done| *done < count);
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

/// Reads elements from `cursor` on (empty at the start), which it moves, until the buffers are
/// full. Returns the number of elements read, and true if no more follow.
///
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
    let start = (!cursor.is_empty()).then(|| cursor.as_ptr() as u64);
    let mut request = BatchRequest {
        in_batch: start.unwrap_or(0),
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
