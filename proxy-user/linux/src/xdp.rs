// SPDX-License-Identifier: Apache-2.0 OR MIT
//! XDP at an interface: which program is attached (rtnetlink), whether the device joins packets
//! before XDP sees them (ethtool), and whether XDP can redirect frames to the interface (generic
//! netlink). Used by `datapath::programs` and `agent`.

use std::{io, ops::ControlFlow, os::fd::AsRawFd};

use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_ROUTE};

use super::netlink::{Connection, attribute, encode};

const GET_LINK: u16 = 18;
/// Length of `struct ifinfomsg`.
const LINK_HEADER: usize = 16;

/// Returns the id of the program at an interface's XDP hook; None if there is none.
pub fn attached_xdp(index: u32) -> io::Result<Option<u32>> {
    let mut request = vec![0; LINK_HEADER];
    request[4..8].copy_from_slice(&index.to_ne_bytes());
    let mut found = None;
    Connection::open(NETLINK_ROUTE)?.ask(GET_LINK, 0, &request, |answer| {
        found = answer.get(LINK_HEADER..).and_then(program);
        ControlFlow::Break(())
    })?;
    Ok(found)
}

fn program(attributes: &[u8]) -> Option<u32> {
    const XDP: u16 = 43;
    const PROGRAM: u16 = 4;
    let id = attribute(attribute(attributes, XDP)?, PROGRAM)?;
    Some(u32::from_ne_bytes(id.try_into().ok()?)).filter(|id| *id != 0)
}

/// True if an interface has large receive offload (LRO) on; false if its driver does not know LRO.
pub fn has_lro(name: &str) -> io::Result<bool> {
    const GET_FLAGS: u32 = 0x25;
    const LRO: u32 = 1 << 15;
    #[repr(C)]
    struct EthtoolValue {
        command: u32,
        data: u32,
    }
    // SAFETY: all fields are numbers, arrays of numbers and pointers, for which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let bytes = name.as_bytes();
    if bytes.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let mut value = EthtoolValue {
        command: GET_FLAGS,
        data: 0,
    };
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    // SAFETY: the request names an interface and a value, which the kernel fills in.
    let asked =
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    if asked == 0 {
        return Ok(value.data & LRO != 0);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => Ok(false),
        _ => Err(error),
    }
}

/// True if XDP programs can redirect frames to an interface's driver; fails below Linux 6.3.
pub fn takes_redirected(index: u32) -> io::Result<bool> {
    const GET_FAMILY: u8 = 3;
    const FAMILY_ID: u16 = 1;
    const FAMILY_NAME: u16 = 2;
    const CONTROL: u16 = 0x10;
    const GET_DEVICE: u8 = 1;
    const INTERFACE: u16 = 1;
    const FEATURES: u16 = 3;
    const NDO_XMIT: u64 = 1 << 2;
    let family = ask_generic(
        CONTROL,
        GET_FAMILY,
        &encode(FAMILY_NAME, b"netdev\0"),
        FAMILY_ID,
    )?;
    let Some(family) = family.and_then(|id| Some(u16::from_ne_bytes(id.try_into().ok()?))) else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    let index = encode(INTERFACE, &index.to_ne_bytes());
    let features = ask_generic(family, GET_DEVICE, &index, FEATURES)?;
    let features = features.and_then(|bits| Some(u64::from_ne_bytes(bits.try_into().ok()?)));
    Ok(features.is_some_and(|bits| bits & NDO_XMIT != 0))
}

/// Sends a request by generic netlink and returns one attribute of the answer; None if it is
/// missing.
fn ask_generic(
    family: u16,
    command: u8,
    attributes: &[u8],
    wanted: u16,
) -> io::Result<Option<Vec<u8>>> {
    const VERSION: u8 = 1;
    /// Length of `struct genlmsghdr`.
    const HEADER: usize = 4;
    let request = [&[command, VERSION, 0, 0], attributes].concat();
    let mut found = None;
    Connection::open(NETLINK_GENERIC)?.ask(family, 0, &request, |answer| {
        let attributes = answer.get(HEADER..).unwrap_or_default();
        found = attribute(attributes, wanted).map(<[u8]>::to_vec);
        ControlFlow::Break(())
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_joins_nothing_and_has_no_program() {
        assert!(!has_lro("lo").expect("an answer"));
        assert!(has_lro("no-such-device").is_err());
        assert!(has_lro("a-name-that-no-device-can-have").is_err());
        assert_eq!(attached_xdp(1).expect("an answer"), None);
    }

    #[test]
    fn a_program_is_read_from_the_answer_and_cut_off_anywhere_does_no_harm() {
        let nested = [encode(2, &[1]), encode(4, &7_u32.to_ne_bytes())].concat();
        let answer = encode(43, &nested);
        assert_eq!(program(&answer), Some(7));
        for length in 0..answer.len() {
            _ = program(&answer[..length]);
        }
        let none = encode(43, &encode(2, &[0]));
        assert_eq!(program(&none), None);
    }
}
