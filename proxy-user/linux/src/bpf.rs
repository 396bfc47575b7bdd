// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The system call bpf(2), and those of its commands that work on every kind of object (maps,
//! programs, links, BTF), pins included. Used by the other files of this crate, and by `datapath`.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use nix::errno::Errno;

use super::answers::text;

/// Commands of bpf(2), from the kernel's `enum bpf_cmd`.
#[derive(Clone, Copy)]
#[repr(i32)]
pub(super) enum Command {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    MapNextKey = 4,
    ObjectPin = 6,
    ObjectGet = 7,
    TestRun = 10,
    ProgramById = 13,
    ObjectInfo = 15,
    ProgramQuery = 16,
    MapTake = 21,
    MapLookupBatch = 24,
    MapUpdateBatch = 26,
    MapDeleteBatch = 27,
    LinkCreate = 28,
    LinkUpdate = 29,
    LinkDetach = 34,
}

/// Calls bpf(2). `attributes` is the part of the kernel's `union bpf_attr` that the command reads.
///
/// # Safety
/// Every pointer in the attributes must be valid for what the command does with it.
pub(super) unsafe fn bpf<T>(command: Command, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: the attributes are a live value of the size given; the caller promises that their
    // pointers are valid.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as i32,
            std::ptr::from_mut(attributes),
            size_of::<T>() as u32,
        )
    };
    Ok(Errno::result(result)? as i32)
}

pub(super) fn address_of<T>(value: &T) -> u64 {
    std::ptr::from_ref(value) as u64
}

#[repr(C)]
#[derive(Default)]
struct InfoRequest {
    fd: u32,
    length: u32,
    info: u64,
}

/// The start of the kernel's `struct bpf_prog_info`.
#[repr(C)]
#[derive(Default)]
struct ProgramInfo {
    kind: u32,
    id: u32,
    _rest: [u64; 7],
    name: [u8; 16],
}

/// Returns the id of a loaded program.
pub fn program_id(program: BorrowedFd<'_>) -> io::Result<u32> {
    let mut info = ProgramInfo::default();
    object_info(program, &mut info)?;
    Ok(info.id)
}

/// Returns a program as messages name it: by its id, and its name if it has one.
pub fn describe_program(id: u32) -> String {
    match program_name(id) {
        Some(name) => format!("program {id} ({name})"),
        None => format!("program {id}"),
    }
}

/// Returns the name of the program with this id; `None` if the program has no name, or if the
/// caller lacks CAP_SYS_ADMIN.
pub fn program_name(id: u32) -> Option<String> {
    let (next, flags) = (0, 0);
    let mut request = [id, next, flags];
    // SAFETY: the request holds no pointer; the result is a new descriptor.
    let program = unsafe {
        let fd = bpf(Command::ProgramById, &mut request).ok()?;
        OwnedFd::from_raw_fd(fd)
    };
    let mut info = ProgramInfo::default();
    object_info(program.as_fd(), &mut info).ok()?;
    let name = text(&info.name);
    (!name.is_empty()).then_some(name)
}

/// Fills `info` with what the kernel says about the object, at most the size of `T`
/// (BPF_OBJ_GET_INFO_BY_FD).
pub(super) fn object_info<T>(fd: BorrowedFd<'_>, info: &mut T) -> io::Result<()> {
    let mut request = InfoRequest {
        fd: fd.as_raw_fd() as u32,
        length: size_of::<T>() as u32,
        info: std::ptr::from_mut(info) as u64,
    };
    // SAFETY: `info` is exclusively borrowed and `length` is its size.
    unsafe { bpf(Command::ObjectInfo, &mut request) }.map(drop)
}

/// Waits until every run of a kernel program that was under way has ended.
pub fn wait_for_programs() {
    const GLOBAL: libc::c_long = 1;
    // SAFETY: membarrier(2) takes plain numbers. This command waits until every CPU has left its
    // RCU section, in which programs run.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) };
    if result < 0 {
        // membarrier(2) fails with isolated CPUs. A program runs for microseconds only.
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

const READ_ONLY: u32 = 1 << 3;

#[repr(C)]
#[derive(Default)]
struct PinRequest {
    path: u64,
    fd: u32,
    flags: u32,
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

/// Pins a map, program or link at a path that does not exist yet.
pub fn pin(fd: impl AsFd, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let mut request = PinRequest {
        path: path.as_ptr() as u64,
        fd: fd.as_fd().as_raw_fd() as u32,
        flags: 0,
    };
    // SAFETY: the path is a live, terminated string.
    unsafe { bpf(Command::ObjectPin, &mut request) }.map(drop)
}

/// Opens the map, program or link that is pinned at a path; links cannot be opened read-only.
pub fn get_pinned(path: &Path, read_only: bool) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let mut request = PinRequest {
        path: path.as_ptr() as u64,
        fd: 0,
        flags: if read_only { READ_ONLY } else { 0 },
    };
    // SAFETY: the path is a live, terminated string; the result is a new descriptor.
    unsafe { bpf(Command::ObjectGet, &mut request).map(|fd| OwnedFd::from_raw_fd(fd)) }
}
