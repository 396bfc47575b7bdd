// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two nodes that serve the same services for clients outside, and routers in front and behind that
//! change from one node to the other.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use lab::node::netns::NetNs;

use crate::{agent::Agent, world::World};

const CLIENT: &str = "203.0.113.9";
/// Two services that differ only in how a backend is selected.
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
            serve(server, n).expect("a server");
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

/// Starts a TCP and UDP server that answers each line with its own number before it.
fn serve(host: &NetNs, number: usize) -> io::Result<()> {
    let address = server_address(number);
    let (listener, socket) = host
        .enter(|| {
            let listener = TcpListener::bind((address.as_str(), 8080))?;
            io::Result::Ok((listener, UdpSocket::bind((address.as_str(), 8080))?))
        })
        .expect("enter the host")?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut lines = BufReader::new(stream);
                let mut line = String::new();
                while lines.read_line(&mut line).is_ok_and(|read| read > 0) {
                    if write!(lines.get_mut(), "{number} {line}").is_err() {
                        return;
                    }
                    line.clear();
                }
            });
        }
    });
    thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let line = String::from_utf8_lossy(&buffer[..length]);
            _ = socket.send_to(format!("{number} {line}").as_bytes(), from);
        }
    });
    Ok(())
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

fn service(name: &str, address: &str, selection: &str, last: usize) -> String {
    let endpoints: Vec<_> = (0..BACKENDS)
        .map(|n| format!("{{addresses: [{}], nodeName: node-a}}", server_address(n)))
        .collect();
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop, annotations: {{service.portolan.dev/selection: {selection}}}}}
spec:
  type: LoadBalancer
  clusterIP: 172.30.1.{last}
  clusterIPs: [172.30.1.{last}]
  externalTrafficPolicy: Local
  ports: [{{name: web, port: 80}}, {{name: dns, port: 53, protocol: UDP}}]
status: {{loadBalancer: {{ingress: [{{ip: {address}}}]}}}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{name: web, port: 8080}}, {{name: dns, port: 8080, protocol: UDP}}]
endpoints: [{}]
",
        endpoints.join(", ")
    )
}

/// The number of packets with this outcome at a node, from its metrics.
fn counted(agent: &Agent<'_>, outcome: &str) -> u64 {
    let metrics = agent.metrics("/metrics");
    let name = format!("portolan_packets_total{{outcome=\"{outcome}\"}} ");
    let mut lines = metrics.lines();
    let count = lines.find_map(|line| line.strip_prefix(&name));
    count.map_or(0, |count| count.parse().expect("a number"))
}

/// Both nodes read the same manifests under one node name: every endpoint is local to each, so that
/// clients keep their address.
#[test]
fn connections_survive_the_change_to_another_node_and_datagrams_keep_their_endpoint() {
    let nodes = [World::build(), World::build()];
    let site = Site::build(&nodes);
    for node in &nodes {
        node.write("web.yaml", &service("web", CONSISTENT, "maglev", 1));
        node.write("other.yaml", &service("other", RANDOM, "random", 2));
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
