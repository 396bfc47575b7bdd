// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of what is translated at the socket and what packet by packet, of sockets that share a
//! bucket, and of system calls other than `connect` and `sendto` that run the socket hooks. What
//! each kind of socket sees is in `kept`.
#![expect(unsafe_code, reason = "AF_UNSPEC has no safe wrapper here")]

use std::net::{SocketAddr, TcpStream, UdpSocket};

use proxy_common::socket::SOCKET_BUCKETS;
use socket2::{Domain, SockAddr, SockAddrStorage, SockRef, Socket, Type};

use crate::{
    clients::{Open, V4, V6, ask, datagrams},
    service::{Service, address, two_over_udp, vip},
    world::{CLIENT, From, NODE, ONE, PATIENCE, PORT, World},
};

#[test]
fn sockets_and_packets_share_the_work() {
    let [one, two] = two_over_udp(&[20]);
    let mut world = World::new("", &[one, two, Service::new(3, "TCP", &[20, 21])]);
    several_sockets_on_one_port_have_an_entry_each(&world);
    world.expect_no_socket();
    a_tcp_fast_open_by_sendto_is_translated(&world);
    assert_eq!(world.flows(), 0);
    only_connected_udp_sockets_of_pods_are_translated_packet_by_packet(&world);
    world.expect_no_socket();
    a_servers_answers_to_a_process_with_a_node_ports_number_are_no_requests(&world);
    sockets_in_the_same_hash_bucket_keep_their_own_backends(&mut world);
    world.expect_no_socket();
    a_backend_that_is_another_services_address_as_well_is_not_translated_again(&mut world);
}

fn only_connected_udp_sockets_of_pods_are_translated_packet_by_packet(world: &World) {
    for (from, connects, flows) in [
        (From::Node, false, 0),
        (From::Node, true, 0),
        (From::Pod, false, 0),
        (From::Pod, true, 1),
    ] {
        let socket = world.run(from, || datagrams(V4));
        if connects {
            socket.connect(vip(1)).expect("connect");
            assert_eq!(ask(&socket, None).from, vip(1));
        } else {
            assert_eq!(ask(&socket, vip(1)).from, vip(1));
        }
        assert_eq!(world.flows(), flows, "{from:?}, connects: {connects}");
    }
}

fn a_backend_that_is_another_services_address_as_well_is_not_translated_again(world: &mut World) {
    let asked_for_the_other = SocketAddr::new(ONE.parse().expect("an address"), PORT);
    for protocol in ["TCP", "UDP"] {
        let other = Service {
            port: PORT,
            external_ip: Some(ONE),
            ..Service::new(2, protocol, &[21])
        };
        world.publish(&[Service::new(1, protocol, &[20]), other]);
        for (to, expected) in [(vip(1), 20), (asked_for_the_other, 21)] {
            let by = if protocol == "TCP" {
                world.open(From::Pod, to).answer.by
            } else {
                ask(&world.run(From::Pod, || datagrams(V4)), to).by
            };
            assert_eq!(by, expected, "{protocol} to {to}");
        }
    }
}

/// The number is service 1's node port. The process may be a client of the same service elsewhere.
fn a_servers_answers_to_a_process_with_a_node_ports_number_are_no_requests(world: &World) {
    let own = [NODE, "127.0.0.1"].map(|client| {
        let node_port = format!("{client}:30001");
        (client, world.run(From::Node, || datagrams(&node_port)))
    });
    for (from, any, client) in [
        (From::Pod, V4, NODE),
        (From::Pod, V6, NODE),
        (From::Node, "127.0.0.1:0", "127.0.0.1"),
        (From::Node, V4, NODE),
    ] {
        let server = world.run(from, || datagrams(any));
        let port = server.local_addr().expect("bound").port();
        let at = if from == From::Pod { CLIENT } else { client };
        let at = SocketAddr::new(at.parse().expect("an address"), port);
        let mut own = own.iter().filter(|(own, _)| *own == client);
        let (_, process) = own.next().expect("its socket");
        let mut buffer = [0; 8];
        for _ in 0..2 {
            process.send_to(b"who?", at).expect("sent");
            let (_, to) = server.recv_from(&mut buffer).expect("a request");
            server.send_to(b"me", to).expect("sent");
            let (length, by) = process.recv_from(&mut buffer).expect("an answer");
            assert_eq!((&buffer[..length], by), (&b"me"[..], at), "{from:?} {any}");
        }
        assert_eq!(world.sockets(), []);
        let node_port = address(&format!("{client}:30001"));
        let other = world.run(From::Node, || datagrams(V4));
        assert_eq!(ask(&other, node_port).from, node_port, "still served");
        drop(other);
        world.expect_no_socket();
    }
}

/// Returns a new UDP socket of this thread's network namespace whose entry is in the same bucket of
/// the hooks' map as that of `other`.
fn sharing_a_place_with(other: &UdpSocket) -> UdpSocket {
    let other = SockRef::from(other).cookie().expect("a cookie");
    let found = (0..64 * SOCKET_BUCKETS)
        .map(|_| Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket"))
        .find(|socket| {
            (socket.cookie().expect("a cookie") ^ other).is_multiple_of(SOCKET_BUCKETS.into())
        });
    let socket = found.expect("cookies are given out in turn");
    socket.set_read_timeout(Some(PATIENCE)).expect("a limit");
    socket.into()
}

fn sockets_in_the_same_hash_bucket_keep_their_own_backends(world: &mut World) {
    let from = From::Node;
    let (holder, guest) = world.run(from, || {
        let holder = datagrams(V4);
        holder.connect(vip(2)).expect("connect");
        let guest = sharing_a_place_with(&holder);
        guest.connect(vip(1)).expect("connect");
        (holder, guest)
    });
    let by = |socket: &UdpSocket, service| {
        let answer = ask(socket, None);
        assert_eq!(answer.from, vip(service));
        assert_eq!(socket.peer_addr().expect("a peer"), vip(service));
        answer.by
    };
    assert_eq!([by(&holder, 2), by(&guest, 1)], [21, 20]);
    assert_eq!(world.sockets().len(), 2);
    drop(holder);
    let left = world.after_closing(1);
    assert_eq!(left.len(), 1, "{left:?}");
    // A new connect moves the entry to the bucket that is free now; no other entry is left.
    guest.connect(vip(2)).expect("connect");
    let moved = world.sockets();
    assert_eq!(moved.len(), 1, "{moved:?}");
    assert_eq!(moved[0].frontend, vip(2));
    world.publish(&two_over_udp(&[21]));
    // The agent does not mistake the socket for one whose backend was removed.
    assert_eq!(by(&guest, 2), 21);
    // An unconnected socket of the same bucket also gets an entry for its datagrams.
    let unconnected = world.run(from, || sharing_a_place_with(&guest));
    for _ in 0..2 {
        assert_eq!(ask(&unconnected, vip(1)).from, vip(1));
    }
    assert_eq!(world.sockets().len(), 2);
}

fn several_sockets_on_one_port_have_an_entry_each(world: &World) {
    let sockets: Vec<UdpSocket> = world.run(From::Node, || {
        (0..4)
            .map(|_| {
                let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
                socket.set_reuse_port(true).expect("SO_REUSEPORT");
                let local = address("0.0.0.0:4000");
                socket.bind(&SockAddr::from(local)).expect("bind");
                socket.connect(&SockAddr::from(vip(1))).expect("connect");
                UdpSocket::from(socket)
            })
            .collect()
    });
    for socket in &sockets {
        assert_eq!(socket.peer_addr().expect("a peer"), vip(1));
    }
    assert_eq!(world.sockets().len(), 4);
}

fn a_tcp_fast_open_by_sendto_is_translated(world: &World) {
    let open = world.run(From::Pod, || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let (text, to) = (b"still there?\n", SockAddr::from(vip(3)));
        let sent = socket.send_to_with_flags(text, &to, libc::MSG_FASTOPEN);
        assert_eq!(sent.expect("sent"), text.len());
        Open::over(TcpStream::from(socket)).expect("an answer")
    });
    assert_eq!(open.answer.from, vip(3));
}

/// Disconnects a socket, by a connect to the address family AF_UNSPEC.
pub(crate) fn disconnect(socket: &UdpSocket) {
    let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    // SAFETY: zeros are an address of the family AF_UNSPEC; the length is that of an address.
    let nowhere = unsafe { SockAddr::new(SockAddrStorage::zeroed(), length) };
    let disconnected = SockRef::from(socket).connect(&nowhere);
    disconnected.expect("disconnected");
}
