// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The maps that a loaded kernel program uses, pinned or not. Used by `datapath::trace`.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use super::{
    answers::text,
    bpf::{Command, by_id, object_info, program_by_id},
};

/// The start of the kernel's `struct bpf_prog_info`.
#[repr(C)]
#[derive(Default)]
struct ProgramInfo {
    _head: [u32; 13],
    maps: u32,
    map_ids: u64,
    _name: [u8; 16],
}

/// The start of the kernel's `struct bpf_map_info`.
#[repr(C)]
#[derive(Default)]
struct NamedMapInfo {
    _head: [u32; 6],
    name: [u8; 16],
}

/// A map that a kernel program uses.
pub struct UsedMap {
    pub id: u32,
    /// The map's name; the kernel cuts it after 15 characters.
    pub name: String,
    pub fd: OwnedFd,
}

/// Returns the maps that the program with this id uses.
pub fn maps_of_program(id: u32) -> io::Result<Vec<UsedMap>> {
    let program = program_by_id(id)?;
    let mut info = ProgramInfo::default();
    object_info(program.as_fd(), &mut info)?;
    let mut ids = vec![0_u32; info.maps as usize];
    let mut list = ProgramInfo {
        maps: info.maps,
        map_ids: ids.as_mut_ptr() as u64,
        ..ProgramInfo::default()
    };
    object_info(program.as_fd(), &mut list)?;
    let maps = ids.into_iter().map(|id| {
        let fd = by_id(Command::MapById, id)?;
        let mut info = NamedMapInfo::default();
        object_info(fd.as_fd(), &mut info)?;
        let name = text(&info.name);
        Ok(UsedMap { id, name, fd })
    });
    maps.collect()
}
