// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of what happens while pods run for long: client ports are used again, the endpoints of
//! open sockets are replaced, and an external IP moves to another service. `fuzz` has a node with
//! routed pods that translates at every socket.

use std::{
    io::{self, ErrorKind},
    net::{SocketAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use lab::node::{settings::SocketBalancing, topology::Plumbing};
use proxy_common::Counter;
use rstest::rstest;
use socket2::{Domain, Socket, Type};

use crate::{
    clients::{Open, V4, V6, ask_connected, connected, datagrams, try_ask, try_ask_connected},
    service::{Service, vip, vip6},
    world::{From, World},
};

const CONNECTIONS: usize = 60;
const SOCKETS: usize = 10;

#[rstest]
#[case::bridged(Plumbing::Bridge, SocketBalancing::All)]
#[case::routed(Plumbing::Routed, SocketBalancing::Host)]
fn sockets_go_on_when_ports_are_used_again_and_endpoints_and_addresses_move(
    #[case] plumbing: Plumbing,
    #[case] balancing: SocketBalancing,
) {
    let services = [Service::new(1, "TCP", &[20, 21])];
    let mut world = World::on(plumbing, balancing, "", &services);
    a_reused_client_port_is_a_new_connection(&world);
    short_connections_go_on_when_every_ephemeral_port_has_been_used(&world);
    assert_eq!(world.count(Counter::ForwardedElsewhere), 0);
    connected_datagram_sockets_follow_their_service_when_its_pod_is_replaced(&mut world);
    datagrams_follow_an_external_ip_that_moves_to_another_service(&mut world);
}

/// Binds a socket. Tries again while the port is in use: a process that another test starts has
/// copies of all descriptors until it executes its program.
fn bind(socket: &Socket, to: SocketAddr) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        match socket.bind(&to.into()) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(1));
            }
            done => return done,
        }
    }
}

/// Connects from this client port and returns which pod answered. Closes with a reset, so that the
/// port can be used again at once.
fn connect_from(port: u16, to: SocketAddr) -> io::Result<String> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    let any = if to.is_ipv4() {
        SocketAddr::from(([0; 4], port))
    } else {
        SocketAddr::from(([0_u16; 8], port))
    };
    bind(&socket, any)?;
    socket.connect_timeout(&to.into(), Duration::from_secs(2))?;
    socket.set_linger(Some(Duration::ZERO))?;
    Ok(Open::over(socket.into())?.answer.by)
}

/// Connects `CONNECTIONS` times from one port; returns the failed attempts' numbers and errors.
fn failures(world: &World, to: SocketAddr) -> Vec<(usize, io::Error)> {
    let connect = |n| Some((n, connect_from(45_000, to).err()?));
    world.run(From::Pod, || (0..CONNECTIONS).filter_map(connect).collect())
}

fn a_reused_client_port_is_a_new_connection(world: &World) {
    for to in [vip(1), vip6(1)] {
        let failed = failures(world, to);
        assert!(failed.is_empty(), "{to}: {failed:?}");
    }
}

fn short_connections_go_on_when_every_ephemeral_port_has_been_used(world: &World) {
    let range = |ports| {
        let narrow = [("ipv4/ip_local_port_range", ports)];
        world.client().set(&narrow).expect("a range of ports");
    };
    range("40000 40199");
    let failed: Vec<_> = world.run(From::Pod, || {
        let connect = |_: &usize| connect_from(0, vip(1)).is_err();
        (0..1500).filter(connect).collect()
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

fn connected_datagram_sockets_follow_their_service_when_its_pod_is_replaced(world: &mut World) {
    let dns = |endpoints: &[u8]| Service::new(1, "UDP", endpoints);
    world.publish(&[dns(&[20])]);
    let mut sockets: Vec<(UdpSocket, SocketAddr, From)> = Vec::new();
    // The node has no IPv6 address that its pods can answer to, so its sockets use IPv4.
    for (from, any, to) in [
        (From::Pod, V4, vip(1)),
        (From::Pod, V6, vip6(1)),
        (From::Node, V4, vip(1)),
    ] {
        let made = world.run(from, || [(); SOCKETS].map(|()| connected(any, to)));
        // The other half of the sockets sends nothing until the pod has been removed.
        for socket in &made[..SOCKETS / 2] {
            assert_eq!(ask_connected(socket).by, "one");
        }
        sockets.extend(made.map(|socket| (socket, to, from)));
    }
    let expect_served = |by: &str, when: &str| {
        for (socket, to, from) in &sockets {
            let served = is_served_again(socket, *to, *from, by);
            assert!(served, "{from:?} to {to}, by {by} {when}");
        }
    };
    for of_others in [false, true] {
        for (endpoints, by) in [(&[21][..], "two"), (&[20], "one"), (&[21], "two")] {
            let other: &[u8] = if by == "two" { &[20] } else { &[21] };
            // The removed endpoint may already belong to another service.
            let others = of_others.then(|| Service::new(2, "UDP", other));
            let services: Vec<_> = [dns(endpoints)].into_iter().chain(others).collect();
            world.publish(&services);
            expect_served(by, if of_others { "beside another" } else { "alone" });
        }
        world.publish(&[dns(&[])]);
        world.publish(&[dns(&[20])]);
        expect_served("one", "after nobody served");
    }
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
