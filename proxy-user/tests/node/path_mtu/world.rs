// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node between a client far away and a backend far away, with a client and a backend in pods as well, in one address
//! family. Every interface of theirs takes 1500 bytes; one link on the way is narrower.

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
};

use lab::node::{
    agent::{Agent, Manifests, Options},
    bpffs,
    cgroup::Cgroup,
    netns::NetNs,
    pod::plug,
    settings::{Forwarding, SocketBalancing},
    topology::NODE_PARAMETERS,
    way::Way,
};
use portolan::datapath::read::Reader;
use proxy_common::Counter;

use crate::world::BINARY;

/// Of the narrow link, in bytes. IPv6 asks for 1280 at least.
pub(super) const NARROW: u32 = 1400;
pub(super) const PORT: u16 = 8080;
const NODE_PORT: u16 = 30_080;

/// What firewalls and CNIs have: whatever belongs to no connection that the node's stack knows is dropped.
const STRICT: &str = "add table inet strict
add chain inet strict input { type filter hook input priority filter; }
add rule inet strict input ct state invalid counter drop
add chain inet strict forward { type filter hook forward priority filter; }
add rule inet strict forward ct state invalid counter drop
";

/// How a client's packets reach the backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Through {
    /// From a process of the node, translated at its socket.
    NodeSocket,
    /// From a pod, translated at its socket.
    PodSocket,
    /// From a pod, translated packet by packet.
    PodPackets(Forwarding),
    /// From outside by a node port, masqueraded.
    Masquerade(Forwarding),
    /// From outside by a node port to a pod, with the client's own address.
    Preserved(Forwarding),
    /// From outside by a node port to a process of the node.
    ToNode(Forwarding),
}

impl Through {
    pub(super) const fn is_at_the_socket(self) -> bool {
        matches!(self, Self::NodeSocket | Self::PodSocket)
    }
    const fn is_from_outside(self) -> bool {
        matches!(
            self,
            Self::Masquerade(_) | Self::Preserved(_) | Self::ToNode(_)
        )
    }
    const fn forwarding(self) -> Forwarding {
        match self {
            Self::NodeSocket | Self::PodSocket => Forwarding::Stack,
            Self::PodPackets(forwarding)
            | Self::Masquerade(forwarding)
            | Self::Preserved(forwarding)
            | Self::ToNode(forwarding) => forwarding,
        }
    }
}

/// The side of the node that the narrow link is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Client,
    Backend,
}

/// Who finds a packet to be too large.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Where {
    /// The node itself.
    Node,
    /// A router beyond it.
    Router,
}

pub(super) struct World {
    agent: Agent<'static>,
    node: &'static NetNs,
    clients: Way,
    backends: Way,
    client_pod: NetNs,
    backend_pod: NetNs,
    cgroup: Cgroup,
    through: Through,
    addresses: Addresses,
}

impl World {
    pub(super) fn new(v6: bool, through: Through) -> Self {
        bpffs::prepare().expect("a BPF file system");
        let addresses = Addresses::of(v6);
        // As long as the test program lives: the agent refers to it.
        let node: &'static NetNs = Box::leak(Box::new(NetNs::new("node").expect("run as root")));
        node.set(&NODE_PARAMETERS).expect("forwarding");
        node.ip("link set lo up\n").expect("loopback");
        node.feed("nft", &["-f", "-"], STRICT).expect("rules");
        let way = |interface, links| Way::build(node, interface, links).expect("a way");
        let clients = way("clients", addresses.to_client);
        let backends = way("backends", addresses.to_backend);
        let pod = |address: IpAddr| {
            let pod = NetNs::new("pod").expect("run as root");
            plug(node, &pod, &[&address.to_string()]).expect("a pod");
            pod
        };
        let client_pod = pod(addresses.client_pod);
        let backend_pod = pod(addresses.backend_pod);
        let cgroup = Cgroup::new().expect("a cgroup");
        let cidrs = ["10.40.0.0/16", "fd00:40::/48"].map(|cidr| cidr.parse().expect("a range"));
        let options = Options {
            binary: Path::new(BINARY),
            node_name: "node-a",
            cluster_cidrs: &cidrs,
            config: &format!(
                "{{portolan: {{forwarding: {}}}}}",
                through.forwarding().name()
            ),
            socket_balancing: if through == Through::PodSocket {
                SocketBalancing::All
            } else {
                SocketBalancing::Host
            },
            kubeconfig: None,
            cgroup_root: cgroup.path(),
        };
        let objects = addresses.objects(through);
        let mut agent = Agent::start(node, &options, &Manifests::Text(&objects)).expect("an agent");
        if let Err(error) = agent.wait_for(1) {
            panic!("{error:#}: {:#?}", agent.log_tail(20));
        }
        let world = Self {
            agent,
            node,
            clients,
            backends,
            client_pod,
            backend_pod,
            cgroup,
            through,
            addresses,
        };
        for end in [world.client(), world.server()] {
            // Otherwise TCP would find out by trying, a few seconds later.
            end.set(&[("ipv4/tcp_mtu_probing", "0")])
                .expect("no probing");
        }
        world
    }

    /// Makes one link of a side narrow, and the others wide; both ends forget what they have learned.
    pub(super) fn narrow(&self, side: Side, at: Where) {
        let way = match side {
            Side::Client => &self.clients,
            Side::Backend => &self.backends,
        };
        for (link, is_narrow) in [(0, at == Where::Node), (1, at == Where::Router)] {
            let mtu = if is_narrow { NARROW } else { 1500 };
            way.set_mtu(self.node, link, mtu).expect("links");
        }
        self.forget();
    }

    fn client(&self) -> &NetNs {
        match self.through {
            Through::NodeSocket => self.node,
            Through::PodSocket | Through::PodPackets(_) => &self.client_pod,
            _ => self.clients.host(),
        }
    }

    fn server(&self) -> &NetNs {
        match self.through {
            Through::Preserved(_) => &self.backend_pod,
            Through::ToNode(_) => self.node,
            _ => self.backends.host(),
        }
    }

    /// Does something where the client is; sockets made there belong there for good.
    pub(super) fn at_the_client<T>(&self, work: impl FnOnce() -> T) -> T {
        if self.through.is_from_outside() {
            return self.client().enter(work).expect("enter the host");
        }
        self.cgroup
            .inside(|| self.client().enter(work))
            .expect("enter the cgroup")
            .expect("enter the namespace")
    }

    /// Does something where the backend is.
    pub(super) fn at_the_backend<T>(&self, work: impl FnOnce() -> T) -> T {
        self.server().enter(work).expect("enter the host")
    }

    /// Where the backend serves.
    pub(super) fn backend(&self) -> SocketAddr {
        SocketAddr::new(self.addresses.backend(self.through), PORT)
    }

    /// Whom the client calls.
    pub(super) fn service(&self) -> SocketAddr {
        if self.through.is_from_outside() {
            SocketAddr::new(self.addresses.to_client[0][0], NODE_PORT)
        } else {
            SocketAddr::new(self.addresses.cluster_ip, 80)
        }
    }

    /// Both ends forget what they have learned.
    pub(super) fn forget(&self) {
        for end in [self.client(), self.server()] {
            for family in ["-4", "-6"] {
                let flushed = end.feed("ip", &[family, "route", "flush", "cache"], "");
                flushed.expect("routes without exceptions");
            }
        }
    }

    pub(super) fn count(&self, counter: Counter) -> u64 {
        let reader = Reader::open(self.agent.pin_dir()).expect("pinned maps");
        reader.counters().expect("counters")[counter as usize]
    }
}

/// The addresses of one family.
struct Addresses {
    to_client: [[IpAddr; 2]; 3],
    to_backend: [[IpAddr; 2]; 3],
    client_pod: IpAddr,
    backend_pod: IpAddr,
    cluster_ip: IpAddr,
}

impl Addresses {
    fn of(v6: bool) -> Self {
        let address = |text: &str| text.parse().expect("an address");
        let ends = |v4: &str, in_v6: &str| {
            [1, 2].map(|last| {
                address(&if v6 {
                    format!("{in_v6}{last}")
                } else {
                    format!("{v4}{last}")
                })
            })
        };
        Self {
            to_client: [
                ends("192.168.40.", "fd00:c0::"),
                ends("192.168.41.", "fd00:c0:1::"),
                ends("203.0.113.", "2001:db8:113::"),
            ],
            to_backend: [
                ends("192.168.42.", "fd00:c0:2::"),
                ends("192.168.43.", "fd00:c0:3::"),
                ends("10.40.2.", "fd00:40:0:2::"),
            ],
            client_pod: address(if v6 { "fd00:40:0:1::10" } else { "10.40.1.10" }),
            backend_pod: address(if v6 { "fd00:40:0:1::20" } else { "10.40.1.20" }),
            cluster_ip: address(if v6 { "fd00:30::1" } else { "172.30.0.1" }),
        }
    }

    fn backend(&self, through: Through) -> IpAddr {
        match through {
            Through::Preserved(_) => self.backend_pod,
            Through::ToNode(_) => self.to_client[0][0],
            _ => self.to_backend[2][1],
        }
    }

    /// The node, and one service over TCP and UDP.
    fn objects(&self, through: Through) -> String {
        let family = if self.cluster_ip.is_ipv6() {
            "IPv6"
        } else {
            "IPv4"
        };
        let (policy, node) = match through {
            Through::Preserved(_) | Through::ToNode(_) => ("Local", "node-a"),
            _ => ("Cluster", "node-b"),
        };
        let (node_ip, cluster_ip) = (self.to_client[0][0], self.cluster_ip);
        let backend = self.backend(through);
        format!(
            "apiVersion: v1
kind: Node
metadata: {{name: node-a, resourceVersion: '1'}}
status: {{addresses: [{{type: InternalIP, address: '{node_ip}'}}]}}
---
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: shop}}
spec:
  type: NodePort
  clusterIP: '{cluster_ip}'
  clusterIPs: ['{cluster_ip}']
  ipFamilies: [{family}]
  externalTrafficPolicy: {policy}
  ports:
  - {{name: tcp, protocol: TCP, port: 80, targetPort: {PORT}, nodePort: {NODE_PORT}}}
  - {{name: udp, protocol: UDP, port: 80, targetPort: {PORT}, nodePort: {NODE_PORT}}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}
addressType: {family}
ports: [{{name: tcp, protocol: TCP, port: {PORT}}}, {{name: udp, protocol: UDP, port: {PORT}}}]
endpoints: [{{addresses: ['{backend}'], nodeName: {node}}}]
"
        )
    }
}
