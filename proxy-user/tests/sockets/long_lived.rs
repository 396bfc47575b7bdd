// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of what happens while pods run for long: client ports are used again, and an external IP
//! moves to another service.

use std::{
    io::{self, ErrorKind},
    net::{SocketAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use lab::node::settings::SocketBalancing;
use proxy_common::Counter;
use rstest::rstest;
use socket2::{Domain, Socket, Type};

use crate::{
    clients::{Open, V4, connected, datagrams, try_ask, try_ask_connected},
    service::{Service, vip},
    world::{From, World},
};

#[rstest]
fn sockets_go_on_when_ports_are_used_again_and_addresses_move(
    #[values(SocketBalancing::All, SocketBalancing::Host)] balancing: SocketBalancing,
) {
    let services = [Service::new(1, "TCP", &[20, 21])];
    let mut world = World::new(balancing, "", &services);
    short_connections_go_on_when_every_ephemeral_port_has_been_used(&world);
    assert_eq!(world.count(Counter::ForwardedElsewhere), 0);
    datagrams_follow_an_external_ip_that_moves_to_another_service(&mut world);
}

/// Connects and closes with a reset, so that the client's port can be used again at once.
fn connect_shortly(to: SocketAddr) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.connect_timeout(&to.into(), Duration::from_secs(2))?;
    socket.set_linger(Some(Duration::ZERO))?;
    Open::over(socket.into()).map(drop)
}

fn short_connections_go_on_when_every_ephemeral_port_has_been_used(world: &World) {
    let range = |ports| {
        let narrow = [("ipv4/ip_local_port_range", ports)];
        world.client().set(&narrow).expect("a range of ports");
    };
    range("40000 40199");
    let failed: Vec<_> = world.run(From::Pod, || {
        let fails = |_: &usize| connect_shortly(vip(1)).is_err();
        (0..1500).filter(fails).collect()
    });
    assert!(failed.is_empty(), "{} of 1500: {failed:?}", failed.len());
    range("32768 60999");
}

/// Returns true if a connected socket gets an answer of the pod `by` within a second. A socket of
/// the node is closed when its backend has gone, and connects again to `to`; a pod's is not.
fn is_served_again(socket: &UdpSocket, to: SocketAddr, from: From, by: &str) -> bool {
    let patience = Some(Duration::from_millis(100));
    socket.set_read_timeout(patience).expect("a time limit");
    let deadline = Instant::now() + Duration::from_secs(1);
    while Instant::now() < deadline {
        match try_ask_connected(socket) {
            Ok(answer) if answer.by == by => return true,
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {
                assert_eq!(from, From::Node, "{error}");
                _ = socket.connect(to);
            }
            // Nobody served when it connected again.
            Err(_) if from == From::Node && socket.peer_addr().is_err() => {
                _ = socket.connect(to);
            }
            _ => {}
        }
    }
    false
}

/// An external IP address and port that move between two services.
const SHARED: &str = "198.51.100.7:80";

fn datagrams_follow_an_external_ip_that_moves_to_another_service(world: &mut World) {
    let spec = "  externalIPs: ['198.51.100.7']\n";
    let services = |with: u8| {
        [(1, 20), (2, 21)].map(|(number, endpoint)| Service {
            spec: if number == with { spec } else { "" },
            ..Service::new(number, "UDP", &[endpoint])
        })
    };
    world.publish(&services(1));
    let to: SocketAddr = SHARED.parse().expect("an address");
    let sockets = [From::Pod, From::Node].map(|from| {
        world.run(from, || {
            (from, datagrams(V4), datagrams(V4), connected(V4, to))
        })
    });
    // The last answer of each within two seconds.
    let by = |sender: &UdpSocket, steady: &UdpSocket| {
        let mut last = [None, None];
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(100));
            for (last, (socket, to)) in last.iter_mut().zip([(sender, to), (steady, vip(1))]) {
                let answer = try_ask(socket, to).map(|answer| answer.by);
                *last = answer.ok().or(last.take());
            }
        }
        last.map(Option::unwrap_or_default)
    };
    for (with, name) in [(1, "one"), (2, "two"), (1, "one")] {
        world.publish(&services(with));
        for (from, sender, steady, connected) in &sockets {
            // Its own address stays.
            assert_eq!(by(sender, steady), [name, "one"], "{from:?}");
            let served = is_served_again(connected, to, *from, name);
            assert!(served, "{from:?}, connected: {name}");
        }
    }
}
