// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Captures packets that leave the node, at the far end of its uplink. Used for the conformance
//! cases' `untouched` flows to addresses that no host has.

use std::{
    io::{self, ErrorKind},
    net::{SocketAddr, UdpSocket},
    os::fd::AsRawFd,
};

use anyhow::{Context, Result};
use etherparse::{IpSlice, TcpSlice};
use nix::net::if_::if_nametoindex;
use socket2::{Domain, SockAddr, SockAddrStorage, Socket, Type};

use crate::{node::netns::NetNs, traffic::probe::Packet};

/// An open packet socket. It keeps captured packets until they are read.
pub struct Capture {
    /// This type receives over a packet socket as well.
    socket: UdpSocket,
}

impl Capture {
    /// Starts to capture packets that `interface` receives.
    pub fn open(namespace: &NetNs, interface: &str) -> Result<Self> {
        namespace
            .enter(|| open(interface))?
            .map(|socket| Self {
                socket: socket.into(),
            })
            .with_context(|| format!("watch {interface} in {}", namespace.name()))
    }

    /// Returns every TCP, UDP and SCTP packet captured since the last call, in order of arrival.
    pub fn packets(&self) -> Result<Vec<Packet>> {
        let mut packets = Vec::new();
        let mut buffer = [0; 2048];
        loop {
            match self.socket.recv(&mut buffer) {
                Ok(length) => packets.extend(parse(&buffer[..length])),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(packets),
                Err(error) => return Err(error).context("read captured packets"),
            }
        }
    }
}

fn open(interface: &str) -> io::Result<Socket> {
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    let kind = i32::from(protocol).into();
    let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(kind))?;
    let index = if_nametoindex(interface)?;
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: sockaddr_ll is plain data and fits into the storage for any socket address.
    let address = unsafe { storage.view_as::<libc::sockaddr_ll>() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = index as i32;
    // SAFETY: the storage holds a sockaddr_ll of this length.
    socket.bind(&unsafe { SockAddr::new(storage, size_of::<libc::sockaddr_ll>() as u32) })?;
    let one: libc::c_int = 1;
    // SAFETY: the option takes an int, which lives through the call.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_IGNORE_OUTGOING,
            (&raw const one).cast(),
            size_of_val(&one) as u32,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn parse(bytes: &[u8]) -> Option<Packet> {
    let ip = IpSlice::from_slice(bytes).ok()?;
    let payload = ip.payload();
    let bytes = payload.payload;
    let [a, b, c, d] = *bytes.first_chunk()?;
    let protocol = payload.ip_number.0;
    let header = match protocol {
        6 => usize::from(TcpSlice::from_slice(bytes).ok()?.data_offset()) * 4,
        17 => 8,
        132 => 4,
        _ => return None,
    };
    Some(Packet {
        protocol,
        source: SocketAddr::new(ip.source_addr(), u16::from_be_bytes([a, b])),
        destination: SocketAddr::new(ip.destination_addr(), u16::from_be_bytes([c, d])),
        payload: bytes.get(header..)?.to_vec(),
    })
}
