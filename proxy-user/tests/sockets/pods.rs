// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server pods of the tests. Each answers with its name and the client's address that it sees.

use std::{
    io::{self, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
};

use lab::node::{netns::NetNs, pod::plug, topology::Plumbing};

use crate::world::PORT;

/// The name of the bridge to which pods with `Plumbing::Bridge` are attached.
const BRIDGE: &str = "cni0";

/// Makes the node's bridge, with the addresses that pods use as their gateway.
pub(crate) fn make_bridge(node: &NetNs) {
    node.ip(&format!(
        "link add {BRIDGE} address 02:00:00:00:40:01 type bridge forward_delay 0\naddress add 10.40.1.1/24 dev {BRIDGE}\naddress add fd00:40:0:1::1/64 dev {BRIDGE} nodad\nlink set {BRIDGE} up\n"
    ))
    .expect("a bridge");
}

/// Adds a pod with IPv4 and IPv6 to a node and returns its network namespace; `last` is the last
/// number of its addresses.
pub(crate) fn join(node: &NetNs, plumbing: Plumbing, last: u8) -> NetNs {
    let pod = NetNs::new("pod").expect("run as root");
    let [v4, v6] = [format!("10.40.1.{last}"), format!("fd00:40:0:1::{last}")];
    match plumbing {
        Plumbing::Routed => plug(node, &pod, &[&v4, &v6]).expect("the pod's interface"),
        Plumbing::Bridge => {
            node.ip(&format!(
                "link add pod{last} type veth peer name eth0 netns {}\nlink set pod{last} master {BRIDGE} up\n",
                pod.path()
            ))
            .expect("a port of the bridge");
            pod.ip(&format!(
                "link set lo up\naddress add {v4}/24 dev eth0\naddress add {v6}/64 dev eth0 nodad\nlink set eth0 up\nroute add default via 10.40.1.1\nroute add default via fd00:40:0:1::1\n"
            ))
            .expect("the pod's interface");
        }
    }
    pod
}

/// Serves TCP and UDP in a pod. It sends its name and the client's address, then for TCP what the
/// client sends. The answer to a datagram also contains the datagram's text.
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

/// Returns an IPv4-mapped IPv6 address as IPv4, and any other address unchanged.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
