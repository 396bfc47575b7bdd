// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of open sockets while endpoints are added and removed.

use std::{
    io::ErrorKind,
    net::UdpSocket,
    thread::sleep,
    time::{Duration, Instant},
};

use lab::node::settings::SocketBalancing;
use rstest::rstest;

use crate::{
    clients::{V4, ask, ask_connected, connected, datagrams, hear, try_ask, try_ask_connected},
    service::{Service, address, vip},
    world::{From, ONE, PORT, World},
};

#[rstest]
fn an_unconnected_udp_socket_keeps_its_backend_until_it_is_removed(
    #[values(From::Pod, From::Node)] from: From,
) {
    let mut world = World::all(&[Service::new(1, "UDP", &[20])]);
    let socket = world.run(from, || datagrams(V4));
    assert_eq!(ask(&socket, vip(1)).by, "one");
    world.publish(&[Service::new(1, "UDP", &[20, 21])]);
    for _ in 0..30 {
        assert_eq!(ask(&socket, vip(1)).by, "one");
    }
    world.publish(&[Service::new(1, "UDP", &[21])]);
    let moved = ask(&socket, vip(1));
    assert_eq!((moved.by.as_str(), moved.from), ("two", vip(1)), "at once");
    world.publish(&[Service::new(1, "UDP", &[])]);
    assert!(try_ask(&socket, vip(1)).is_err(), "nobody serves");
    world.publish(&[Service::new(1, "UDP", &[20])]);
    assert_eq!(ask(&socket, vip(1)).by, "one");
}

#[test]
fn a_pods_connected_udp_socket_gets_another_backend_after_a_removal() {
    let mut world = World::all(&[Service::new(1, "UDP", &[20])]);
    let socket = world.run(From::Pod, || connected(V4, vip(1)));
    let later = world.run(From::Pod, || connected(V4, vip(1)));
    assert_eq!(ask_connected(&socket).by, "one");
    for (endpoints, by) in [(&[21][..], "two"), (&[20, 21], "two"), (&[20], "one")] {
        world.publish(&[Service::new(1, "UDP", endpoints)]);
        for _ in 0..3 {
            let answer = ask_connected(&socket);
            assert_eq!((answer.by.as_str(), answer.from), (by, vip(1)));
            assert_eq!(answer.seen.ip().to_string(), "10.40.1.10");
        }
        assert_eq!(socket.peer_addr().expect("a peer"), vip(1));
    }
    // The socket `later` has sent nothing before its backend was removed.
    world.publish(&[Service::new(1, "UDP", &[21])]);
    assert_eq!(ask_connected(&later).by, "two");
    world.publish(&[Service::new(1, "UDP", &[])]);
    assert!(try_ask_connected(&socket).is_err(), "nobody serves");
}

#[test]
fn an_open_tcp_connection_outlives_the_removal_of_its_endpoint() {
    let mut world = World::all(&[Service::new(1, "TCP", &[20])]);
    let mut open = world.open(From::Pod, vip(1));
    world.publish(&[Service::new(1, "TCP", &[21])]);
    assert!(open.is_alive(), "as kube-proxy's");
    let new = world.open(From::Pod, vip(1));
    assert_eq!(new.answer.by, "two");
}

#[test]
fn a_thousand_node_sockets_are_closed_and_get_another_backend_when_they_connect_again() {
    const SOCKETS: usize = 1000;
    let services = |first: &[u8]| [Service::new(1, "UDP", first), Service::new(2, "UDP", &[21])];
    let mut world = World::all(&services(&[20]));
    let lost: Vec<UdpSocket> = world.run(From::Node, || {
        (0..SOCKETS).map(|_| connected(V4, vip(1))).collect()
    });
    let [other, direct] = world.run(From::Node, || {
        [
            connected(V4, vip(2)),
            connected(V4, address(&format!("{ONE}:{PORT}"))),
        ]
    });
    let pods = world.run(From::Pod, || connected(V4, vip(1)));
    assert_eq!(world.sockets().len(), SOCKETS + 1);
    let began = Instant::now();
    world.publish(&services(&[21]));
    let took = began.elapsed();
    for socket in &lost {
        let error = socket.take_error().expect("asked").expect("an error");
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        socket.connect(vip(1)).expect("connect again");
        let answer = ask_connected(socket);
        assert_eq!((answer.by.as_str(), answer.from), ("two", vip(1)));
        assert_eq!(socket.peer_addr().expect("a peer"), vip(1));
    }
    assert_eq!(ask_connected(&other).by, "two");
    assert_eq!(ask_connected(&direct).by, "one");
    assert_eq!(ask_connected(&pods).by, "two");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn two_services_on_one_socket_get_different_backends_where_they_can() {
    let world = World::all(&[
        Service::new(1, "UDP", &[20, 21]),
        Service::new(2, "UDP", &[20, 21]),
    ]);
    for _ in 0..10 {
        let socket = world.run(From::Pod, || datagrams(V4));
        socket.send_to(b"who?", vip(1)).expect("sent");
        socket.send_to(b"who?", vip(2)).expect("sent");
        let (first, second) = (hear(&socket), hear(&socket));
        let mut from = [first.from, second.from];
        from.sort();
        assert_eq!(from, [vip(1), vip(2)], "each under its own name");
        assert_ne!(first.by, second.by);
    }
    world.expect_no_socket();
}

#[test]
fn an_answer_of_a_shared_backend_has_the_last_used_services_address() {
    let world = World::all(&[Service::new(1, "UDP", &[20]), Service::new(2, "UDP", &[20])]);
    let socket = world.run(From::Pod, || datagrams(V4));
    for number in [1, 2, 2, 1, 2, 1] {
        let answer = ask(&socket, vip(number));
        assert_eq!(answer.from, vip(number));
    }
    drop(socket);
    world.expect_no_socket();
}

#[test]
fn idle_udp_entries_are_removed_but_not_those_of_connected_sockets() {
    let config = "conntrack: {udpStreamTimeout: 1s}\n";
    let services = [Service::new(1, "UDP", &[20]), Service::new(2, "UDP", &[21])];
    let world = World::new(SocketBalancing::All, config, &services);
    let socket = world.run(From::Pod, || datagrams(V4));
    let steady = world.run(From::Node, || connected(V4, vip(2)));
    assert_eq!(ask(&socket, vip(1)).by, "one");
    assert_eq!(world.sockets().len(), 2);
    let deadline = Instant::now() + Duration::from_secs(8);
    while world.sockets().len() > 1 && Instant::now() < deadline {
        sleep(Duration::from_millis(200));
    }
    let rows = world.sockets();
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert!(rows[0].connected);
    assert_eq!(ask_connected(&steady).from, vip(2));
    assert_eq!(ask(&socket, vip(1)).from, vip(1));
}

#[rstest]
fn connected_udp_sockets_keep_their_backend_while_the_node_drains(
    #[values(From::Pod, From::Node)] from: From,
) {
    let mut world = World::all(&[Service::new(1, "UDP", &[20])]);
    let socket = world.run(from, || connected(V4, vip(1)));
    assert_eq!(ask_connected(&socket).by, "one");
    let mut drain = world.drain();
    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until {
        assert_eq!(ask_connected(&socket).by, "one");
        sleep(Duration::from_millis(50));
    }
    drain.kill().expect("to be ended");
    drain.wait().expect("its end");
}
