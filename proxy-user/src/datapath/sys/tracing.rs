// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that the kernel runs before and after another program (fentry and fexit of a BPF program). aya loads such programs
//! for the kernel's own functions only. Used by `trace`.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use super::bpf::{Command, bpf, by_id, object_info, program_by_id};

/// The start of the kernel's `struct bpf_prog_info`.
#[repr(C)]
#[derive(Default)]
struct ProgramInfo {
    _head: [u32; 13],
    maps: u32,
    map_ids: u64,
    name: [u8; 16],
    _interface: [u32; 2],
    _namespace: [u64; 2],
    _symbols: [u32; 2],
    _symbol_lists: [u64; 2],
    btf: u32,
    function_size: u32,
    function_list: u64,
    functions: u32,
    _lines: u32,
    _line_lists: [u64; 2],
    _line_sizes: [u32; 4],
    _tags: u64,
    _runs: [u64; 2],
    missed: u64,
}

/// A loaded program that can be traced.
pub struct TracedProgram {
    pub fd: OwnedFd,
    pub name: String,
    /// Its maps, by their ids.
    pub maps: Vec<u32>,
    /// The type of its entry, in its own type information; 0 if it has none.
    pub entry: u32,
}

/// What the kernel says of the program with this id.
pub fn traced_program(id: u32) -> io::Result<TracedProgram> {
    let fd = program_by_id(id)?;
    let mut info = ProgramInfo::default();
    object_info(fd.as_fd(), &mut info)?;
    let mut maps = vec![0_u32; info.maps as usize];
    // The entry is the first function: an offset and a type.
    let mut entry = vec![0_u32; (info.function_size as usize / 4).max(2)];
    let mut lists = ProgramInfo {
        maps: info.maps,
        map_ids: maps.as_mut_ptr() as u64,
        function_size: info.function_size,
        functions: info.functions.min(1),
        function_list: entry.as_mut_ptr() as u64,
        ..ProgramInfo::default()
    };
    object_info(fd.as_fd(), &mut lists)?;
    let name = info.name.split(|byte| *byte == 0).next();
    Ok(TracedProgram {
        fd,
        name: String::from_utf8_lossy(name.unwrap_or_default()).into_owned(),
        maps,
        entry: if info.btf == 0 || info.functions == 0 {
            0
        } else {
            entry[1]
        },
    })
}

/// How often the kernel has left out a program because it was running on that CPU already.
pub fn missed_runs(program: BorrowedFd<'_>) -> io::Result<u64> {
    let mut info = ProgramInfo::default();
    object_info(program, &mut info)?;
    Ok(info.missed)
}

/// A descriptor of the map with this id, and its name.
pub fn map_by_id(id: u32) -> io::Result<(OwnedFd, String)> {
    #[repr(C)]
    #[derive(Default)]
    struct NamedMapInfo {
        _sizes: [u32; 6],
        name: [u8; 16],
    }
    let fd = by_id(Command::MapById, id)?;
    let mut info = NamedMapInfo::default();
    object_info(fd.as_fd(), &mut info)?;
    let name = info.name.split(|byte| *byte == 0).next();
    let name = String::from_utf8_lossy(name.unwrap_or_default()).into_owned();
    Ok((fd, name))
}

/// A program's instructions, with the descriptors of its maps in them.
pub struct Instructions(pub Vec<u64>);

/// The part of `union bpf_attr` for loading.
#[repr(C)]
#[derive(Default)]
struct LoadRequest {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    _version: u32,
    flags: u32,
    name: [u8; 16],
    _interface: u32,
    attach_type: u32,
    _types: [u32; 2],
    _functions: u64,
    _function_count: u32,
    _line_size: u32,
    _lines: u64,
    _line_count: u32,
    attach_to_type: u32,
    attach_to_program: u32,
    _rest: u32,
}

/// Loads a program that runs before (`at_end`: after) another one.
pub fn load_tracing(
    name: &str,
    instructions: &Instructions,
    target: &TracedProgram,
    at_end: bool,
) -> io::Result<OwnedFd> {
    const TRACING: u32 = 26;
    const FENTRY: u32 = 24;
    const FEXIT: u32 = 25;
    const LOG: usize = 1 << 20;
    let mut request = LoadRequest {
        kind: TRACING,
        count: instructions.0.len() as u32,
        instructions: instructions.0.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
        attach_type: if at_end { FEXIT } else { FENTRY },
        attach_to_type: target.entry,
        attach_to_program: target.fd.as_raw_fd() as u32,
        ..LoadRequest::default()
    };
    for (to, from) in request.name.iter_mut().take(15).zip(name.bytes()) {
        *to = from;
    }
    // SAFETY: instructions, license and name live until the call returns; the result is a new descriptor.
    let loaded =
        unsafe { bpf(Command::ProgramLoad, &mut request).map(|fd| OwnedFd::from_raw_fd(fd)) };
    let Err(error) = loaded else {
        return loaded;
    };
    // Again, for the verifier's reason.
    let mut log = vec![0_u8; LOG];
    (request.log_level, request.log_size) = (1, LOG as u32);
    request.log = log.as_mut_ptr() as u64;
    // SAFETY: as above, and so does the log.
    if let Ok(fd) = unsafe { bpf(Command::ProgramLoad, &mut request) } {
        // SAFETY: a new descriptor.
        return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    let lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(3)..].join("; ");
    Err(io::Error::new(error.kind(), format!("{error}: {last}")))
}

/// Attaches a tracing program; it is detached when the descriptor is closed.
pub fn attach_tracing(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct OpenRequest {
        name: u64,
        program: u32,
        _pad: u32,
    }
    let mut request = OpenRequest {
        name: 0,
        program: program.as_raw_fd() as u32,
        _pad: 0,
    };
    // SAFETY: the request holds no pointer; the result is a new descriptor.
    unsafe { bpf(Command::RawTracepointOpen, &mut request).map(|fd| OwnedFd::from_raw_fd(fd)) }
}
