// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two nodes that serve the same services for clients outside. The routers before and behind them
//! change from one node to the other.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::{TcpStream, UdpSocket},
    time::Duration,
};

use lab::node::netns::NetNs;

use crate::{
    agent::Agent,
    connection::answer_as,
    objects::{Service, endpoint},
    world::World,
};

const CLIENT: &str = "203.0.113.9";
/// External IPs of two services that differ only in how a backend is selected: Maglev and random.
const CONSISTENT: &str = "198.51.100.80";
const RANDOM: &str = "198.51.100.81";
const BACKENDS: usize = 3;
const CONNECTIONS: usize = 20;

/// The hosts around the nodes: the router in front, which is the client as well, and the servers.
/// Each has a link to both nodes.
struct Site {
    client: NetNs,
    servers: Vec<NetNs>,
}

fn server_address(server: usize) -> String {
    format!("10.50.0.{}", 10 + server)
}

/// The address that a node has on all of its links.
fn gateway(node: usize) -> String {
    format!("10.9.{node}.1")
}

impl Site {
    fn build(nodes: &[World; 2]) -> Self {
        let host = |name: &str, address: &str| {
            let host = NetNs::new(name).expect("run as root");
            let batch = format!("link set lo up\naddress add {address}/32 dev lo\n");
            host.ip(&batch).expect("loopback");
            let filters = ["ipv4/conf/all/rp_filter", "ipv4/conf/default/rp_filter"];
            host.set(&filters.map(|name| (name, "0"))).expect("filters");
            host
        };
        let site = Self {
            client: host("front", CLIENT),
            servers: (0..BACKENDS)
                .map(|n| host("back", &server_address(n)))
                .collect(),
        };
        for (number, node) in nodes.iter().enumerate() {
            join(number, node.node(), "front", &site.client, CLIENT);
            for (n, server) in site.servers.iter().enumerate() {
                let name = format!("back{n}");
                join(number, node.node(), &name, server, &server_address(n));
            }
        }
        for (n, server) in site.servers.iter().enumerate() {
            answer_as(server, n);
        }
        site
    }
    /// Routes the packets of both directions through this node from now on.
    fn lead_by(&self, node: usize) {
        let by = format!("via {} dev node{node} onlink", gateway(node));
        let batch = format!(
            "route replace {CONSISTENT}/32 {by} src {CLIENT}\nroute replace {RANDOM}/32 {by} src {CLIENT}\n"
        );
        self.client.ip(&batch).expect("routes");
        for server in &self.servers {
            let batch = format!("route replace default {by}\n");
            server.ip(&batch).expect("a route");
        }
    }
}

/// Joins a node and a host that has this address by a link.
fn join(number: usize, node: &NetNs, name: &str, host: &NetNs, address: &str) {
    let gateway = gateway(number);
    let batch = format!(
        "link add {name} type veth peer name node{number} netns {}\naddress add {gateway}/32 dev {name}\nlink set {name} up\nroute add {address}/32 dev {name}\n",
        host.path()
    );
    node.ip(&batch).expect("a link");
    host.ip(&format!("link set node{number} up\n"))
        .expect("its other end");
}

/// An open connection of the client.
struct Open(BufReader<TcpStream>);

impl Open {
    fn connect(site: &Site, to: &str) -> Self {
        let to = format!("{to}:80").parse().expect("an address");
        let patience = Duration::from_secs(10);
        let connected = site
            .client
            .enter(|| TcpStream::connect_timeout(&to, patience));
        let stream = connected.expect("enter the client").expect("connected");
        stream.set_read_timeout(Some(patience)).expect("a timeout");
        Self(BufReader::new(stream))
    }
    /// Sends a line; returns the answer, which names the server.
    fn ask(&mut self, line: &str) -> io::Result<String> {
        self.0.get_mut().write_all(format!("{line}\n").as_bytes())?;
        let mut answer = String::new();
        match self.0.read_line(&mut answer)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(answer.replace(line, "").trim().to_owned()),
        }
    }
}

fn ask_datagram(socket: &UdpSocket) -> String {
    let to = format!("{CONSISTENT}:53");
    let mut buffer = [0; 64];
    // The first datagrams can be lost before the neighbour is known.
    for _ in 0..10 {
        socket.send_to(b"?", &to).expect("sent");
        if let Ok((length, from)) = socket.recv_from(&mut buffer) {
            assert_eq!(from.to_string(), to, "the service answers");
            return String::from_utf8_lossy(&buffer[..length]).into_owned();
        }
    }
    panic!("no answer from {to}")
}

fn service(name: &str, address: &str, selection: &str, cluster_ip: &str) -> Service {
    let endpoints = (0..BACKENDS).map(|n| endpoint(&server_address(n)));
    Service::new(name, cluster_ip)
        .ports(&[("web", "TCP", 80, None), ("dns", "UDP", 53, None)])
        .annotated("service.portolan.dev/selection", selection)
        .balanced(address)
        .local()
        .endpoints(endpoints.collect())
}

/// The number of packets with this outcome at a node, from its metrics.
fn counted(agent: &Agent, outcome: &str) -> u64 {
    let name = format!("portolan_packets_total{{outcome=\"{outcome}\"}}");
    agent.metric(&name).unwrap_or_default()
}

/// Both nodes have the same node name and manifests, so every endpoint is local to both, and
/// servers see the clients' own addresses.
#[test]
fn maglev_connections_and_udp_endpoints_survive_a_node_failover() {
    let nodes = [World::build(), World::build()];
    let site = Site::build(&nodes);
    for node in &nodes {
        let web = service("web", CONSISTENT, "maglev", "172.30.1.1");
        node.write("web.yaml", web);
        let other = service("other", RANDOM, "random", "172.30.1.2");
        node.write("other.yaml", other);
    }
    let agents = [nodes[0].start(7), nodes[1].start(7)];

    site.lead_by(0);
    let mut open: Vec<_> = (0..CONNECTIONS)
        .map(|_| Open::connect(&site, CONSISTENT))
        .collect();
    let mut others: Vec<_> = (0..CONNECTIONS)
        .map(|_| Open::connect(&site, RANDOM))
        .collect();
    let ask = |all: &mut Vec<Open>| -> Vec<_> {
        all.iter_mut()
            .map(|one| one.ask("which are you?").map_err(|error| error.kind()))
            .collect()
    };
    let (before, others_before) = (ask(&mut open), ask(&mut others));
    assert!(before.iter().chain(&others_before).all(Result::is_ok));
    let sockets: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let socket = site.client.enter(|| UdpSocket::bind((CLIENT, 0)));
            let socket = socket.expect("enter the client").expect("a socket");
            let patience = Some(Duration::from_secs(1));
            socket.set_read_timeout(patience).expect("a timeout");
            socket
        })
        .collect();
    let datagrams = || -> Vec<_> { sockets.iter().map(ask_datagram).collect() };
    let answered = datagrams();
    let servers: std::collections::BTreeSet<_> = before.iter().flatten().collect();
    assert_eq!(servers.len(), BACKENDS, "{before:?}");

    site.lead_by(1);
    let node = nodes[0].node();
    node.ip("link set front down\n").expect("the node is gone");
    assert_eq!(ask(&mut open), before, "{}", agents[1].log());
    assert_eq!(ask(&mut open), before, "and go on");
    assert_eq!(datagrams(), answered);
    let picked_up = counted(&agents[1], "forwarded_mid_stream");
    assert_eq!(picked_up, CONNECTIONS as u64);
    for other in ask(&mut others) {
        assert_eq!(other, Err(io::ErrorKind::ConnectionReset), "the other kind");
    }
    // Back to the first node, which still has its flow entries.
    node.ip("link set front up\nroute replace 203.0.113.9/32 dev front\n")
        .expect("the node is back");
    site.lead_by(0);
    assert_eq!(ask(&mut open), before, "{}", agents[0].log());
    assert_eq!(counted(&agents[0], "forwarded_mid_stream"), 0);
    for agent in agents {
        assert!(agent.stop().success());
    }
}
