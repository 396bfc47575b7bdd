// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The node of the soak test: client pods and server pods, other nodes' pods, a client outside.
//! Also the firewall rules that container engines and CNI plugins make besides a proxy. All is
//! dual-stack; a pod is known by its IPv4 address.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::Range,
    process::Command,
    str::FromStr,
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use lab::node::{
    cgroup::Cgroup,
    layout::Layout,
    netns::NetNs,
    process::{Killed, end_with_us},
    topology::{Plumbing, Topology},
};
use nix::sys::signal::Signal;

use crate::{
    cluster::{Cluster, Service, load_balancer},
    disturb::Broken,
    pods::Departure,
    servers::{Arrivals, Server},
};

pub(crate) const NODE: Ipv4Addr = Ipv4Addr::new(192, 168, 40, 2);
pub(crate) const NODE_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x40, 0xff, 0, 0, 0, 0, 2);
/// Number of endpoints on other nodes.
pub(crate) const REMOTE_ENDPOINTS: u16 = 290;
/// The client on another node.
const REMOTE_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 40, 4, 1);
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);
const OUTSIDE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);
/// The address of another node, of a client that is no pod.
const OTHER_NODE: Ipv4Addr = Ipv4Addr::new(192, 168, 40, 3);
/// Number of client pods.
const CLIENTS: u8 = 6;
/// Number of server pods without those of [`LEAVERS`]. One of the last five is always missing.
pub(crate) const SERVERS: u8 = 15;
/// The numbers of the server pods of [`Service::Leaving`]. The last one is missing at first.
pub(crate) const LEAVERS: Range<u8> = SERVERS..SERVERS + 5;

/// Value of `tcp_timestamps` for one clock: no random offset for each connection.
const ONE_CLOCK: &str = "2";

/// The host or pod in which a client runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// A client pod, by its number.
    Pod(u8),
    /// A client pod, by its number, whose sockets the socket hooks do not see, like those of a
    /// sandbox with its own kernel.
    Sandbox(u8),
    /// A server pod, by its number.
    Server(u8),
    Node,
    /// A pod in the node's own network namespace.
    HostPod,
    /// A pod on another node.
    Remote,
    /// Another node itself.
    OtherNode,
    Outside,
}

/// Numbers of source ports of the clients that have few.
const FEW_PORTS: u16 = 200;
const SOME_PORTS: u16 = 500;
/// Number of source ports of the clients outside, which share one host: few enough that each comes
/// again twenty times in a minute on a busy machine.
const PORTS_OUTSIDE: u16 = 300;

impl Origin {
    /// Returns how many source ports a client here has; None for the kernel's usual number.
    pub(crate) const fn ports(self) -> Option<u16> {
        match self {
            Self::Pod(0) | Self::Sandbox(1) => Some(FEW_PORTS),
            Self::Pod(2) | Self::Sandbox(3) => Some(SOME_PORTS),
            Self::Outside => Some(PORTS_OUTSIDE),
            _ => None,
        }
    }

    /// Returns whether connections of a client here to a cluster IP are translated at its sockets.
    pub(crate) const fn is_at_socket(self) -> bool {
        let is_beyond = matches!(self, Self::Remote | Self::OtherNode | Self::Outside);
        !is_beyond && !matches!(self, Self::Sandbox(_))
    }

    /// Returns the source address of a client here; None if the kernel chooses it.
    pub(crate) fn source(self) -> Option<IpAddr> {
        (self == Self::OtherNode).then_some(OTHER_NODE.into())
    }
}

/// Reads an origin as plan.txt has it: `pod4`, `host-pod`.
impl FromStr for Origin {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let name = text.trim_end_matches(|letter: char| letter.is_ascii_digit());
        let digits = &text[name.len()..];
        let number = || {
            let number = digits.parse::<u8>();
            number.with_context(|| format!("{text}: no number of a pod"))
        };
        Ok(match (name, digits) {
            ("pod", _) => Self::Pod(number()?),
            ("sandbox", _) => Self::Sandbox(number()?),
            ("server", _) => Self::Server(number()?),
            ("node", "") => Self::Node,
            ("host-pod", "") => Self::HostPod,
            ("remote", "") => Self::Remote,
            ("other-node", "") => Self::OtherNode,
            ("outside", "") => Self::Outside,
            _ => bail!("no origin {text}"),
        })
    }
}

pub(crate) const fn server_pod(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 40, 1, 100 + number)
}

pub(crate) const fn remote_pod(number: u16) -> Ipv4Addr {
    Ipv4Addr::new(10, 40, 2 + (number / 200) as u8, 1 + (number % 200) as u8)
}

/// Returns the IPv6 address of the pod with an IPv4 address: fd00:40:0:1::64 for 10.40.1.100.
pub(crate) const fn v6_of(pod: Ipv4Addr) -> Ipv6Addr {
    let [_, _, subnet, host] = pod.octets();
    Ipv6Addr::new(0xfd00, 0x40, 0, subnet as u16, 0, 0, 0, host as u16)
}

/// Returns the IPv4 address of the pod with an address, which may be mapped to IPv6.
pub(crate) fn v4_of(address: IpAddr) -> Ipv4Addr {
    match address.to_canonical() {
        IpAddr::V4(pod) => pod,
        IpAddr::V6(pod) => {
            let [_, _, _, subnet, .., host] = pod.segments();
            Ipv4Addr::new(10, 40, subnet as u8, host as u8)
        }
    }
}

/// Returns whether a pod is on the node.
pub(crate) fn is_here(pod: Ipv4Addr) -> bool {
    pod.octets()[2] == server_pod(0).octets()[2]
}

const fn client_pod(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 40, 1, 10 + number)
}

/// nftables rules that nodes have besides a proxy's: Docker's and flannel's chains, and
/// kube-router's rule for packets that belong to no connection. [`WORDS`] are replaced in it.
const RULES: &str = "table IP beside {
  chain forward {
    type filter hook forward priority filter; policy drop;
    ct state invalid drop
    ct state related,established accept
    IP saddr PODS accept
    IP daddr PODS accept
  }
  chain postrouting {
    type nat hook postrouting priority srcnat;
    IP saddr PODS IP daddr PODS return
    IP saddr PODS IP daddr != MULTICAST masquerade fully-random
    IP saddr != PODS IP daddr HERE return
    IP saddr != PODS IP daddr PODS masquerade fully-random
  }
}
";
const WORDS: [&str; 4] = ["IP", "PODS", "HERE", "MULTICAST"];
/// What [`WORDS`] stand for in each table.
const FAMILIES: [[&str; 4]; 2] = [
    ["ip", "10.40.0.0/16", "10.40.1.0/24", "224.0.0.0/4"],
    ["ip6", "fd00:40::/48", "fd00:40:0:1::/64", "ff00::/8"],
];

/// The hosts, the services, and what servers, clients and disturbances tell each other.
pub(crate) struct World {
    pub(crate) topology: Topology,
    pub(crate) cluster: Cluster,
    pub(crate) arrivals: Arc<Arrivals>,
    pub(crate) departure: Departure,
    pub(crate) broken: Broken,
    /// Declared before its parent `cgroup` because it must be removed first.
    host_pod: Cgroup,
    pub(crate) cgroup: Cgroup,
}

impl World {
    /// `has_to_end`: whether the proxy ends connections to a pod that has gone.
    pub(crate) fn new(plumbing: Plumbing, seed: u64, has_to_end: bool) -> Result<Self> {
        let both = |pod: Ipv4Addr| vec![IpAddr::V4(pod), v6_of(pod).into()];
        let clients = (0..CLIENTS).map(client_pod);
        let pods = clients.chain((0..LEAVERS.end).map(server_pod)).map(both);
        let remote = (0..REMOTE_ENDPOINTS).map(remote_pod);
        let remote = remote.chain([REMOTE_CLIENT]).flat_map(both);
        let layout = Layout {
            node: vec![NODE.into(), NODE_V6.into()],
            pods: pods.collect(),
            remote: remote.chain([OTHER_NODE.into()]).collect(),
            outside: [OUTSIDE.into(), OUTSIDE_V6.into()].into(),
            unowned: Service::all().flat_map(load_balancer).collect(),
        };
        let topology = Topology::build(layout, plumbing)?;
        let node = &topology.node;
        // The client on another node is a pod of that node, so it has a source address of its own.
        for (via, length, source) in [
            (IpAddr::from(NODE), 32, IpAddr::from(REMOTE_CLIENT)),
            (NODE_V6.into(), 128, v6_of(REMOTE_CLIENT).into()),
        ] {
            topology.remote.ip(&format!(
                "route add {via}/{length} dev eth0 src {source}\nroute replace default via {via} dev eth0 src {source}\n"
            ))?;
        }
        let bridge = ["iptables", "ip6tables"].map(|name| format!("bridge/bridge-nf-call-{name}"));
        node.set(&bridge.each_ref().map(|name| (name.as_str(), "1")))
            .context("the node's br_netfilter: `modprobe br_netfilter`")?;
        for family in FAMILIES {
            let fill = |rules: String, (word, is): (&str, &str)| rules.replace(word, is);
            let rules = WORDS.into_iter().zip(family).fold(RULES.to_owned(), fill);
            node.feed("nft", &["-f", "-"], &rules)
                .context("the node's netfilter rules: install nftables")?;
        }
        let cgroup = Cgroup::new()?;
        let world = Self {
            host_pod: cgroup.below("host-pod")?,
            cgroup,
            topology,
            cluster: Cluster::new(),
            arrivals: Arc::default(),
            departure: Departure::new(has_to_end),
            broken: Broken::default(),
        };
        // The hosts behind one masquerade address have different clocks. An endpoint that keeps an
        // address and port in TIME_WAIT refuses a new connection from them if the clock seems to go
        // back.
        for namespace in world.namespaces() {
            namespace.set(&[("ipv4/tcp_timestamps", ONE_CLOCK)])?;
        }
        let clients = (0..CLIENTS).flat_map(|pod| [Origin::Pod(pod), Origin::Sandbox(pod)]);
        for origin in clients.chain([Origin::Outside]) {
            if let Some(ports) = origin.ports() {
                let first = 33_000 + (seed % 97) as u16 * 200;
                let range = format!("{first} {}", first + ports - 1);
                let range = ("ipv4/ip_local_port_range", &*range);
                let parameters = [range, ("ipv4/tcp_tw_reuse", "1")];
                world.namespace(origin).set(&parameters)?;
            }
        }
        Ok(world)
    }

    /// Serves in the server pod `pod`, which has the address of the pod `of`. `services` are the
    /// bits of the services that it is an endpoint of.
    pub(crate) fn serve(&self, pod: u8, of: u8, services: u32) -> Result<Server> {
        let (namespace, cgroup) = (self.namespace(Origin::Server(pod)), Some(&self.cgroup));
        let addresses = [server_pod(of)];
        Server::start(namespace, cgroup, &addresses, services, &self.arrivals)
    }

    /// Starts a process in a pod, which does nothing. It lives as long as this thread at most.
    pub(crate) fn visit(&self, origin: Origin) -> Result<Killed> {
        let mut command = Command::new("sleep");
        end_with_us(command.arg("infinity"), Signal::SIGKILL);
        let child = self.namespace(origin).enter(|| command.spawn())?;
        Ok(Killed(child.context("start sleep")?))
    }

    /// Returns the index of a server pod among the topology's pods.
    pub(crate) const fn index(server: u8) -> usize {
        (CLIENTS + server) as usize
    }

    /// Returns the network namespaces of all hosts.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = &NetNs> {
        let all = &self.topology;
        let hosts = [&all.node, &all.outside, &all.remote];
        hosts.into_iter().chain(&all.pods)
    }

    pub(crate) fn namespace(&self, origin: Origin) -> &NetNs {
        let topology = &self.topology;
        match origin {
            Origin::Pod(pod) | Origin::Sandbox(pod) => &topology.pods[usize::from(pod)],
            Origin::Server(pod) => &topology.pods[Self::index(pod)],
            Origin::Node | Origin::HostPod => &topology.node,
            Origin::Remote | Origin::OtherNode => &topology.remote,
            Origin::Outside => &topology.outside,
        }
    }

    /// Runs `work` of a client in the client's network namespace and cgroup.
    pub(crate) fn run<T>(&self, origin: Origin, work: impl FnOnce() -> T) -> Result<T> {
        let cgroup = match origin {
            Origin::Pod(_) | Origin::Server(_) | Origin::Node => &self.cgroup,
            Origin::HostPod => &self.host_pod,
            Origin::Sandbox(_) | Origin::Remote | Origin::OtherNode | Origin::Outside => {
                return self.namespace(origin).enter(work);
            }
        };
        cgroup.inside(|| self.namespace(origin).enter(work))?
    }
}
