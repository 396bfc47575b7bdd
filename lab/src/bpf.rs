// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls bpf(2) for programs written instruction by instruction: loads, pins and attaches them.
//! Used for other software's programs next to the agent's, and for the bare programs of benchmarks.
//! Also changes values of pinned arrays, by which tests make portolan's flows older.

use std::{
    ffi::CString,
    io::{self, ErrorKind},
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use anyhow::{Context, Result};

/// Commands of bpf(2).
const MAP_CREATE: i64 = 0;
const MAP_LOOKUP: i64 = 1;
const MAP_UPDATE: i64 = 2;
const PROG_LOAD: i64 = 5;
const OBJ_PIN: i64 = 6;
const OBJ_GET: i64 = 7;
const LINK_CREATE: i64 = 28;

/// The number of the helper `bpf_map_lookup_elem`.
pub(crate) const CALL_LOOKUP: i32 = 1;

/// One eBPF instruction: opcode, registers (source in the high four bits, destination in the low
/// four), offset, immediate value.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Instruction(pub u8, pub u8, pub i16, pub i32);

/// The verdict that passes a packet on to the next program: `TC_ACT_UNSPEC`, or `TCX_NEXT`.
pub const PASS: i32 = -1;

/// Returns a program that returns `verdict` for every packet: `r0 = verdict; exit`.
pub const fn always(verdict: i32) -> [Instruction; 2] {
    [Instruction(0xb7, 0, 0, verdict), Instruction(0x95, 0, 0, 0)]
}

/// A counter of packets that programs made by [`counting`] add to: an array of one number.
pub struct Packets(OwnedFd);

impl Packets {
    pub fn new() -> Result<Self> {
        const ARRAY: u32 = 2;
        array(ARRAY, 8).map(Self)
    }
    pub fn read(&self) -> Result<u64> {
        let (key, mut value) = (0u32, 0u64);
        let map = self.0.as_raw_fd() as u64;
        let request = [map, (&raw const key) as u64, (&raw mut value) as u64, 0];
        // SAFETY: the pointers are to a live key of four bytes and a value of eight.
        unsafe { call(MAP_LOOKUP, &request) }.context("read an array")?;
        Ok(value)
    }
}

/// Returns a program that counts the packets of `length` bytes, Ethernet header included, in
/// `packets`. It returns `verdict` for every packet.
pub fn counting(packets: &Packets, length: u32, verdict: i32) -> [Instruction; 13] {
    let map = packets.0.as_raw_fd();
    [
        // A packet of another length: jump to the end.
        Instruction(0x61, 0x13, 0, 0),
        Instruction(0x55, 0x03, 9, length as i32),
        // r0 = element 0 of the map.
        Instruction(0x62, 0x0a, -4, 0),
        Instruction(0xbf, 0xa2, 0, 0),
        Instruction(0x07, 0x02, 0, -4),
        Instruction(0x18, 0x11, 0, map),
        Instruction(0, 0, 0, 0),
        Instruction(0x85, 0, 0, CALL_LOOKUP),
        Instruction(0x15, 0x00, 2, 0),
        Instruction(0xb7, 0x01, 0, 1),
        Instruction(0xdb, 0x10, 0, 0),
        // The end.
        Instruction(0xb7, 0x00, 0, verdict),
        Instruction(0x95, 0, 0, 0),
    ]
}

/// The name of every program loaded by this module, as the kernel shows it.
pub const NAME: &str = "foreign";

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
    version_and_flags: u64,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
    rest: [u64; 5],
}

/// Loads a tc program.
pub fn load(program: &[Instruction]) -> Result<OwnedFd> {
    const SCHED_CLS: u32 = 3;
    load_with(SCHED_CLS, 0, program)
}

/// The XDP hook of an interface.
pub(crate) const XDP_HOOK: u32 = 37;

/// Loads an XDP program.
pub fn load_xdp(program: &[Instruction]) -> Result<OwnedFd> {
    const XDP: u32 = 6;
    load_with(XDP, XDP_HOOK, program)
}

/// A hook of a cgroup at which a program decides whether something is permitted: 0 refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CgroupHook {
    /// connect(2) of IPv4 sockets.
    Connect,
    /// Packets that its sockets send.
    Egress,
}

impl CgroupHook {
    /// Returns the type of its programs, and its own number (`enum bpf_attach_type`).
    pub(crate) const fn numbers(self) -> [u32; 2] {
        match self {
            Self::Connect => [18, 10],
            Self::Egress => [8, 1],
        }
    }
}

/// Attaches a program to a hook (`enum bpf_attach_type`) of an interface of the caller's network
/// namespace, by its index, or of a cgroup. The returned link keeps the program attached.
pub(crate) fn attach(program: &OwnedFd, target: u32, hook: u32, flags: u32) -> Result<OwnedFd> {
    let program = program.as_raw_fd() as u32;
    let request = [program, target, hook, flags, 0, 0, 0, 0];
    // SAFETY: the request holds no pointer.
    unsafe { create(LINK_CREATE, &request) }
        .with_context(|| format!("attach a program to hook {hook}"))
}

/// Loads a program of this type, for this attach type.
pub(crate) fn load_with(kind: u32, attach_type: u32, program: &[Instruction]) -> Result<OwnedFd> {
    let mut log = vec![0u8; 1 << 16];
    let request = LoadRequest {
        kind,
        count: program.len() as u32,
        instructions: program.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        log_level: 1,
        log_size: log.len() as u32,
        log: log.as_mut_ptr() as u64,
        name: std::array::from_fn(|n| NAME.as_bytes().get(n).copied().unwrap_or(0)),
        attach_type,
        ..LoadRequest::default()
    };
    // SAFETY: the pointers are to live instructions, a string and a buffer.
    let fd = unsafe { create(PROG_LOAD, &request) };
    fd.with_context(|| {
        let said = String::from_utf8_lossy(&log);
        format!("load a bare program: {}", said.trim_end_matches('\0'))
    })
}

/// Pins a program or a map at a path that does not exist yet.
pub fn pin(object: BorrowedFd<'_>, path: &Path) -> Result<()> {
    let attempt = || format!("pin at {}", path.display());
    let path = CString::new(path.as_os_str().as_bytes())?;
    let request = [path.as_ptr() as u64, object.as_raw_fd() as u64];
    // SAFETY: the path is a live, terminated string.
    unsafe { call(OBJ_PIN, &request) }
        .map(drop)
        .with_context(attempt)
}

/// Makes a map for tail calls (BPF_MAP_TYPE_PROG_ARRAY) with one element, which holds `program`.
pub fn slot_with(program: BorrowedFd<'_>) -> Result<OwnedFd> {
    const PROG_ARRAY: u32 = 3;
    let slot = array(PROG_ARRAY, 4)?;
    let (key, value) = (0u32, program.as_raw_fd());
    let request = [
        slot.as_raw_fd() as u64,
        (&raw const key) as u64,
        (&raw const value) as u64,
        0,
    ];
    // SAFETY: the pointers are to a live key and value of four bytes.
    unsafe { call(MAP_UPDATE, &request) }.context("put a program into an array")?;
    Ok(slot)
}

/// Calls `change` with the index and the value, of `size` bytes, of every element of the array
/// pinned at `path`. If `change` returns true, the value is written back.
pub fn change_pinned(
    path: &Path,
    size: usize,
    mut change: impl FnMut(usize, &mut [u8]) -> bool,
) -> Result<()> {
    let attempt = || format!("change the map {}", path.display());
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path is a live, terminated string.
    let map = unsafe { create(OBJ_GET, &[name.as_ptr() as u64, 0]) }.with_context(attempt)?;
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

/// Makes a map of this type with one element, whose value has `size` bytes.
fn array(kind: u32, size: u32) -> Result<OwnedFd> {
    let request: [u32; 18] =
        std::array::from_fn(|n| [kind, 4, size, 1].get(n).copied().unwrap_or(0));
    // SAFETY: the request holds no pointer.
    unsafe { create(MAP_CREATE, &request) }.context("make an array")
}

/// Calls bpf(2) with a command that returns a new descriptor.
///
/// # Safety
/// As for [`call`].
unsafe fn create<T>(command: i64, request: &T) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise; the descriptor is new and nobody else's.
    unsafe { call(command, request).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// # Safety
/// `request` must be the part of the kernel's `union bpf_attr` that the command reads, and every
/// pointer in it valid for what the command does.
unsafe fn call<T>(command: i64, request: &T) -> io::Result<i32> {
    let request: *const T = request;
    // SAFETY: the request is live and has the size that is given; the rest is the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, request, size_of::<T>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result as i32)
}
