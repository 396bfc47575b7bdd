// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of system calls other than `connect` and `sendto` that run the socket hooks.
#![expect(unsafe_code, reason = "AF_UNSPEC has no safe wrapper here")]

use std::{
    net::{TcpStream, UdpSocket},
    os::fd::AsFd,
    thread,
};

use nix::poll::{PollFd, PollFlags, poll};
use socket2::{Domain, SockAddr, SockAddrStorage, SockRef, Socket, Type};

use crate::{
    clients::{Open, V4, ask, datagrams},
    service::{Service, address, vip},
    world::{From, World},
};

#[test]
fn whatever_system_call_a_socket_uses_it_is_translated() {
    let world = World::new(
        "",
        &[
            Service::new(1, "UDP", &[20, 21]),
            Service::new(3, "TCP", &[20, 21]),
        ],
    );
    several_sockets_on_one_port_each_have_their_own_backend(&world);
    world.expect_no_socket();
    a_nonblocking_connect_is_translated(&world);
    a_tcp_fast_open_by_sendto_is_translated(&world);
    assert_eq!(world.flows(), 0);
    a_socket_works_on_when_its_process_has_left_the_cgroup(&world);
    world.expect_no_socket();
}

fn several_sockets_on_one_port_each_have_their_own_backend(world: &World) {
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

fn a_nonblocking_connect_is_translated(world: &World) {
    let stream = world.run(From::Pod, || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_nonblocking(true).expect("non-blocking");
        let pending = socket
            .connect(&SockAddr::from(vip(3)))
            .expect_err("in progress");
        assert_eq!(pending.raw_os_error(), Some(libc::EINPROGRESS));
        socket
    });
    let mut connected = [PollFd::new(stream.as_fd(), PollFlags::POLLOUT)];
    assert_eq!(poll(&mut connected, 3000_u16), Ok(1));
    assert_eq!(stream.take_error().expect("its error").map(drop), None);
    stream.set_nonblocking(false).expect("blocking");
    let open = Open::over(TcpStream::from(stream)).expect("an answer");
    assert_eq!(open.answer.from, vip(3));
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

fn a_socket_works_on_when_its_process_has_left_the_cgroup(world: &World) {
    // This thread is no longer in the cgroup when `run` returns.
    let socket = world.run(From::Pod, || datagrams(V4));
    let answer = ask(&socket, vip(1));
    assert_eq!(answer.from, vip(1));
    let elsewhere = thread::scope(|scope| {
        let asked = scope.spawn(|| ask(&socket, vip(1)));
        asked.join().expect("no panic")
    });
    assert_eq!(elsewhere, answer);
}
