// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections to an endpoint whose pod is gone end; connections to every other endpoint go on:
//! IPv4 and IPv6, pods that are routed and pods behind a bridge.

use std::{
    cell::Cell,
    io::{ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use datapath::{maps::tables::Table, read::Flow};
use lab::node::{netns::NetNs, process::Killed};
use proxy_common::{LocalPod, V4, V6, maps};
use rstest::rstest;
use socket2::SockRef;

use crate::{
    agent::Agent,
    configured::replace,
    connection::{Open, listen, sleep_in},
    objects::{Service, node_object, pod_endpoint},
    repair::table,
    world::{ROUTER, World},
};

/// Longer than a pod's link must be gone, and a walk through the tables of a test.
const SETTLED: Duration = Duration::from_secs(8);
/// A client waits this long at most for the end of its connection, on a busy machine.
const SOON: Duration = Duration::from_secs(30);
const READY: [bool; 3] = [true, true, false];
const TERMINATING: [bool; 3] = [false, true, true];

fn at(ip: &str, port: u16) -> String {
    let ip: IpAddr = ip.parse().expect("an address");
    SocketAddr::from((ip, port)).to_string()
}

/// The clients of [`Node::connect`], and how the connection of each ends when the pod is gone.
const ENDS: [(&str, &str); 4] = [
    ("by packets", "reset"),
    ("at the node port", "reset"),
    ("of a pod's socket", "abort"),
    ("of the node", "abort"),
];

/// The node, a client pod, and a client beyond its uplink.
struct Node {
    // By this process the agent finds the sockets of the client pod.
    _process: Killed,
    world: World,
    /// Its address.
    own: &'static str,
    cluster_ip: &'static str,
    /// Whether pods are ports of a bridge, and the network of the pods without the last number: the
    /// bridge, the pod that goes and the one that stays have the numbers 1, 20 and 30.
    is_bridged: bool,
    pods: &'static str,
    length: u8,
    far: NetNs,
    /// The addresses of the pod that goes and of a pod that stays.
    pod: String,
    other: String,
    ports: Cell<u32>,
}

impl Node {
    /// By IPv4 with a bridge, or by IPv6 with routes.
    fn new(is_bridged: bool) -> Self {
        let [own, client, cluster_ip] = match is_bridged {
            true => ["10.40.0.1", "10.40.1.10", "172.30.1.1"],
            false => ["fd00:c0::1", "fd00:40:0:1::10", "fd00:30::1"],
        };
        let (pods, far, length) = match is_bridged {
            true => ("10.40.2.", "192.0.2.", 24),
            false => ("fd00:40:0:2::", "fd00:c1::", 64),
        };
        let world = World::bare(&ROUTER);
        world.ip(&format!("address add {own} dev lo"));
        let ends = [("up0", 1), ("eth0", 9)].map(|(name, n)| format!("{name} {far}{n}/{length}"));
        let outside = world.host(&ends[0], &ends[1]);
        world.ip(&format!("route add default via {far}9 dev up0"));
        if is_bridged {
            world.add_bridge(&format!("{pods}1/{length}"));
        }
        world.plug(&world.client, client);
        world.write("node.yaml", node_object(&[own], 7));
        let [pod, other] = ["20", "30"].map(|last| format!("{pods}{last}"));
        Self {
            _process: sleep_in(&world.client),
            world,
            own,
            cluster_ip,
            is_bridged,
            pods,
            length,
            far: outside,
            pod,
            other,
            ports: Cell::new(0),
        }
    }

    /// Joins a pod with this address, which echoes; a routed one has one of no subnet of the node.
    fn join(&self, address: &str) -> Pod {
        let namespace = if self.is_bridged {
            let port = format!("port{}", self.ports.replace(self.ports.get() + 1));
            let address = format!("{address}/{}", self.length);
            let gateway = format!("{}1", self.pods);
            self.world.bridged_pod(&port, &address, &gateway)
        } else {
            self.world.pod(address)
        };
        let listener = listen(&namespace, at(address, 8080));
        let has_ended = Arc::<AtomicBool>::default();
        let ended = Arc::clone(&has_ended);
        Pod {
            namespace,
            has_ended,
            server: thread::spawn(move || answer(&listener, &ended)),
        }
    }

    /// Writes the service with these endpoints: address; ready, serving, terminating.
    fn publish(&self, version: u64, endpoints: &[(&str, [bool; 3])]) {
        let object = |(ip, conditions): &(&str, [bool; 3])| pod_endpoint(ip, "cart", *conditions);
        let endpoints = endpoints.iter().map(object);
        let cart = Service::new("cart", self.cluster_ip);
        self.world.publish(cart.endpoints(endpoints.collect()));
        let node = node_object(&[self.own], version);
        self.world.write("node.yaml", node);
    }

    /// The interface by which the agent knows a pod to be reached.
    fn known(&self, address: &str) -> Option<u32> {
        let link = match address.parse().expect("an address") {
            IpAddr::V4(address) => {
                let pods: Table<V4, LocalPod> = table(&self.world, maps::PODS_V4);
                pods.lookup(&address.into())
            }
            IpAddr::V6(address) => {
                let pods: Table<V6, LocalPod> = table(&self.world, maps::PODS_V6);
                pods.lookup(&address.into())
            }
        };
        link.expect("readable").map(|link| link.interface)
    }

    /// Has the node send to a pod, and waits until the agent knows the interface by which the pod
    /// is reached; returns the interface.
    fn learn(&self, agent: &Agent, address: &str) -> u32 {
        let mut known = None;
        agent.eventually("the pod is known", || {
            let asked = Open::connect(self.world.node(), &at(address, 8080));
            known = self.known(address);
            asked.is_ok() && known.is_some()
        });
        known.expect("known")
    }

    /// Waits until the link to a pod is gone: the kernel may take its time.
    fn loses(&self, interface: u32, agent: &Agent) {
        let start = format!("{interface}: ");
        agent.eventually("its link is gone", || {
            let links = self.world.tool("ip", "-o link");
            !links.lines().any(|link| link.starts_with(&start))
        });
    }

    /// The connections of [`ENDS`]: by packets from a routed pod and from beyond the uplink, and
    /// translated at sockets of that pod and of the node.
    fn connect(&self) -> [Open; 4] {
        let (world, service) = (&self.world, at(self.cluster_ip, 80));
        let node_port = at(self.own, 30_001);
        [
            world.connect(&service).expect("served to a pod"),
            Open::connect(&self.far, &node_port).expect("served at the node port"),
            world
                .connect_at_socket(&service)
                .expect("at a pod's socket"),
            world.connect_from_node(&service).expect("served here"),
        ]
    }
}

/// A pod that sends back what it gets.
struct Pod {
    namespace: NetNs,
    has_ended: Arc<AtomicBool>,
    server: JoinHandle<()>,
}

impl Pod {
    /// Deletes the pod's network namespace. No connection is closed before: its link is down when
    /// the processes end, as if the node had cut it off.
    fn vanish(self) {
        self.namespace.ip("link set eth0 down\n").expect("its link");
        self.has_ended.store(true, Ordering::Relaxed);
        self.server.join().expect("the server");
    }
}

/// Sends back what comes until `ended`. Then resets all, so that no socket keeps the namespace.
fn answer(listener: &TcpListener, ended: &AtomicBool) {
    listener.set_nonblocking(true).expect("it does not wait");
    let mut open: Vec<TcpStream> = Vec::new();
    let mut buffer = [0; 4096];
    while !ended.load(Ordering::Relaxed) {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true).expect("it does not wait");
            open.push(stream);
        }
        open.retain_mut(|stream| match stream.read(&mut buffer) {
            Ok(0) => false,
            Ok(length) => stream.write_all(&buffer[..length]).is_ok(),
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        });
        thread::sleep(Duration::from_millis(1));
    }
    for stream in &open {
        let linger = SockRef::from(stream).set_linger(Some(Duration::ZERO));
        linger.expect("a reset at its end");
    }
}

/// Expects that each connection ends as it must.
fn ends(open: &mut [Open; 4], agent: &Agent) {
    let begun = Instant::now();
    for (open, (client, text)) in open.iter_mut().zip(ENDS) {
        open.set_patience(2 * SOON);
        let end = open.echo("still there?");
        assert!(end.contains(text), "{client}: {end}: {}", agent.log());
    }
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

/// By default the agent ends them once no slice lists the pod. With `keep` it ends nothing until
/// the setting says so; what has gone meanwhile counts then, too.
#[rstest]
fn clients_of_a_gone_pod_keep_connections_or_get_a_reset(#[values(true, false)] is_bridged: bool) {
    let node = Node::new(is_bridged);
    let (gone, stays) = (node.pod.as_str(), node.other.as_str());
    let pod = node.join(gone);
    let _other = node.join(stays);
    node.publish(7, &[(gone, READY)]);
    let setting = |word: &str| format!("portolan: {{connectionsOfGoneEndpoints: {word}}}\n");
    let keeps = !is_bridged;
    let agent = match keeps {
        true => node.world.start_configured(&setting("keep")),
        false => node.world.start(),
    };
    let nothing_ends = || {
        thread::sleep(SETTLED);
        assert!(!agent.log().contains("that are gone"), "{}", agent.log());
    };
    let mut to_pod = node.connect();
    node.publish(8, &[(stays, READY), (gone, TERMINATING)]);
    agent.wait_for(8);
    let mut to_other = node.connect();
    let interface = node.learn(&agent, gone);
    // At a bridge, each younger port must have a known address.
    node.learn(&agent, stays);

    pod.vanish();
    node.loses(interface, &agent);
    if !keeps {
        // A slice lists it.
        nothing_ends();
    }
    node.publish(9, &[(stays, READY)]);
    agent.wait_for(9);
    if keeps {
        nothing_ends();
        replace(&node.world, &setting("reset"));
        agent.logs("connectionsOfGoneEndpoints, in force");
    }
    ends(&mut to_pod, &agent);
    for (open, (client, _)) in to_other.iter_mut().zip(ENDS) {
        assert_eq!(open.echo("still there?"), "still there?", "{client}");
    }
    let name = "portolan_connections_of_gone_endpoints_ended_total";
    let ended = |kind| agent.metric(&format!("{name}{{kind=\"{kind}\"}}"));
    let are_counted = || (ended("flow"), ended("socket")) == (Some(2), Some(2));
    agent.eventually("the ends are counted", are_counted);
    let left = node.world.flows();
    let is_of_gone = |flow: &Flow| flow.backend.ip().to_string() == gone;
    assert!(!left.iter().any(is_of_gone), "{left:?}");
}
