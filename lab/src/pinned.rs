// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes values of a pinned BPF hash map, as bytes: tests use it to make portolan's flows older.

use std::{
    collections::HashSet,
    ffi::CString,
    io::{self, ErrorKind},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use anyhow::{Context, Result, bail};

use crate::bpf::{MAP_LOOKUP, MAP_UPDATE, call};

const NEXT_KEY: i64 = 4;
const GET: i64 = 7;

/// The most keys to read. If a key is removed meanwhile, the kernel starts again from the first
/// key, so reading might never end.
const MOST: u32 = 1 << 20;

/// Calls `change` once with the key and the value of every element of the map pinned at `path`.
/// `[key, value]` are their sizes in bytes. If `change` returns true, the value is written back.
pub fn change(
    path: &Path,
    [key, value]: [usize; 2],
    mut change: impl FnMut(&[u8], &mut [u8]) -> bool,
) -> Result<()> {
    let attempt = || format!("change the map {}", path.display());
    let map = open(path).with_context(attempt)?;
    let map = map.as_raw_fd() as u64;
    let (mut at, mut next) = (None::<Vec<u8>>, vec![0; key]);
    let mut visited = HashSet::new();
    for _ in 0..MOST {
        let before = at.as_ref().map_or(0, |key| key.as_ptr() as u64);
        // SAFETY: both keys are live and have the map's size.
        match unsafe { call(NEXT_KEY, &[map, before, next.as_mut_ptr() as u64, 0]) } {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            done => done.with_context(attempt)?,
        };
        at = Some(next.clone());
        if !visited.insert(next.clone()) {
            continue;
        }
        let mut found = vec![0; value];
        let mut request = [map, next.as_ptr() as u64, found.as_mut_ptr() as u64, 0];
        // SAFETY: key and value are live and have the map's sizes.
        let is_there = unsafe { call(MAP_LOOKUP, &request) }.is_ok();
        if is_there && change(&next, &mut found) {
            const EXISTING: u64 = 2;
            request[3] = EXISTING;
            // SAFETY: as above. The element may have been removed meanwhile.
            _ = unsafe { call(MAP_UPDATE, &request) };
        }
    }
    bail!("{}: it changes too fast", attempt())
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path is live; the descriptor is new and nobody else's.
    unsafe { call(GET, &[path.as_ptr() as u64, 0]).map(|map| OwnedFd::from_raw_fd(map)) }
}
