// SPDX-License-Identifier: Apache-2.0 OR MIT
//! XDP at an interface: which program is attached (rtnetlink), whether the device joins packets
//! before XDP sees them (ethtool), and whether XDP can redirect frames to the interface (generic
//! netlink). Used by `datapath::programs` and `agent`.

use std::{io, os::fd::AsRawFd};

use netlink_sys::protocols::NETLINK_GENERIC;
use nix::errno::Errno;

use super::{
    answers::none_if,
    netlink::{Connection, array, attribute, encode, number},
    route::{LINK_HEADER, ask_link},
};

/// Returns the id of the program at an interface's XDP hook; None if the hook has no program.
pub fn attached_xdp(index: u32) -> io::Result<Option<u32>> {
    ask_link(index, |answer| program(answer.get(LINK_HEADER..)?))
}

fn program(attributes: &[u8]) -> Option<u32> {
    const XDP: u16 = 43;
    const PROGRAM: u16 = 4;
    number(attribute(attributes, XDP)?, PROGRAM).filter(|id| *id != 0)
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
    let asked = Errno::result(asked).map_err(io::Error::from);
    Ok(none_if(&[libc::EOPNOTSUPP], asked)?.is_some_and(|_| value.data & LRO != 0))
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
    let name = encode(FAMILY_NAME, b"netdev\0");
    let family = ask_generic(CONTROL, GET_FAMILY, &name, FAMILY_ID)?;
    let family = family.ok_or(io::ErrorKind::Unsupported)?;
    let index = encode(INTERFACE, &index.to_ne_bytes());
    let family = u16::from_ne_bytes(family);
    let features = ask_generic(family, GET_DEVICE, &index, FEATURES)?;
    Ok(features.is_some_and(|bits| u64::from_ne_bytes(bits) & NDO_XMIT != 0))
}

/// Sends a request by generic netlink and returns one attribute of the answer; None if it is
/// missing, or has another length.
fn ask_generic<const N: usize>(
    family: u16,
    command: u8,
    attributes: &[u8],
    wanted: u16,
) -> io::Result<Option<[u8; N]>> {
    const VERSION: u8 = 1;
    /// Length of `struct genlmsghdr`.
    const HEADER: usize = 4;
    let request = [&[command, VERSION, 0, 0], attributes].concat();
    Connection::open(NETLINK_GENERIC)?.ask_one(family, &request, |answer| {
        array(answer.get(HEADER..)?, wanted)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::tests::cut_off_anywhere;

    #[test]
    fn the_loopback_device_has_no_lro_and_no_xdp_program() {
        assert!(!has_lro("lo").expect("an answer"));
        assert!(has_lro("no-such-device").is_err());
        assert!(has_lro("a-name-that-no-device-can-have").is_err());
        assert_eq!(attached_xdp(1).expect("an answer"), None);
    }

    #[test]
    fn an_xdp_program_id_is_parsed_and_truncation_does_not_panic() {
        let nested = [encode(2, &[1]), encode(4, &7_u32.to_ne_bytes())].concat();
        let answer = encode(43, &nested);
        assert_eq!(program(&answer), Some(7));
        cut_off_anywhere(&answer, |bytes| _ = program(bytes));
        let none = encode(43, &encode(2, &[0]));
        assert_eq!(program(&none), None);
    }
}
