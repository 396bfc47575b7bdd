// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node with one address family, whose pods are routed or ports of a bridge, and pods on it that
//! can go: their network namespaces are deleted.

use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use datapath::maps::tables::Table;
use lab::node::{netns::NetNs, pod::plug};
use proxy_common::{LocalPod, V4, V6, maps};
use socket2::SockRef;

use crate::{
    agent::{Agent, eventually},
    connection::Open,
    objects::{Service, node_with, pod_endpoint},
    pods::Sleeping,
    repair::table,
    world::World,
};

/// The addresses of a family.
#[derive(Clone, Copy)]
pub(super) struct Family {
    pub(super) node: &'static str,
    pub(super) client: &'static str,
    pub(super) gateway: &'static str,
    pub(super) pod: &'static str,
    /// A pod that stays.
    pub(super) other: &'static str,
    pub(super) length: u8,
    uplink: &'static str,
    far: &'static str,
    cluster_ip: &'static str,
}

pub(super) const V4_ONLY: Family = Family {
    node: "10.40.0.1",
    client: "10.40.1.10",
    gateway: "10.40.2.1",
    pod: "10.40.2.20",
    other: "10.40.2.30",
    length: 24,
    uplink: "192.0.2.1",
    far: "192.0.2.9",
    cluster_ip: "172.30.1.1",
};
pub(super) const V6_ONLY: Family = Family {
    node: "fd00:c0::1",
    client: "fd00:40:0:1::10",
    gateway: "fd00:40:0:2::1",
    pod: "fd00:40:0:2::20",
    other: "fd00:40:0:2::30",
    length: 64,
    uplink: "fd00:c1::1",
    far: "fd00:c1::9",
    cluster_ip: "fd00:30::1",
};

impl Family {
    fn at(ip: &str, port: u16) -> String {
        let ip: IpAddr = ip.parse().expect("an address");
        std::net::SocketAddr::from((ip, port)).to_string()
    }
    /// The option that makes an address usable at once.
    fn nodad(&self) -> &'static str {
        if self.length == 64 { " nodad" } else { "" }
    }
    pub(super) fn service(&self) -> String {
        Self::at(self.cluster_ip, 80)
    }
    fn node_port(&self) -> String {
        Self::at(self.node, 30_001)
    }
}

/// How pods are joined to the node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Plumbing {
    Routed,
    Bridged,
}

/// The clients of [`Bed::connect`], and how the connection of each ends when the pod is gone.
pub(super) const ENDS: [(&str, &str); 4] = [
    ("by packets", "reset"),
    ("at the node port", "reset"),
    ("of a pod's socket", "abort"),
    ("of the node", "abort"),
];

/// The node, and a client beyond its uplink.
pub(super) struct Bed {
    // By this process the agent finds the sockets of the client pod.
    _process: Sleeping,
    pub(super) world: World,
    pub(super) family: Family,
    plumbing: Plumbing,
    far: NetNs,
    ports: std::cell::Cell<u32>,
}

impl Bed {
    pub(super) fn new(family: Family, plumbing: Plumbing) -> Self {
        let world = World::bare(&[
            ("ipv4/ip_forward", "1"),
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv6/conf/all/forwarding", "1"),
        ]);
        let Family {
            node,
            uplink,
            far,
            gateway,
            length,
            ..
        } = family;
        let nodad = family.nodad();
        let outside = NetNs::new("far").expect("a host");
        world.ip(&format!(
            "address add {node} dev lo
link add up0 type veth peer name eth0 netns {}
address add {uplink}/{length} dev up0{nodad}
link set up0 up
route add default via {far} dev up0",
            outside.path()
        ));
        // A pod that is routed has an address of no subnet of the node. CNI plugins give the bridge
        // a MAC of its own, too: one that comes from its ports may change when a pod goes.
        if plumbing == Plumbing::Bridged {
            world.ip(&format!(
                "link add br0 address 02:00:00:00:ff:01 type bridge forward_delay 0 mcast_snooping 0
address add {gateway}/{length} dev br0{nodad}
link set br0 up"
            ));
        }
        let batch = format!(
            "address add {far}/{length} dev eth0{nodad}\nlink set eth0 up\nroute add default via {uplink} dev eth0\n"
        );
        outside.ip(&batch).expect("its address");
        plug(world.node(), world.client(), &[family.client]).expect("a pod");
        world.write("node.yaml", node_with(&[node], Some(7)));
        Self {
            _process: Sleeping::in_pod(world.client()),
            world,
            family,
            plumbing,
            far: outside,
            ports: std::cell::Cell::new(0),
        }
    }

    /// Joins a pod with this address, which echoes.
    pub(super) fn join(&self, address: &str) -> Pod {
        let namespace = NetNs::new(address).expect("a pod");
        match self.plumbing {
            Plumbing::Routed => plug(self.world.node(), &namespace, &[address]).expect("a pod"),
            Plumbing::Bridged => self.join_bridge(&namespace, address),
        }
        Pod::serve(namespace, address)
    }

    /// Makes a pod a port of the bridge, as the CNI plugin `bridge` does.
    pub(super) fn join_bridge(&self, pod: &NetNs, address: &str) {
        let Family {
            length, gateway, ..
        } = self.family;
        let nodad = self.family.nodad();
        let port = self.ports.replace(self.ports.get() + 1);
        self.world.ip(&format!(
            "link add port{port} type veth peer name eth0 netns {}\nlink set port{port} master br0 up",
            pod.path()
        ));
        let batch = format!(
            "link set lo up\naddress add {address}/{length} dev eth0{nodad}\nlink set eth0 up\nroute add default via {gateway} dev eth0\n"
        );
        pod.ip(&batch).expect("its address");
    }

    /// Writes the service with these endpoints: address; ready, serving, terminating.
    pub(super) fn publish(&self, version: u64, endpoints: &[(&str, [bool; 3])]) {
        let endpoints = endpoints
            .iter()
            .map(|(address, conditions)| pod_endpoint(address, "cart", *conditions));
        let cart = Service::new("cart", self.family.cluster_ip);
        let cart = cart.endpoints(endpoints.collect());
        self.world.write("cart.yaml", cart);
        let node = node_with(&[self.family.node], Some(version));
        self.world.write("node.yaml", node);
    }

    /// The interface by which the agent knows a pod to be reached.
    pub(super) fn known(&self, address: &str) -> Option<u32> {
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

    /// Has the node send to a pod, and waits until the agent knows the pod by an interface that is
    /// not `before`. Returns the interface.
    pub(super) fn learn(&self, agent: &Agent, address: &str, before: Option<u32>) -> u32 {
        eventually("the pod is known", agent, || {
            let to = Family::at(address, 8080);
            let asked = Open::connect(self.world.node(), &to);
            let known = self.known(address);
            asked.is_ok() && known.is_some() && known != before
        });
        self.known(address).expect("known")
    }

    /// The connections of [`ENDS`]: by packets from a routed pod and from beyond the uplink, and
    /// translated at sockets of that pod and of the node.
    pub(super) fn connect(&self) -> [Open; 4] {
        let (service, node_port) = (self.family.service(), self.family.node_port());
        [
            self.world.connect(&service).expect("served to a pod"),
            Open::connect(&self.far, &node_port).expect("served at the node port"),
            self.world
                .connect_at_socket(&service)
                .expect("served at a pod's socket"),
            self.world.connect_from_node(&service).expect("served here"),
        ]
    }
}

/// A pod that sends back what it gets.
pub(super) struct Pod {
    namespace: NetNs,
    has_ended: Arc<AtomicBool>,
    server: JoinHandle<()>,
}

impl Pod {
    fn serve(namespace: NetNs, address: &str) -> Self {
        let at = Family::at(address, 8080);
        let listener = namespace.enter(|| TcpListener::bind(at));
        let listener = listener.expect("enter the pod").expect("a listener");
        let has_ended = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&has_ended);
        Self {
            namespace,
            has_ended,
            server: thread::spawn(move || answer(&listener, &ended)),
        }
    }

    pub(super) fn namespace(&self) -> &NetNs {
        &self.namespace
    }

    /// Deletes the pod's network namespace. No connection is closed before: its link is down when
    /// the processes end, as if the node had cut it off.
    pub(super) fn vanish(self) {
        self.namespace.ip("link set eth0 down\n").expect("its link");
        self.has_ended.store(true, Ordering::Relaxed);
        self.server.join().expect("the server");
    }
}

/// Sends back what comes until `ended`. Then resets all connections, so that no socket keeps the
/// network namespace.
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
