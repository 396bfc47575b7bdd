// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes values of a pinned BPF array, as bytes: tests use it to make portolan's flows older.

use std::{
    ffi::CString,
    io::{self, ErrorKind},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use anyhow::{Context, Result};

use crate::bpf::{MAP_LOOKUP, MAP_UPDATE, call};

const GET: i64 = 7;

/// Calls `change` with the index and the value, of `size` bytes, of every element of the array
/// pinned at `path`. If `change` returns true, the value is written back.
pub fn change(
    path: &Path,
    size: usize,
    mut change: impl FnMut(usize, &mut [u8]) -> bool,
) -> Result<()> {
    let attempt = || format!("change the map {}", path.display());
    let map = open(path).with_context(attempt)?;
    let mut value = vec![0; size];
    for index in 0_u32.. {
        let (key, found) = ((&raw const index) as u64, value.as_mut_ptr() as u64);
        let request = [map.as_raw_fd() as u64, key, found, 0];
        // SAFETY: key and value are live and have the map's sizes.
        match unsafe { call(MAP_LOOKUP, &request) } {
            Err(error) if error.kind() == ErrorKind::NotFound => break,
            done => done.with_context(attempt)?,
        };
        if change(index as usize, &mut value) {
            // SAFETY: as above.
            unsafe { call(MAP_UPDATE, &request) }.with_context(attempt)?;
        }
    }
    Ok(())
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path is live; the descriptor is new and nobody else's.
    unsafe { call(GET, &[path.as_ptr() as u64, 0]).map(|map| OwnedFd::from_raw_fd(map)) }
}
