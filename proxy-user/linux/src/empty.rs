// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Empties a map of any type. Used by `Datapath::start_over`.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

use super::{
    answers::none_if,
    batches::BatchRequest,
    bpf::{Command, bpf},
    mapping::Mapping,
    maps::{ElementRequest, MMAPABLE, MapInfo, MapKind, map_info, possible_cpus},
};

/// Removes every element of a map; those of an array become zero.
pub fn empty_map(map: impl AsFd) -> io::Result<()> {
    const PAGE: usize = 4096;
    let info = map_info(&map)?;
    let is = |kind: MapKind| info.kind == kind as u32;
    if info.flags & MMAPABLE != 0 {
        let length = info.value_size.next_multiple_of(8) as usize * info.max_entries as usize;
        Mapping::new(&map, 0, length.next_multiple_of(PAGE))?.zero();
        return Ok(());
    }
    let map = map.as_fd().as_raw_fd() as u32;
    if is(MapKind::Array) || is(MapKind::PerCpuArray) {
        return zero(map, &info);
    }
    let mut key = vec![0_u8; info.key_size as usize];
    loop {
        let mut next = ElementRequest {
            map,
            value: key.as_mut_ptr() as u64,
            ..ElementRequest::default()
        };
        // SAFETY: without a key, the kernel writes the first key, which has the buffer's length.
        let found = unsafe { bpf(Command::MapNextKey, &mut next) };
        if none_if(&[libc::ENOENT], found)?.is_none() {
            return Ok(());
        }
        let mut delete = ElementRequest {
            map,
            key: key.as_ptr() as u64,
            ..ElementRequest::default()
        };
        // SAFETY: a key of the map's length.
        unsafe { bpf(Command::MapDelete, &mut delete) }?;
    }
}

fn zero(map: u32, info: &MapInfo) -> io::Result<()> {
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
        let mut update = BatchRequest {
            keys: keys.as_ptr() as u64,
            values: values.as_ptr() as u64,
            count: keys.len() as u32,
            map,
            ..BatchRequest::default()
        };
        // SAFETY: as many keys as the count says, and values that are long enough for every CPU.
        unsafe { bpf(Command::MapUpdateBatch, &mut update) }?;
    }
    Ok(())
}
