// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node between a client far away and a backend far away, with a client and a backend in pods as
//! well, in one address family. Every interface of theirs takes 1500 bytes; one link on the way is
//! narrower.

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

/// Of the narrow link, in bytes. IPv6 asks for 1280 at least.
pub(super) const NARROW: u32 = 1400;

/// What firewalls and CNIs have: whatever belongs to no connection that the node's stack knows is
/// dropped.
const STRICT: &str = "add table inet strict
add chain inet strict input { type filter hook input priority filter; }
add rule inet strict input ct state invalid drop
add chain inet strict forward { type filter hook forward priority filter; }
add rule inet strict forward ct state invalid drop
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
        // As long as the test program lives: the agent refers to it.
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
            // Otherwise TCP would find out by trying, a few seconds later.
            end.set(&[("ipv4/tcp_mtu_probing", "0")])
                .expect("no probing");
        }
        world
    }

    /// Makes one link of a side narrow, and the others wide; both ends forget what they have
    /// learned.
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
        self.cluster.backend(self.through)
    }

    /// Whom the client calls.
    pub(super) fn service(&self) -> SocketAddr {
        self.cluster.service(self.through)
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
