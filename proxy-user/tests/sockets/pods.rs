// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pods that serve: each says its name and whom it sees.

use std::{
    io::{self, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
};

use lab::node::{netns::NetNs, pod::plug};

use crate::world::PORT;

/// A pod of both families on a node, by the last number of its addresses.
pub(crate) fn join(node: &NetNs, last: u8) -> NetNs {
    let pod = NetNs::new("pod").expect("run as root");
    let addresses = [format!("10.40.1.{last}"), format!("fd00:40:0:1::{last}")];
    let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
    plug(node, &pod, &addresses).expect("the pod's interface");
    pod
}

/// Serves TCP and UDP in a pod: says its name and whom it sees, then echoes; a datagram's text is part of its answer.
pub(crate) fn serve(pod: &NetNs, name: &'static str) {
    let everywhere = SocketAddr::new(IpAddr::from([0u16; 8]), PORT);
    let (tcp, udp) = pod
        .enter(|| (TcpListener::bind(everywhere), UdpSocket::bind(everywhere)))
        .expect("enter the pod");
    let (tcp, udp) = (tcp.expect("a listener"), udp.expect("a socket"));
    thread::spawn(move || {
        for stream in tcp.incoming().flatten() {
            thread::spawn(move || answer(stream, name));
        }
    });
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = udp.recv_from(&mut buffer) {
            let (seen, text) = (canonical(from), String::from_utf8_lossy(&buffer[..length]));
            _ = udp.send_to(format!("{name} {seen} {text}").as_bytes(), from);
        }
    });
}

fn answer(mut stream: TcpStream, name: &str) -> io::Result<()> {
    let seen = canonical(stream.peer_addr()?);
    writeln!(stream, "{name} {seen}")?;
    io::copy(&mut stream.try_clone()?, &mut stream).map(drop)
}

/// IPv4 addresses as such, however the socket shows them.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
