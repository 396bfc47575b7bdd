// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Switches a device's offloads on and off by ethtool's ioctl: XDP at a veth needs other settings
//! than the defaults. Called by `topology` and tests.

use std::{io, net::UdpSocket, os::fd::AsRawFd};

use anyhow::{Context, Result};

const SET_GRO: u32 = 0x2c;

/// Prepares the far end of a veth whose other end gets an XDP program. The far end is in the
/// calling thread's network namespace. The far end then computes the checksums of its packets,
/// because XDP cannot see that they are missing. It also accepts frames that the program sends back
/// (by its NAPI).
pub fn prepare_far_end(interface: &str) -> Result<()> {
    const SET_TX_CHECKSUMS: u32 = 0x17;
    set(interface, SET_TX_CHECKSUMS, 0).with_context(|| format!("checksums of {interface}"))?;
    set(interface, SET_GRO, 1).with_context(|| format!("GRO of {interface}"))
}

fn set(interface: &str, command: u32, data: u32) -> io::Result<()> {
    // SAFETY: the type consists of numbers, arrays of numbers and pointers; zero is a valid value
    // of each.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    // The two fields of a struct ethtool_value.
    let mut value = [command, data];
    request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: the request names an interface and a value of the length that the command needs.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
