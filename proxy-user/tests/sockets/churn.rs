// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of open sockets while endpoints are removed, entries expire, and the node drains. What
//! sockets see of other changes is in `kept`.

use std::{
    io::ErrorKind,
    net::UdpSocket,
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{
    clients::{V4, ask, ask_connected, connected, datagrams},
    service::{address, two_over_udp, vip},
    world::{From, ONE, PORT, World},
};

#[test]
fn udp_sockets_are_closed_kept_or_forgotten_as_their_backends_go() {
    let config = "conntrack: {udpStreamTimeout: 1s}\n";
    let mut world = World::new(config, &two_over_udp(&[20]));
    a_thousand_node_sockets_are_closed_and_get_another_backend_when_they_connect_again(&mut world);
    idle_udp_entries_are_removed_but_not_those_of_connected_sockets(&world);
    connected_udp_sockets_keep_their_backend_while_the_node_drains(&mut world);
}

fn a_thousand_node_sockets_are_closed_and_get_another_backend_when_they_connect_again(
    world: &mut World,
) {
    const SOCKETS: usize = 1000;
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
    world.publish(&two_over_udp(&[21]));
    let took = began.elapsed();
    for socket in &lost {
        let error = socket.take_error().expect("asked").expect("an error");
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        socket.connect(vip(1)).expect("connect again");
        let answer = ask_connected(socket);
        assert_eq!((answer.by, answer.from), (21, vip(1)));
        assert_eq!(socket.peer_addr().expect("a peer"), vip(1));
    }
    assert_eq!(ask_connected(&other).by, 21);
    assert_eq!(ask_connected(&direct).by, 20);
    assert_eq!(ask_connected(&pods).by, 21);
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
    assert_eq!(ask_connected(&steady).from, vip(2));
    assert_eq!(ask(&socket, vip(1)).from, vip(1));
}

fn connected_udp_sockets_keep_their_backend_while_the_node_drains(world: &mut World) {
    let sockets = [From::Pod, From::Node].map(|from| world.run(from, || connected(V4, vip(2))));
    let ask_all = || sockets.each_ref().map(|socket| ask_connected(socket).by);
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
