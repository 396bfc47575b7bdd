// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pods of the tests. Each server answers with the last number of its own addresses, and the
//! client's address that it sees.

use std::{
    io::{self, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
};

use lab::node::{netns::NetNs, pod::plug};

use crate::world::PORT;

/// Adds a pod with IPv4 and IPv6 to a node and returns its network namespace; `last` is the last
/// number of its addresses.
pub(crate) fn join(node: &NetNs, last: u8) -> NetNs {
    let pod = NetNs::new("pod").expect("run as root");
    let addresses = [format!("10.40.1.{last}"), format!("fd00:40:0:1::{last}")];
    plug(node, &pod, &addresses.each_ref().map(String::as_str)).expect("the pod's interface");
    pod
}

/// Adds a pod that serves TCP and UDP. It sends its number and the client's address, then for TCP
/// what the client sends. The answer to a datagram also contains the datagram's text.
pub(crate) fn serve(node: &NetNs, last: u8) -> NetNs {
    let pod = join(node, last);
    let everywhere = SocketAddr::new(IpAddr::from([0u16; 8]), PORT);
    let (tcp, udp) = pod
        .enter(|| (TcpListener::bind(everywhere), UdpSocket::bind(everywhere)))
        .expect("enter the pod");
    let (tcp, udp) = (tcp.expect("a listener"), udp.expect("a socket"));
    thread::spawn(move || {
        for stream in tcp.incoming().flatten() {
            thread::spawn(move || answer(stream, last));
        }
    });
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = udp.recv_from(&mut buffer) {
            let (seen, text) = (plain(from), String::from_utf8_lossy(&buffer[..length]));
            _ = udp.send_to(format!("{last} {seen} {text}").as_bytes(), from);
        }
    });
    pod
}

fn answer(mut stream: TcpStream, last: u8) -> io::Result<()> {
    let seen = plain(stream.peer_addr()?);
    writeln!(stream, "{last} {seen}")?;
    io::copy(&mut stream.try_clone()?, &mut stream).map(drop)
}

/// Returns an IPv4-mapped IPv6 address as IPv4, and any other address unchanged.
pub(crate) fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
