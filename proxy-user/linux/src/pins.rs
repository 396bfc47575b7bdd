// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pins of maps, programs and links on a BPF file system. Used by `datapath`.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use super::bpf::{Command, bpf};

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
