// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of open sockets while endpoints are removed, entries expire, an external IP moves to
//! another service, and the node drains. What sockets see of other changes is in `kept`.

use std::{
    io::ErrorKind,
    net::{SocketAddr, UdpSocket},
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{
    clients::{V4, ask, connected, datagrams, try_ask},
    service::{Service, address, two_over_udp, vip},
    world::{From, ONE, PORT, World},
};

#[test]
fn udp_sockets_are_closed_kept_or_forgotten_as_their_backends_go() {
    let config = "conntrack: {udpStreamTimeout: 1s}\n";
    let mut world = World::new(config, &two_over_udp(&[20]));
    a_thousand_node_sockets_are_closed_and_get_another_backend_anew(&mut world);
    idle_udp_entries_are_removed_but_not_those_of_connected_sockets(&world);
    connected_udp_sockets_keep_their_backend_while_the_node_drains(&mut world);
}

fn a_thousand_node_sockets_are_closed_and_get_another_backend_anew(world: &mut World) {
    const SOCKETS: usize = 1000;
    let lost: Vec<UdpSocket> = world.run(From::Node, || {
        (0..SOCKETS).map(|_| connected(V4, vip(1))).collect()
    });
    let [other, direct] = [vip(2), address(&format!("{ONE}:{PORT}"))]
        .map(|to| world.run(From::Node, || connected(V4, to)));
    let pods = world.run(From::Pod, || connected(V4, vip(1)));
    assert_eq!(world.sockets().len(), SOCKETS + 1);
    let began = Instant::now();
    world.publish(&two_over_udp(&[21]));
    let took = began.elapsed();
    for socket in &lost {
        let error = socket.take_error().expect("asked").expect("an error");
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        socket.connect(vip(1)).expect("connect again");
        let answer = ask(socket, None);
        assert_eq!((answer.by, answer.from), (21, vip(1)));
        assert_eq!(socket.peer_addr().expect("a peer"), vip(1));
    }
    assert_eq!(ask(&other, None).by, 21);
    assert_eq!(ask(&direct, None).by, 20);
    assert_eq!(ask(&pods, None).by, 21);
    assert!(took < Duration::from_secs(5), "{took:?}");
}

fn idle_udp_entries_are_removed_but_not_those_of_connected_sockets(world: &World) {
    assert_eq!(world.after_closing(0), []);
    let socket = world.run(From::Pod, || datagrams(V4));
    let steady = world.run(From::Node, || connected(V4, vip(2)));
    assert_eq!(ask(&socket, vip(1)).by, 21);
    assert_eq!(world.sockets().len(), 2);
    let deadline = Instant::now() + Duration::from_secs(8);
    while world.sockets().len() > 1 && Instant::now() < deadline {
        sleep(Duration::from_millis(200));
    }
    let rows = world.sockets();
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert!(rows[0].connected);
    assert_eq!(ask(&steady, None).from, vip(2));
    assert_eq!(ask(&socket, vip(1)).from, vip(1));
}

fn connected_udp_sockets_keep_their_backend_while_the_node_drains(world: &mut World) {
    let sockets = [From::Pod, From::Node].map(|from| world.run(from, || connected(V4, vip(2))));
    let ask_all = || sockets.each_ref().map(|socket| ask(socket, None).by);
    assert_eq!(ask_all(), [21, 21]);
    let mut drain = world.drain();
    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until {
        assert_eq!(ask_all(), [21, 21]);
        sleep(Duration::from_millis(50));
    }
    drain.kill().expect("to be ended");
    drain.wait().expect("its end");
}

/// Returns true if a connected socket gets an answer of the pod `by` within a second. A socket of
/// the node is closed when its backend has gone, and connects again to `to`; a pod's is not.
fn is_served_again(socket: &UdpSocket, to: SocketAddr, from: From, by: u8) -> bool {
    let patience = Some(Duration::from_millis(100));
    socket.set_read_timeout(patience).expect("a time limit");
    let deadline = Instant::now() + Duration::from_secs(1);
    while Instant::now() < deadline {
        match try_ask(socket, None) {
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

#[test]
fn datagrams_follow_an_external_ip_that_moves_to_another_service() {
    let services = |with: u8| {
        [(1, 20), (2, 21)].map(|(number, endpoint)| Service {
            external_ip: (number == with).then_some("198.51.100.7"),
            ..Service::new(number, "UDP", &[endpoint])
        })
    };
    let mut world = World::new("", &services(1));
    let to = address("198.51.100.7:80");
    let sockets = [From::Pod, From::Node].map(|from| {
        let make = || (from, datagrams(V4), datagrams(V4), connected(V4, to));
        world.run(from, make)
    });
    // The last answer of each within two seconds.
    let by = |sender: &UdpSocket, steady: &UdpSocket| {
        let mut last = [None, None];
        for _ in 0..20 {
            sleep(Duration::from_millis(100));
            for (last, (socket, to)) in last.iter_mut().zip([(sender, to), (steady, vip(1))]) {
                let answer = try_ask(socket, to).map(|answer| answer.by);
                *last = answer.ok().or(last.take());
            }
        }
        last.map(Option::unwrap_or_default)
    };
    for (with, pod) in [(1, 20), (2, 21), (1, 20)] {
        world.publish(&services(with));
        for (from, sender, steady, connected) in &sockets {
            // Its own address stays.
            assert_eq!(by(sender, steady), [pod, 20], "{from:?}");
            let served = is_served_again(connected, to, *from, pod);
            assert!(served, "{from:?}, connected: {pod}");
        }
    }
}
