// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The node's own connections directly to an endpoint, from the same address and source ports that
//! masqueraded clients get.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use lab::node::netns::NetNs;
use proxy_common::{FlowEntry, FlowKey, FlowKind, V4, flow::ClientInterface, maps::FLOWS_V4};
use socket2::{Domain, Socket, Type};

use crate::{
    agent::{Agent, eventually},
    connection::{answer_questions, ask},
    objects::Service,
    repair::table,
    world::World,
};

/// The node's address as the endpoint sees it: that of the interface to the endpoint.
const OWN: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 40, 1, 10);
const ENDPOINT: ([u8; 4], u16) = ([10, 40, 1, 20], 8080);
const NODE_PORT: ([u8; 4], u16) = ([10, 40, 0, 1], 30001);
const ANSWER: Duration = Duration::from_secs(2);
const CLOSED_WITHIN: Duration = Duration::from_secs(5);
const EACH: u16 = 15;

/// Opens a TCP connection from an address and port of a host. Waits while the last connection from
/// there is being closed: it occupies address and port until TIME-WAIT.
fn tcp(host: &NetNs, from: (Ipv4Addr, u16), to: SocketAddr) -> TcpStream {
    let deadline = Instant::now() + CLOSED_WITHIN;
    loop {
        match host.enter(|| connect_from(from.into(), to)) {
            Ok(Ok(stream)) => return stream,
            Ok(Err(error))
                if error.kind() == ErrorKind::AddrNotAvailable && Instant::now() < deadline =>
            {
                thread::sleep(Duration::from_millis(10));
            }
            failed => panic!("from {from:?} to {to}: {failed:?}"),
        }
    }
}

/// Opens a TCP connection from this address and port, also if another socket uses them.
pub(crate) fn connect_from(from: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&from.into())?;
    socket.connect_timeout(&to.into(), ANSWER)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    Ok(stream)
}

fn echoes(stream: &mut TcpStream, line: &str) {
    let mut answer = vec![0; line.len() + 1];
    stream
        .write_all(format!("{line}\n").as_bytes())
        .expect("sent");
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer, format!("{line}\n").as_bytes());
}

/// Returns the source ports with which connections of the node left instead of their own ports.
fn ports_given(world: &World) -> Vec<u16> {
    let flows = table::<FlowKey<V4>, FlowEntry<V4>>(world, FLOWS_V4).entries();
    let flows = flows.expect("readable").into_iter();
    let given = flows.filter(|(key, entry)| {
        entry.kind == FlowKind::ORIGINAL && key.interface() == ClientInterface::NODE
    });
    given.map(|(_, entry)| entry.client_port.host()).collect()
}

#[test]
fn connections_of_node_and_clients_from_the_same_ports_all_work() {
    let world = World::serving();
    let questions = Service::new("questions", "172.30.1.9");
    let questions = questions.ports(&[("", "UDP", 80, Some(30009))]);
    world.write("questions.yaml", questions);
    answer_questions(world.server());
    // The node's own connections may use every port from 1024 on.
    world.set("ipv4/ip_local_port_range", "1024 65535");
    let agent = world.start(7);
    agent.says(&["WARN", "net.ipv4.ip_local_port_range", "32768-60999"]);
    the_port_that_another_connection_left_with_works(&world);
    streams(&world);
    datagrams(&world, &agent);
    // A changed range of local ports changes the masquerade ports.
    world.set("ipv4/ip_local_port_range", "1024 60999");
    let settings = table::<u32, proxy_common::Settings>(&world, "settings");
    eventually("it is followed", &agent, || {
        let stored = settings.lookup(&0).expect("readable");
        stored.is_some_and(|stored| stored.masquerade_ports.0 == [61_000, 65_535, 0, 0])
    });
}

fn the_port_that_another_connection_left_with_works(world: &World) {
    let (node, client) = (world.node(), world.client());
    let (endpoint, service) = (ENDPOINT.into(), NODE_PORT.into());
    let masqueraded = tcp(client, (CLIENT, 20_000), service);
    let mut moved = tcp(node, (OWN, 20_000), endpoint);
    let given = ports_given(world);
    assert_eq!(given.len(), 1, "{given:?}");
    for round in ["while the other is open", "after it was closed"] {
        let mut later = tcp(node, (OWN, given[0]), endpoint);
        echoes(&mut later, round);
        if round == "while the other is open" {
            echoes(&mut moved, round);
            moved.shutdown(Shutdown::Both).expect("closed");
        }
    }
    drop(masqueraded);
}

/// Source ports, and whether the node or a client of the service uses each of them now: from some
/// ports the client is first, from the others the node.
fn in_both_orders() -> Vec<(bool, u16)> {
    let client_first = (22_000..22_000 + EACH).flat_map(|port| [(false, port), (true, port)]);
    let node_first = (21_000..21_000 + EACH).flat_map(|port| [(true, port), (false, port)]);
    client_first.chain(node_first).collect()
}

fn streams(world: &World) {
    let connect = |(is_node, port)| match is_node {
        true => tcp(world.node(), (OWN, port), ENDPOINT.into()),
        false => tcp(world.client(), (CLIENT, port), NODE_PORT.into()),
    };
    let mut open: Vec<_> = in_both_orders().into_iter().map(connect).collect();
    for round in ["first", "second"] {
        for stream in &mut open {
            echoes(stream, round);
        }
    }
    // Uses the same ports again.
    drop(open);
    for end in in_both_orders() {
        echoes(&mut connect(end), "again");
    }
}

fn datagrams(world: &World, agent: &Agent) {
    let connect = |(is_node, port)| {
        let service = SocketAddr::from(([10, 40, 0, 1], 30009));
        let (host, from, to) = match is_node {
            true => (world.node(), OWN, ENDPOINT.into()),
            false => (world.client(), CLIENT, service),
        };
        let socket = host.enter(|| UdpSocket::bind((from, port)));
        let socket = socket.expect("enter the host").expect("a socket");
        socket.set_read_timeout(Some(ANSWER)).expect("a time limit");
        socket.connect(to).expect("a destination");
        socket
    };
    // The agent serves UDP only after the time for importing another proxy's UDP flows.
    eventually("datagrams are served", agent, || {
        let socket = connect((false, 19_999));
        socket.send(b"?").is_ok() && socket.recv(&mut [0]).is_ok()
    });
    let open = in_both_orders().into_iter().map(|end| {
        let socket = connect(end);
        ask(&socket, "first");
        socket
    });
    let open: Vec<_> = open.collect();
    for round in ["second", "third"] {
        for socket in &open {
            ask(socket, round);
        }
    }
}
