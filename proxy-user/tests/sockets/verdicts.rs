// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that the socket hooks reject and drop connections, and that the right counter counts each.

use std::{
    io::{self, ErrorKind},
    net::{TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use proxy_common::Counter;

use crate::{
    clients::{Open, V4, datagrams, try_ask},
    service::{Service, address, vip},
    world::{From, World},
};

/// The kind of error with which a call has failed.
#[track_caller]
fn kind<T: std::fmt::Debug>(result: io::Result<T>) -> ErrorKind {
    result.expect_err("an error").kind()
}

const SILENCE: Duration = Duration::from_millis(700);

#[test]
fn refusals_and_drops_at_sockets_are_counted_and_leave_nothing_behind() {
    let config = "portolan: {unallocatedClusterIPs: drop}\n";
    let services = [
        Service::new(1, "TCP", &[20]),
        local_only(2, "TCP"),
        local_only(3, "UDP"),
        Service::new(4, "TCP", &[]),
        Service::new(5, "UDP", &[]),
    ];
    let world = World::new(config, &services);
    refusals_are_counted(&world);
    an_so_mark_set_by_a_process_is_kept_and_drops_no_packets(&world);
    traffic_policy_drops_at_node_sockets_are_silent_and_counted(&world);
    connects_to_an_unallocated_cluster_ip_time_out(&world);
    for from in [From::Node, From::Pod] {
        let alive = world.run(from, || Open::to(vip(1)));
        assert!(alive.is_ok(), "others are served");
    }
    world.expect_no_socket();
}

fn refusals_are_counted(world: &World) {
    let unserved = address("172.30.0.1:81");
    for (to, counter) in [
        (vip(4), Counter::RejectedNoEndpoint),
        (unserved, Counter::RejectedUnserved),
    ] {
        for (from, sum) in [(From::Pod, 1), (From::Node, 2)] {
            let before = Instant::now();
            let refused = world.run(from, || TcpStream::connect(to));
            assert_eq!(kind(refused), ErrorKind::ConnectionRefused);
            assert!(before.elapsed() < Duration::from_secs(1));
            assert_eq!(world.count(counter), sum, "{from:?} {to}");
        }
    }
    let socket = world.run(From::Pod, || datagrams(V4));
    let refused = socket.send_to(b"who?", vip(5));
    assert_eq!(kind(refused), ErrorKind::ConnectionRefused);
    // A pod's connected UDP socket gets the error only when it sends.
    socket.connect(vip(5)).expect("connect");
    let refused = socket.send(b"who?").and_then(|_| socket.recv(&mut [0; 8]));
    assert_eq!(kind(refused), ErrorKind::ConnectionRefused);
    assert_eq!(world.count(Counter::RejectedNoEndpoint), 4);
    assert_eq!(world.sockets(), []);
}

/// Returns a service with `internalTrafficPolicy: Local`; its endpoint is on another node.
fn local_only(number: u8, protocol: &'static str) -> Service {
    Service {
        local: true,
        far: true,
        ..Service::new(number, protocol, &[])
    }
}

fn traffic_policy_drops_at_node_sockets_are_silent_and_counted(world: &World) {
    let before = world.count(Counter::DroppedNoLocalEndpoint);
    let dropped = || world.count(Counter::DroppedNoLocalEndpoint) - before;
    let silent = world.run(From::Node, || TcpStream::connect_timeout(&vip(2), SILENCE));
    assert_eq!(kind(silent), ErrorKind::TimedOut);
    assert_eq!(dropped(), 1);
    let socket = world.run(From::Node, || datagrams(V4));
    let refused = kind(socket.send_to(b"who?", vip(3)));
    assert_eq!(refused, ErrorKind::PermissionDenied, "EPERM");
    assert_eq!(dropped(), 2);
    // A pod's datagram is dropped by the packet path.
    let socket = world.run(From::Pod, || datagrams(V4));
    let limited = socket.set_read_timeout(Some(SILENCE));
    limited.expect("a time limit");
    assert!(try_ask(&socket, vip(3)).is_err());
    assert_eq!(dropped(), 3, "per packet");
}

fn an_so_mark_set_by_a_process_is_kept_and_drops_no_packets(world: &World) {
    use socket2::{Domain, Socket, Type};
    // wg-quick's default mark. It contains portolan's bits for dropping and for masquerading.
    const MARK: u32 = 0xca6c;
    let marked = |kind| {
        world.run(From::Node, || {
            let socket = Socket::new(Domain::IPV4, kind, None).expect("a socket");
            socket.set_mark(MARK).expect("privilege");
            socket
        })
    };
    let pod = address("10.40.1.20:8080");
    for to in [vip(1), pod] {
        let socket = marked(Type::STREAM);
        let connected = socket.connect_timeout(&to.into(), crate::world::PATIENCE);
        connected.unwrap_or_else(|error| panic!("{to}: {error}"));
        assert_eq!(socket.mark().expect("readable"), MARK);
    }
    assert_eq!(world.count(Counter::DroppedByMark), 0);
    let socket = marked(Type::STREAM);
    let silent = socket.connect_timeout(&vip(2).into(), SILENCE);
    assert_eq!(kind(silent), ErrorKind::TimedOut);
    // Nothing leaves the node.
    assert!(world.count(Counter::DroppedByMark) > 0);
    drop(socket);
    // The socket's datagrams are dropped until a connect elsewhere, which restores its own mark.
    let socket = marked(Type::DGRAM);
    socket.connect(&vip(3).into()).expect("silence is no error");
    socket.send(b"who?").expect("dropped on its way");
    socket.connect(&pod.into()).expect("connect to a pod");
    assert_eq!(socket.mark().expect("readable"), MARK);
    let answer = try_ask(&UdpSocket::from(socket), None);
    answer.expect("nothing is dropped any more");
}

fn connects_to_an_unallocated_cluster_ip_time_out(world: &World) {
    let nobody = address("172.30.9.9:80");
    let marked = world.count(Counter::DroppedByMark);
    for (from, counted) in [(From::Node, 1), (From::Pod, 2)] {
        let silent = world.run(from, || TcpStream::connect_timeout(&nobody, SILENCE));
        assert_eq!(kind(silent), ErrorKind::TimedOut);
        let sum = world.count(Counter::DroppedUnallocated);
        assert!(sum >= counted, "{from:?}: {sum}");
    }
    // Nothing leaves the node.
    assert!(world.count(Counter::DroppedByMark) > marked);
    let socket = world.run(From::Node, || datagrams(V4));
    let refused = kind(socket.send_to(b"who?", nobody));
    assert_eq!(refused, ErrorKind::PermissionDenied, "EPERM");
}
