// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The servers of a benchmark: threads pinned to one CPU with plain blocking sockets, and a socket
//! that only counts datagrams.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsRawFd,
    thread,
};

use anyhow::{Context, Result};
use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};

use crate::{
    load::cpu::pin,
    node::{cgroup::Cgroup, netns::NetNs},
};

/// The receive buffer of a [`Sink`], in bytes: large enough for all datagrams until the count.
const SINK: usize = 256 << 20;

/// Answers each byte over TCP with the byte `name` and echoes UDP, on each of the ports, in a pod.
/// `cgroup` is the cgroup of the pod's processes. The threads run until the program ends.
pub fn serve(namespace: &NetNs, cgroup: &Cgroup, ports: &[u16], name: u8) -> Result<()> {
    for port in ports {
        let tcp = listen(namespace, cgroup, *port)?;
        // One connection after the other: a delay shows in the client's time.
        thread::spawn(move || pin().and_then(|()| accept(&tcp, name)));
        let bind = || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, *port));
        let udp = cgroup.inside(|| namespace.enter(bind))???;
        thread::spawn(move || pin().and_then(|()| echo(&udp)));
    }
    Ok(())
}

/// Answers many TCP clients at once, by as many threads as there are processors; else as [`serve`].
pub fn serve_many(namespace: &NetNs, cgroup: &Cgroup, port: u16, name: u8) -> Result<()> {
    let tcp = listen(namespace, cgroup, port)?;
    for _ in 0..thread::available_parallelism()?.get() {
        let tcp = tcp.try_clone()?;
        thread::spawn(move || accept(&tcp, name));
    }
    Ok(())
}

fn listen(namespace: &NetNs, cgroup: &Cgroup, port: u16) -> Result<TcpListener> {
    let bind = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
    Ok(cgroup.inside(|| namespace.enter(bind))???)
}

fn echo(udp: &UdpSocket) -> Result<()> {
    let mut buffer = [0; 64];
    loop {
        let (length, from) = udp.recv_from(&mut buffer)?;
        udp.send_to(&buffer[..length], from)?;
    }
}

fn accept(tcp: &TcpListener, name: u8) -> Result<()> {
    for stream in tcp.incoming() {
        // An error is ignored here: the client reports it.
        let _ = answer(&mut stream?, name);
    }
    Ok(())
}

/// Answers each byte with `name` until the client closes.
fn answer(stream: &mut TcpStream, name: u8) -> std::io::Result<()> {
    let mut byte = [0];
    while stream.read(&mut byte)? == 1 {
        stream.write_all(&[name])?;
    }
    Ok(())
}

/// A UDP socket that keeps arriving datagrams until they are counted.
pub struct Sink(UdpSocket);

impl Sink {
    pub fn new(namespace: &NetNs, port: u16) -> Result<Self> {
        let socket = namespace.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)))??;
        setsockopt(&socket, sockopt::RcvBufForce, &SINK).context("room for what is sent")?;
        Ok(Self(socket))
    }

    /// Removes all datagrams from the socket and returns their number.
    pub fn empty(&self) -> u32 {
        let mut buffer = [0; 64];
        let mut count = 0;
        while recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT).is_ok() {
            count += 1;
        }
        count
    }
}
