// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that sockets follow an external IP that moves to another service. What they see when
//! endpoints are replaced is in `kept`; a client's port that is used again, in tests/fuzz/cases.

use std::{
    io::ErrorKind,
    net::{SocketAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use crate::{
    clients::{V4, connected, datagrams, try_ask, try_ask_connected},
    service::{Service, address, vip},
    world::{From, World},
};

/// Returns true if a connected socket gets an answer of the pod `by` within a second. A socket of
/// the node is closed when its backend has gone, and connects again to `to`; a pod's is not.
fn is_served_again(socket: &UdpSocket, to: SocketAddr, from: From, by: u8) -> bool {
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
