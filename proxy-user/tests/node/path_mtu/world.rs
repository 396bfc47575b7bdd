// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node between a client and a backend behind routers, with a client and a backend in pods as
//! well, in one address family. Every interface takes 1500 bytes; one link on the path is narrower.

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
};

use datapath::read::Reader;
use lab::node::{
    agent::{Agent, Manifests, Options},
    bpffs,
    cgroup::Cgroup,
    netns::NetNs,
    pod::plug,
    routed_path::RoutedPath,
    settings::{Forwarding, SocketBalancing},
    topology::NODE_PARAMETERS,
};
use proxy_common::Counter;

use super::cluster::Cluster;
use crate::world::BINARY;

/// The MTU of the narrow link, in bytes. IPv6 requires 1280 at least.
pub(super) const NARROW: u32 = 1400;

/// Rules like those of firewalls and CNIs: they drop every packet of a connection that the node's
/// stack does not know.
const STRICT: &str = "add table inet strict
add chain inet strict input { type filter hook input priority filter; }
add rule inet strict input ct state invalid drop
add chain inet strict forward { type filter hook forward priority filter; }
add rule inet strict forward ct state invalid drop
";

/// The path of a client's packets to the backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Through {
    /// From a process of the node, translated at its socket.
    NodeSocket,
    /// From a pod, translated at its socket.
    PodSocket,
    /// From a pod, translated packet by packet.
    PodPackets(Forwarding),
    /// From outside to a node port, masqueraded.
    Masquerade(Forwarding),
    /// From outside to a node port and on to a pod, with the client's own address.
    Preserved(Forwarding),
    /// From outside to a node port and on to a process of the node.
    ToNode(Forwarding),
}

impl Through {
    pub(super) const fn is_at_the_socket(self) -> bool {
        matches!(self, Self::NodeSocket | Self::PodSocket)
    }
    pub(super) const fn is_from_outside(self) -> bool {
        matches!(
            self,
            Self::Masquerade(_) | Self::Preserved(_) | Self::ToNode(_)
        )
    }
    pub(super) const fn is_masqueraded(self) -> bool {
        matches!(self, Self::Masquerade(_))
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

/// The side of the node where the narrow link is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Client,
    Backend,
}

/// The one that finds a packet too large.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Where {
    /// The node itself.
    Node,
    /// A router behind the node.
    Router,
}

pub(super) struct World {
    agent: Agent<'static>,
    node: &'static NetNs,
    clients: RoutedPath,
    backends: RoutedPath,
    client_pod: NetNs,
    backend_pod: NetNs,
    cgroup: Cgroup,
    pub(super) through: Through,
    cluster: Cluster,
}

impl World {
    pub(super) fn new(v6: bool, through: Through) -> Self {
        bpffs::prepare().expect("a BPF file system");
        let cluster = Cluster::of(v6);
        // Leaked on purpose: the agent refers to the node as long as the test program lives.
        let node: &'static NetNs = Box::leak(Box::new(NetNs::new("node").expect("run as root")));
        node.set(&NODE_PARAMETERS).expect("forwarding");
        node.ip("link set lo up\n").expect("loopback");
        node.feed("nft", &["-f", "-"], STRICT).expect("rules");
        let way = |interface, links| RoutedPath::build(node, interface, links).expect("a way");
        let clients = way("clients", cluster.to_client);
        let backends = way("backends", cluster.to_backend);
        let pod = |address: IpAddr| {
            let pod = NetNs::new("pod").expect("run as root");
            plug(node, &pod, &[&address.to_string()]).expect("a pod");
            pod
        };
        let client_pod = pod(cluster.client_pod);
        let backend_pod = pod(cluster.backend_pod);
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
        let objects = cluster.objects(through);
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
            cluster,
        };
        for end in [world.client(), world.server()] {
            // Otherwise TCP finds the path MTU by probing, a few seconds later.
            end.set(&[("ipv4/tcp_mtu_probing", "0")])
                .expect("no probing");
        }
        world
    }

    /// Makes one link of a side narrow and the others wide; both ends forget their path MTU.
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

    /// Does some work in the client's network namespace; sockets made there stay there.
    pub(super) fn at_the_client<T>(&self, work: impl FnOnce() -> T) -> T {
        if self.through.is_from_outside() {
            return self.client().enter(work).expect("enter the host");
        }
        self.cgroup
            .inside(|| self.client().enter(work))
            .expect("enter the cgroup")
            .expect("enter the namespace")
    }

    /// Does some work in the backend's network namespace.
    pub(super) fn at_the_backend<T>(&self, work: impl FnOnce() -> T) -> T {
        self.server().enter(work).expect("enter the host")
    }

    /// The address and port at which the backend serves.
    pub(super) fn backend(&self) -> SocketAddr {
        self.cluster.backend(self.through)
    }

    /// The frontend that the client sends to.
    pub(super) fn service(&self) -> SocketAddr {
        self.cluster.service(self.through)
    }

    /// Makes both ends forget their path MTU.
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
