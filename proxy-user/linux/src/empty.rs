// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Empties a map of any type. Used by `Datapath::start_over`.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use super::{
    answers::none_if,
    batches::change,
    bpf::{Command, bpf},
    mapping::Mapping,
    maps::{ElementRequest, MMAPABLE, MapInfo, MapKind, map_info, possible_cpus},
};

/// Removes every element of a map; those of an array become zero.
pub fn empty_map(map: impl AsFd) -> io::Result<()> {
    const PAGE: usize = 4096;
    let info = map_info(&map)?;
    if info.flags & MMAPABLE != 0 {
        let length = info.value_size.next_multiple_of(8) as usize * info.max_entries as usize;
        Mapping::new(&map, 0, length.next_multiple_of(PAGE))?.zero();
        return Ok(());
    }
    if [MapKind::Array as u32, MapKind::PerCpuArray as u32].contains(&info.kind) {
        return zero(map.as_fd(), &info);
    }
    let mut key = vec![0_u8; info.key_size as usize];
    let address = key.as_mut_ptr() as u64;
    // Without a key, the kernel writes the first key as the value.
    let [next, delete] = [(0, address), (address, 0)].map(|(key, value)| ElementRequest {
        map: map.as_fd().as_raw_fd() as u32,
        key,
        value,
        ..ElementRequest::default()
    });
    loop {
        // SAFETY: the buffer has the length of the map's keys.
        let found = unsafe { bpf(Command::MapNextKey, &mut { next }) };
        if none_if(&[libc::ENOENT], found)?.is_none() {
            return Ok(());
        }
        // SAFETY: a key of the map's length.
        unsafe { bpf(Command::MapDelete, &mut { delete }) }?;
    }
}

fn zero(map: BorrowedFd<'_>, info: &MapInfo) -> io::Result<()> {
    /// Elements per system call.
    const CHUNK: u32 = 8192;
    // The kernel reads one value for each CPU, rounded up to a multiple of eight bytes.
    let cpus = if info.kind == MapKind::PerCpuArray as u32 {
        possible_cpus()?
    } else {
        1
    };
    let length = info.value_size.next_multiple_of(8) as usize * cpus;
    let values = vec![0_u8; length * CHUNK.min(info.max_entries) as usize];
    let indices: Vec<u32> = (0..info.max_entries).collect();
    for keys in indices.chunks(CHUNK as usize) {
        let (at, values) = (keys.as_ptr() as u64, values.as_ptr() as u64);
        // SAFETY: so many keys, and values that are long enough for every CPU.
        let changed = unsafe { change(Command::MapUpdateBatch, map, at, values, keys.len()) };
        changed.map_err(|(_, error)| error)?;
    }
    Ok(())
}
