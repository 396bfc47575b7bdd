// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of each kind of socket, of pods and of the node: TCP, UDP with and without connect, IPv4,
//! IPv6.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use lab::node::settings::SocketBalancing;
use proxy_common::socket::SOCKET_BUCKETS;
use rstest::rstest;
use socket2::{Domain, SockRef, Socket, Type};

use crate::{
    clients::{Open, V4, V6, ask, ask_connected, connected, datagrams},
    service::{Service, vip, vip6},
    world::{CLIENT, From, NODE, ONE, PATIENCE, PORT, World},
};

fn world(protocol: &'static str) -> World {
    World::all(&[Service::new(1, protocol, &[20, 21])])
}

fn address_of(from: From) -> IpAddr {
    match from {
        From::Pod => CLIENT,
        // The uplink's address: the interface to the pods has no global address of its own.
        From::Node => NODE,
    }
    .parse()
    .expect("an address")
}

#[rstest]
fn a_connection_is_translated_at_its_socket(#[values(From::Pod, From::Node)] from: From) {
    let world = world("TCP");
    let mut open = world.open(from, vip(1));
    assert_eq!(open.answer.from, vip(1), "getpeername");
    if from == From::Pod {
        assert_eq!(open.answer.seen.ip(), address_of(from), "its own address");
    }
    assert!(open.is_alive());
    let rows = world.sockets();
    let owner = if from == From::Pod { "pod" } else { "node" };
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!((rows[0].owner, rows[0].frontend), (owner, vip(1)));
    assert!(rows[0].connected && rows[0].current, "{rows:?}");
    assert_eq!(world.flows(), 0, "no flow on the packet path");
    drop(open);
    world.expect_no_socket();
}

#[rstest]
fn udp_answers_come_from_the_service_address(#[values(From::Pod, From::Node)] from: From) {
    let world = world("UDP");
    let one = world.run(from, || connected(V4, vip(1)));
    let answer = ask_connected(&one);
    assert_eq!(answer.from, vip(1));
    assert_eq!(one.peer_addr().expect("a peer"), vip(1));
    if from == From::Pod {
        assert_eq!(answer.seen.ip(), address_of(from));
    }
    let other = world.run(from, || datagrams(V4));
    let first = ask(&other, vip(1));
    assert_eq!(first.from, vip(1));
    for _ in 0..20 {
        let again = ask(&other, vip(1));
        assert_eq!(again, first, "a socket keeps its backend");
    }
    // The datagrams of a pod's connected UDP socket are translated by the packet path.
    let (flows, sockets) = if from == From::Pod { (1, 1) } else { (0, 2) };
    assert_eq!(world.flows(), flows);
    assert_eq!(world.sockets().len(), sockets);
    drop((one, other));
    world.expect_no_socket();
}

#[test]
fn with_balancing_host_only_node_sockets_are_translated_at_the_socket() {
    let service = Service::new(1, "TCP", &[20, 21]);
    let world = World::new(SocketBalancing::Host, "", &[service]);
    let pods = world.open(From::Pod, vip(1));
    assert_eq!(pods.answer.from, vip(1));
    assert_eq!((world.flows(), world.sockets().len()), (1, 0));
    let nodes = world.open(From::Node, vip(1));
    assert_eq!(nodes.answer.from, vip(1));
    assert_eq!((world.flows(), world.sockets().len()), (1, 1));
}

#[test]
fn ipv6_sockets_reach_services_of_both_families() {
    let world = world("TCP");
    let open = world.open(From::Pod, vip6(1));
    assert_eq!(open.answer.from, vip6(1));
    assert_eq!(open.answer.seen.ip().to_string(), "fd00:40:0:1::10");
    let by_ipv6_socket = |only_v6, to: SocketAddr| {
        world.run(From::Pod, || {
            let socket = Socket::new(Domain::IPV6, Type::STREAM, None).expect("a socket");
            socket.set_only_v6(only_v6).expect("IPV6_V6ONLY");
            let connected = socket.connect_timeout(&to.into(), PATIENCE);
            connected.expect("connect");
            Open::over(socket.into()).expect("an answer")
        })
    };
    let mapped = mapped(vip(1));
    let open = by_ipv6_socket(false, mapped);
    assert_eq!(open.answer.from, mapped, "as the application wrote it");
    assert_eq!(open.answer.seen.ip().to_string(), CLIENT);
    assert_eq!(world.flows(), 0);
    drop(open);
    let only_v6 = by_ipv6_socket(true, vip6(1));
    assert_eq!(only_v6.answer.from, vip6(1));
}

#[test]
fn ipv6_datagram_sockets_reach_services_of_both_families() {
    let world = world("UDP");
    let mapped = mapped(vip(1));
    let sockets: Vec<UdpSocket> = [vip6(1), mapped]
        .into_iter()
        .flat_map(|to| {
            let one = world.run(From::Pod, || connected(V6, to));
            let answer = ask_connected(&one);
            assert_eq!(answer.from, to, "connected");
            assert_eq!(one.peer_addr().expect("a peer"), to);
            let other = world.run(From::Pod, || datagrams(V6));
            let answer = ask(&other, to);
            assert_eq!(answer.from, to, "unconnected");
            [one, other]
        })
        .collect();
    assert_eq!(world.sockets().len(), 2);
    assert_eq!(world.flows(), 2);
    drop(sockets);
    world.expect_no_socket();
}

fn mapped(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) => SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()),
        SocketAddr::V6(_) => address,
    }
}

#[rstest]
fn a_backend_that_is_another_services_address_as_well_is_not_translated_again(
    #[values("TCP", "UDP")] protocol: &'static str,
) {
    let other = Service {
        port: PORT,
        spec: "  externalIPs: ['10.40.1.20']\n",
        ..Service::new(2, protocol, &[21])
    };
    let world = World::all(&[Service::new(1, protocol, &[20]), other]);
    let by = |to| {
        if protocol == "TCP" {
            world.open(From::Pod, to).answer.by
        } else {
            ask(&world.run(From::Pod, || datagrams(V4)), to).by
        }
    };
    assert_eq!(by(vip(1)), "one");
    let asked_for_the_other = SocketAddr::new(ONE.parse().expect("an address"), PORT);
    assert_eq!(by(asked_for_the_other), "two");
}

/// The number is service 1's node port. The process may be a client of the same service elsewhere.
#[rstest]
#[case::of_a_pod(From::Pod, V4, NODE)]
#[case::of_a_pod_by_an_ipv6_socket(From::Pod, V6, NODE)]
#[case::of_the_node(From::Node, "127.0.0.1:0", "127.0.0.1")]
#[case::of_the_node_at_its_address(From::Node, V4, NODE)]
fn a_servers_answers_to_a_process_with_a_node_ports_number_are_no_requests(
    #[case] from: From,
    #[case] any: &str,
    #[case] client: &str,
) {
    let world = world("UDP");
    let server = world.run(from, || datagrams(any));
    let port = server.local_addr().expect("bound").port();
    let at = if from == From::Pod { CLIENT } else { client };
    let at = SocketAddr::new(at.parse().expect("an address"), port);
    let node_port = SocketAddr::new(client.parse().expect("an address"), 30_001);
    let process = world.run(From::Node, || datagrams(&node_port.to_string()));
    let mut buffer = [0; 8];
    for _ in 0..2 {
        process.send_to(b"who?", at).expect("sent");
        let (_, to) = server.recv_from(&mut buffer).expect("a request");
        server.send_to(b"me", to).expect("sent");
        let (length, by) = process.recv_from(&mut buffer).expect("an answer");
        assert_eq!((&buffer[..length], by), (&b"me"[..], at));
    }
    assert_eq!(world.sockets(), []);
    let other = world.run(From::Node, || datagrams(V4));
    assert_eq!(ask(&other, node_port).from, node_port, "still served");
}

/// Returns a new UDP socket of this thread's network namespace whose entry is in the same bucket of
/// the hooks' map as that of the socket with the cookie `other`.
fn sharing_a_place_with(other: u64) -> UdpSocket {
    (0..64 * SOCKET_BUCKETS)
        .map(|_| Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket"))
        .find(|socket| {
            (socket.cookie().expect("a cookie") ^ other).is_multiple_of(SOCKET_BUCKETS.into())
        })
        .expect("cookies are given out in turn")
        .into()
}

#[test]
fn sockets_in_the_same_hash_bucket_keep_their_own_backends() {
    let from = From::Node;
    let services = |first: &[u8]| [Service::new(1, "UDP", first), Service::new(2, "UDP", &[21])];
    let mut world = World::all(&services(&[20]));
    let (holder, guest) = world.run(from, || {
        let holder = datagrams(V4);
        holder.connect(vip(2)).expect("connect");
        let cookie = SockRef::from(&holder).cookie().expect("a cookie");
        let guest = sharing_a_place_with(cookie);
        guest.set_read_timeout(Some(PATIENCE)).expect("a limit");
        guest.connect(vip(1)).expect("connect");
        (holder, guest)
    });
    let by = |socket: &UdpSocket, service| {
        let answer = ask_connected(socket);
        assert_eq!(answer.from, vip(service));
        assert_eq!(socket.peer_addr().expect("a peer"), vip(service));
        answer.by
    };
    assert_eq!([by(&holder, 2), by(&guest, 1)], ["two", "one"]);
    assert_eq!(world.sockets().len(), 2);
    drop(holder);
    let left = world.after_closing(1);
    assert_eq!(left.len(), 1, "{left:?}");
    // A new connect moves the entry to the bucket that is free now; no other entry is left.
    guest.connect(vip(2)).expect("connect");
    let moved = world.sockets();
    assert_eq!(moved.len(), 1, "{moved:?}");
    assert_eq!(moved[0].frontend, vip(2));
    world.publish(&services(&[21]));
    // The agent does not mistake the socket for one whose backend was removed.
    assert_eq!(by(&guest, 2), "two");
    // An unconnected socket of the same bucket also gets an entry for its datagrams.
    let unconnected = world.run(from, || {
        let cookie = SockRef::from(&guest).cookie().expect("a cookie");
        let socket = sharing_a_place_with(cookie);
        socket.set_read_timeout(Some(PATIENCE)).expect("a limit");
        socket
    });
    for _ in 0..2 {
        assert_eq!(ask(&unconnected, vip(1)).from, vip(1));
    }
    assert_eq!(world.sockets().len(), 2);
    drop((guest, unconnected));
    world.expect_no_socket();
}
