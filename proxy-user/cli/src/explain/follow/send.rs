// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sends the packet that is followed: by a socket, from the client's own network namespace and
//! cgroup, or as a frame that an interface is made to receive.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use datapath::read::Asked;
use etherparse::PacketBuilder;
use linux::PodNamespace;
use proxy_common::Protocol;
use socket2::{Domain, Socket, Type};

use super::programs::inside_cgroup;

/// How long an answer is waited for. The kernel gives up a neighbour after three requests of one
/// second each, and only then frees the packet.
pub(super) const WAIT: Duration = Duration::from_secs(5);
/// What a followed datagram carries: eight bytes of its own, then who sent it.
const SENDER: &[u8] = b" portolan explain --follow";

/// How the client's socket saw the attempt end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    Answered(Duration),
    /// ECONNREFUSED: a reset or an ICMP error came, or a socket hook said so.
    Refused,
    /// EPERM or EACCES.
    Denied,
    /// Another error.
    Failed(String),
    Silent,
    /// The packet was not sent by a socket.
    NoSocket,
}

/// A socket that is bound, so that its port is known before it sends.
pub(super) struct Bound {
    socket: Socket,
    pub(super) port: u16,
}

/// Returns a socket of this node, or of a pod. `from`: its address; None lets the kernel choose.
pub(super) fn bind(
    pod: Option<&PodNamespace>,
    protocol: Protocol,
    from: Option<IpAddr>,
    v6: bool,
) -> Result<Bound> {
    let open = || -> io::Result<Bound> {
        let kind = match protocol {
            Protocol::TCP => Type::STREAM,
            _ => Type::DGRAM,
        };
        let (domain, any): (_, IpAddr) = match v6 {
            true => (Domain::IPV6, Ipv6Addr::UNSPECIFIED.into()),
            false => (Domain::IPV4, Ipv4Addr::UNSPECIFIED.into()),
        };
        let socket = Socket::new(domain, kind, None)?;
        socket.bind(&SocketAddr::new(from.unwrap_or(any), 0).into())?;
        let port = socket.local_addr()?.as_socket().map_or(0, |at| at.port());
        Ok(Bound { socket, port })
    };
    let Some(pod) = pod else {
        return open().context("open a socket on this node");
    };
    let bound = pod.run(|| inside_cgroup(pod.process(), open));
    bound.context("open a socket in the client's network namespace")
}

impl Bound {
    /// Connects, or sends a datagram, and waits for the answer.
    pub(super) fn ask(self, to: SocketAddr) -> Ending {
        let begun = Instant::now();
        let is_stream = self.socket.r#type().is_ok_and(|kind| kind == Type::STREAM);
        let result = match is_stream {
            true => self.socket.connect_timeout(&to.into(), WAIT),
            false => self.exchange(to),
        };
        match result {
            Ok(()) => Ending::Answered(begun.elapsed()),
            Err(error) => ending_of(&error),
        }
    }

    fn exchange(&self, to: SocketAddr) -> io::Result<()> {
        let own = format!("{:04x}{:04x}", self.port, std::process::id() & 0xffff);
        let datagram = [own.as_bytes(), SENDER].concat();
        self.socket.connect(&to.into())?;
        self.socket.set_read_timeout(Some(WAIT))?;
        self.socket.send(&datagram)?;
        let mut answer = [std::mem::MaybeUninit::uninit(); 1];
        self.socket.recv(&mut answer).map(drop)
    }
}

fn ending_of(error: &io::Error) -> Ending {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Ending::Refused,
        io::ErrorKind::PermissionDenied => Ending::Denied,
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Ending::Silent,
        _ => Ending::Failed(error.to_string()),
    }
}

/// Returns a packet as it would come in by an uplink: the SYN, or an empty datagram; or the reset
/// that ends what the SYN has begun, because the client knows nothing of it.
pub(super) fn frame(
    asked: &Asked,
    port: u16,
    receiver: [u8; 6],
    sequence: u32,
    reset: bool,
) -> Result<Vec<u8>> {
    const TTL: u8 = 64;
    const SENDER: [u8; 6] = [2, 0, 0, 0, 0, 1];
    let ethernet = PacketBuilder::ethernet2(SENDER, receiver);
    let ip = match (asked.client, asked.to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ethernet.ipv4(from.octets(), to.octets(), TTL),
        (IpAddr::V6(from), IpAddr::V6(to)) => ethernet.ipv6(from.octets(), to.octets(), TTL),
        _ => anyhow::bail!("client and destination are of different IP families"),
    };
    let mut bytes = Vec::new();
    if asked.protocol == Protocol::TCP {
        let segment = ip.tcp(port, asked.to.port(), sequence + u32::from(reset), 64_240);
        let segment = if reset { segment.rst() } else { segment.syn() };
        segment.write(&mut bytes, &[])?;
    } else {
        ip.udp(port, asked.to.port()).write(&mut bytes, &[])?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use datapath::read::By;

    use super::*;

    #[test]
    fn a_frame_has_the_clients_ends_and_a_reset_the_next_number() {
        let asked = Asked {
            protocol: Protocol::TCP,
            client: [198, 51, 100, 7].into(),
            client_port: 0,
            to: "10.40.0.1:30001".parse().expect("an end"),
            by: By::Interface(7),
        };
        let [first, reset] = [false, true].map(|reset| {
            let bytes = frame(&asked, 40_000, [2, 0, 0, 0, 0, 9], 7, reset).expect("encoded");
            let packet = etherparse::PacketHeaders::from_ethernet_slice(&bytes);
            let transport = packet.expect("a packet").transport;
            transport.and_then(|one| one.tcp()).expect("a segment")
        });
        assert!(first.syn && !first.ack && first.sequence_number == 7);
        assert!(reset.rst && !reset.syn && reset.sequence_number == 8);
        let ports = (first.source_port, first.destination_port);
        assert_eq!(ports, (40_000, 30_001));
    }

    #[test]
    fn errors_of_a_socket_are_told_apart() {
        let of = |number| ending_of(&io::Error::from_raw_os_error(number));
        assert_eq!(of(111), Ending::Refused);
        assert_eq!(of(1), Ending::Denied);
        assert_eq!(of(110), Ending::Silent);
        assert!(matches!(of(113), Ending::Failed(_)));
    }
}
