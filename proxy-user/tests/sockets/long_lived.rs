// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of what happens while pods run for long: client ports are used again, and the endpoints of
//! open sockets are replaced.

use std::{
    collections::HashSet,
    io::{self, ErrorKind},
    net::{SocketAddr, TcpListener, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use lab::node::{netns::NetNs, settings::SocketBalancing, topology::Plumbing};
use proxy_common::Counter;
use rstest::rstest;
use socket2::{Domain, Socket, Type};

use crate::{
    clients::{Open, V4, ask, ask_connected, connected, datagrams, try_ask, try_ask_connected},
    pods::join,
    service::{Service, vip, vip6},
    world::{From, PORT, World},
};

const CONNECTIONS: usize = 60;
const SOCKETS: usize = 10;

fn world(plumbing: Plumbing, balancing: SocketBalancing, services: &[Service]) -> World {
    World::on(plumbing, balancing, "", services)
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

#[rstest]
fn a_reused_client_port_is_a_new_connection(
    #[values(Plumbing::Bridge, Plumbing::Routed)] plumbing: Plumbing,
    #[values(SocketBalancing::All, SocketBalancing::Host)] balancing: SocketBalancing,
) {
    let world = world(plumbing, balancing, &[Service::new(1, "TCP", &[20, 21])]);
    for to in [vip(1), vip6(1)] {
        let failed = failures(&world, to);
        assert!(failed.is_empty(), "{to}: {failed:?}");
    }
    assert_eq!(world.count(Counter::ForwardedElsewhere), 0);
}

#[rstest]
fn short_connections_go_on_when_every_ephemeral_port_has_been_used(
    #[values(Plumbing::Bridge, Plumbing::Routed)] plumbing: Plumbing,
    #[values(SocketBalancing::All, SocketBalancing::Host)] balancing: SocketBalancing,
) {
    let world = world(plumbing, balancing, &[Service::new(1, "TCP", &[20, 21])]);
    let narrow = [("ipv4/ip_local_port_range", "40000 40199")];
    world.client().set(&narrow).expect("200 ports");
    let failed: Vec<_> = world.run(From::Pod, || {
        let connect = |_: &usize| connect_from(0, vip(1)).is_err();
        (0..1500).filter(connect).collect()
    });
    assert!(failed.is_empty(), "{} of 1500: {failed:?}", failed.len());
    assert_eq!(world.count(Counter::ForwardedElsewhere), 0);
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

#[rstest]
fn connected_datagram_sockets_follow_their_service_when_its_pod_is_replaced(
    #[values(From::Pod, From::Node)] from: From,
    #[values(Plumbing::Bridge, Plumbing::Routed)] plumbing: Plumbing,
    #[values(SocketBalancing::All, SocketBalancing::Host)] balancing: SocketBalancing,
    #[values(false, true)] of_others: bool,
) {
    let dns = |endpoints: &[u8]| Service::new(1, "UDP", endpoints);
    let mut world = world(plumbing, balancing, &[dns(&[20])]);
    let sockets: Vec<(UdpSocket, SocketAddr)> = world.run(from, || {
        // The node has no IPv6 address that its pods can answer to, so its sockets use IPv4.
        let v6 = if from == From::Pod {
            ("[::]:0", vip6(1))
        } else {
            ("0.0.0.0:0", vip(1))
        };
        let all = [("0.0.0.0:0", vip(1)), v6].repeat(SOCKETS / 2);
        all.into_iter()
            .map(|(any, to)| (connected(any, to), to))
            .collect()
    });
    // The other half of the sockets sends nothing until the pod has been removed.
    for (socket, _) in &sockets[..SOCKETS / 2] {
        assert_eq!(ask_connected(socket).by, "one");
    }
    for (endpoints, by) in [(&[21][..], "two"), (&[20], "one"), (&[21], "two")] {
        let other: &[u8] = if by == "two" { &[20] } else { &[21] };
        // The removed endpoint may already belong to another service.
        let others = of_others.then(|| Service::new(2, "UDP", other));
        let services: Vec<_> = [dns(endpoints)].into_iter().chain(others).collect();
        world.publish(&services);
        let served = sockets.iter();
        let served = served.filter(|(socket, to)| is_served_again(socket, *to, from, by));
        assert_eq!(served.count(), SOCKETS, "by {by}");
    }
    world.publish(&[dns(&[])]);
    world.publish(&[dns(&[20])]);
    let served = sockets
        .iter()
        .filter(|(socket, to)| is_served_again(socket, *to, from, "one"));
    assert_eq!(served.count(), SOCKETS, "after nobody served");
}

/// Returns a socket in a pod; [`arrived`] counts the datagrams that it has received.
fn count_datagrams(pod: &NetNs) -> UdpSocket {
    let socket = pod.enter(|| UdpSocket::bind(("0.0.0.0", PORT)));
    let socket = socket.expect("enter the pod").expect("a socket");
    socket.set_nonblocking(true).expect("no waiting");
    socket
}

fn arrived(socket: &UdpSocket) -> usize {
    (0..)
        .take_while(|_| socket.recv(&mut [0; 64]).is_ok())
        .count()
}

#[rstest]
fn no_datagram_reaches_the_address_of_a_removed_endpoint(
    #[values(Plumbing::Bridge, Plumbing::Routed)] plumbing: Plumbing,
    #[values(SocketBalancing::All, SocketBalancing::Host)] balancing: SocketBalancing,
    #[values(From::Pod, From::Node)] from: From,
    #[values(false, true)] is_deleted: bool,
) {
    let mut world = world(plumbing, balancing, &[Service::new(1, "UDP", &[30])]);
    // Another pod now has the endpoint's address and listens on the same port.
    let stranger = join(world.node(), plumbing, 30);
    let there = count_datagrams(&stranger);
    let socket = world.run(from, || connected(V4, vip(1)));
    let send = |times: u32| {
        for _ in 0..times {
            _ = socket.send(b"who?");
            thread::sleep(Duration::from_millis(5));
        }
    };
    let reaches = (0..100).any(|_| {
        send(20);
        arrived(&there) > 0
    });
    assert!(reaches, "as long as it serves");
    let left = if is_deleted {
        vec![]
    } else {
        vec![Service::new(1, "UDP", &[])]
    };
    world.publish(&left);
    arrived(&there);
    send(20);
    assert_eq!(arrived(&there), 0);
}

#[test]
fn a_client_port_can_be_reused_after_the_server_closed_first() {
    let world = world(
        Plumbing::Bridge,
        SocketBalancing::All,
        &[Service::new(1, "TCP", &[30])],
    );
    let pod = join(world.node(), Plumbing::Bridge, 30);
    let listener = pod.enter(|| TcpListener::bind(("0.0.0.0", PORT)));
    let listener = listener.expect("enter the pod").expect("a listener");
    thread::spawn(move || listener.incoming().for_each(drop));
    for _ in 0..20 {
        let read = world.run(From::Pod, || {
            let stream = std::net::TcpStream::connect_timeout(&vip(1), Duration::from_secs(2))?;
            io::Read::read(&mut &stream, &mut [0; 1])
        });
        assert_eq!(read.expect("the end of the stream"), 0);
    }
}

/// An external IP address and port that move between two services.
const SHARED: &str = "198.51.100.7:80";

#[rstest]
fn datagrams_follow_an_external_ip_that_moves_to_another_service(
    #[values(SocketBalancing::All, SocketBalancing::Host)] balancing: SocketBalancing,
    #[values(From::Pod, From::Node)] from: From,
) {
    let spec = "  externalIPs: ['198.51.100.7']\n";
    let services = |with: u8| {
        [(1, 20), (2, 21)].map(|(number, endpoint)| Service {
            spec: if number == with { spec } else { "" },
            ..Service::new(number, "UDP", &[endpoint])
        })
    };
    let mut world = world(Plumbing::Bridge, balancing, &services(1));
    let to: SocketAddr = SHARED.parse().expect("an address");
    let (sender, steady) = world.run(from, || (datagrams(V4), datagrams(V4)));
    let connected = world.run(from, || connected(V4, to));
    let by = |socket: &UdpSocket, to| {
        let mut last = None;
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(100));
            last = try_ask(socket, to).map(|answer| answer.by).ok().or(last);
        }
        last
    };
    let is_by = |socket: &UdpSocket, to, name: &str| by(socket, to).as_deref() == Some(name);
    assert!(is_by(&sender, to, "one") && is_by(&steady, vip(1), "one"));
    assert!(is_served_again(&connected, to, from, "one"));
    for (with, name) in [(2, "two"), (1, "one")] {
        world.publish(&services(with));
        assert!(is_by(&sender, to, name), "{name}");
        assert!(is_by(&steady, vip(1), "one"), "its own address stays");
        assert!(
            is_served_again(&connected, to, from, name),
            "connected: {name}"
        );
    }
}

#[test]
fn datagrams_to_a_node_port_at_any_loopback_address_keep_their_backend() {
    let world = world(
        Plumbing::Routed,
        SocketBalancing::All,
        &[Service::new(1, "UDP", &[20, 21])],
    );
    let socket = world.run(From::Node, || datagrams(V4));
    let to = SocketAddr::from(([127, 0, 0, 5], 30_001));
    let by: HashSet<_> = (0..30).map(|_| ask(&socket, to).by).collect();
    assert_eq!(by.len(), 1, "one flow of datagrams: {by:?}");
}
