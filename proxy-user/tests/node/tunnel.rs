// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A device of the node whose packets have no link-layer header, and its far end as a file.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::fd::AsRawFd,
};

/// The device; it exists until the value is dropped.
pub(crate) struct Tunnel(File);

impl Tunnel {
    /// Makes the device in the calling thread's network namespace.
    pub(crate) fn new(name: &str) -> io::Result<Self> {
        Self::with(name, 0)
    }
    /// A device whose packets begin with a `virtio_net_hdr`, as a virtual machine's do: the header
    /// can ask for a checksum to be filled in.
    pub(crate) fn leaving_checksums(name: &str) -> io::Result<Self> {
        Self::with(name, libc::IFF_VNET_HDR)
    }
    fn with(name: &str, flag: libc::c_int) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/net/tun")?;
        // SAFETY: a request of zeros is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | flag) as libc::c_short;
        // SAFETY: the request outlives the call.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(file))
    }
    /// Makes a packet arrive from the far end.
    pub(crate) fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        self.0.write_all(packet)
    }
}
