// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connect by io_uring without a library: one ring, one submission.
#![expect(unsafe_code, reason = "io_uring has no safe wrapper here")]

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    ptr,
};

use socket2::SockAddr;

const CONNECT: u8 = 16;
const ENTER_GETEVENTS: u32 = 1;
const SUBMISSIONS: libc::off_t = 0;
const ENTRIES: libc::off_t = 0x1000_0000;

/// The fields of `struct io_uring_params` that are used here.
#[repr(C)]
#[derive(Default)]
struct Parameters {
    submissions: u32,
    completions: u32,
    flags: u32,
    _skipped: [u32; 7],
    /// Offsets in the ring: head, tail, ring_mask, ring_entries, flags, dropped, array, reserved.
    submission: [u32; 8],
    _address: u64,
    /// Offsets in the ring: head, tail, ring_mask, ring_entries, overflow, cqes, flags, reserved.
    completion: [u32; 8],
    _other: u64,
}

/// A submission: `struct io_uring_sqe`.
#[repr(C)]
#[derive(Default)]
struct Entry {
    operation: u8,
    flags: u8,
    priority: u16,
    fd: i32,
    offset: u64,
    address: u64,
    rest: [u64; 5],
}

/// Connects a socket by io_uring, and waits for the result.
pub(crate) fn connect(socket: &OwnedFd, to: SocketAddr) -> io::Result<()> {
    let mut parameters = Parameters::default();
    let target = SockAddr::from(to);
    // SAFETY: the kernel fills the parameters; both mappings are as long as it says, are used
    // within their bounds by the offsets that it gave, and live as long as the process.
    unsafe {
        let ring = libc::syscall(libc::SYS_io_uring_setup, 1, &raw mut parameters);
        if ring < 0 {
            return Err(io::Error::last_os_error());
        }
        let ring = OwnedFd::from_raw_fd(ring as i32);
        let map = |offset| {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
            libc::mmap(
                ptr::null_mut(),
                4096,
                access,
                flags,
                ring.as_raw_fd(),
                offset,
            )
        };
        let (rings, entries) = (map(SUBMISSIONS), map(ENTRIES));
        assert!(rings != libc::MAP_FAILED && entries != libc::MAP_FAILED);
        *entries.cast::<Entry>() = Entry {
            operation: CONNECT,
            fd: socket.as_raw_fd(),
            offset: u64::from(target.len()),
            address: target.as_ptr() as u64,
            ..Entry::default()
        };
        let word = |offset: u32| rings.cast::<u8>().add(offset as usize).cast::<u32>();
        *word(parameters.submission[6]) = 0;
        word(parameters.submission[1]).write_volatile(1);
        let entered = libc::syscall(
            libc::SYS_io_uring_enter,
            ring.as_raw_fd(),
            1,
            1,
            ENTER_GETEVENTS,
            ptr::null::<u8>(),
            0,
        );
        if entered != 1 {
            return Err(io::Error::last_os_error());
        }
        // The first completion has eight bytes of user data, then the result.
        let result = word(parameters.completion[5] + 8).read_volatile() as i32;
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
    }
    Ok(())
}
