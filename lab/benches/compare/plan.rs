// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The proxies, the measurements and their order. Pure.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use lab::{
    load::setup::Setup,
    node::settings::{Forwarding, SocketBalancing},
};

/// The proxy that serves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Proxy {
    /// No proxy: shows the measurement error.
    Direct,
    /// portolan, translating at the socket.
    PortolanSocket,
    /// portolan, translating on the packet path.
    PortolanPacket,
    /// The same with `forwarding: auto`.
    PortolanAuto,
    /// portolan with its defaults: translating at the socket, `forwarding: auto`.
    PortolanBoth,
    /// kube-proxy in mode nftables.
    Nftables,
    /// The same with minSyncPeriod 0.1 s.
    NftablesFast,
    /// kube-proxy in mode iptables.
    Iptables,
    /// The same with minSyncPeriod 0.1 s.
    IptablesFast,
}

/// The program of a proxy, and its settings.
#[derive(Clone, Copy)]
pub(crate) enum Program {
    None,
    Portolan(SocketBalancing, Forwarding),
    /// The mode, and the minSyncPeriod if it is not the default.
    KubeProxy(&'static str, Option<&'static str>),
}

impl Proxy {
    /// Returns the name in tables, and what to start.
    const fn row(self) -> (&'static str, Program) {
        use Forwarding::{Auto, Stack};
        use Program::{KubeProxy, Portolan};
        use SocketBalancing::{All, Host};

        const FAST: Option<&str> = Some("100ms");
        match self {
            Self::Direct => ("no proxy", Program::None),
            Self::PortolanSocket => ("portolan, socket", Portolan(All, Stack)),
            Self::PortolanPacket => ("portolan, packet path", Portolan(Host, Stack)),
            Self::PortolanAuto => ("portolan, past the stack", Portolan(Host, Auto)),
            Self::PortolanBoth => ("portolan, socket and past the stack", Portolan(All, Auto)),
            Self::Nftables => ("kube-proxy nftables", KubeProxy("nftables", None)),
            Self::NftablesFast => ("kube-proxy nftables, 0.1 s", KubeProxy("nftables", FAST)),
            Self::Iptables => ("kube-proxy iptables", KubeProxy("iptables", None)),
            Self::IptablesFast => ("kube-proxy iptables, 0.1 s", KubeProxy("iptables", FAST)),
        }
    }
    pub(crate) const fn name(self) -> &'static str {
        self.row().0
    }
    pub(crate) const fn program(self) -> Program {
        self.row().1
    }
    pub(crate) const fn is_kube_proxy(self) -> bool {
        matches!(self.program(), Program::KubeProxy(..))
    }
    /// Whether this is kube-proxy with a shorter minSyncPeriod. Its packets are forwarded as with
    /// the default; only changes differ.
    pub(crate) const fn is_fast(self) -> bool {
        matches!(self.program(), Program::KubeProxy(_, Some(_)))
    }
}

/// A cell of the report's tables: a proxy, the settings of its node, and the number of services.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) services: u32,
    pub(crate) setup: Setup,
    pub(crate) proxy: Proxy,
}

impl Cell {
    /// Returns whether connections and packets are timed in this cell.
    pub(crate) const fn has_packets(&self) -> bool {
        !self.proxy.is_fast()
    }
    /// Returns whether changes are timed in this cell: for each proxy once, with the settings of
    /// the node that kube-proxy needs.
    pub(crate) fn has_changes(&self) -> bool {
        self.setup == Setup::Netfilter
            && !matches!(
                self.proxy,
                Proxy::Direct | Proxy::PortolanPacket | Proxy::PortolanAuto | Proxy::PortolanBoth
            )
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (proxy, services, setup) = (self.proxy.name(), self.services, self.setup.name());
        write!(f, "{proxy} with {services} services, {setup} node")
    }
}

/// Returns all cells to measure, those with the fewest services first.
pub(crate) fn cells(services: &[u32], proxies: &[Proxy]) -> Vec<Cell> {
    let mut services = services.to_vec();
    services.sort_unstable();
    services.dedup();
    let mut cells = Vec::new();
    for services in services {
        for setup in [Setup::Bare, Setup::Netfilter] {
            // kube-proxy does not work on a bare node.
            let works = |proxy: &&Proxy| setup != Setup::Bare || !proxy.is_kube_proxy();
            cells.extend(proxies.iter().filter(works).map(|proxy| Cell {
                services,
                setup,
                proxy: *proxy,
            }));
        }
    }
    cells
}

/// One operation that is timed both through a service and directly.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Measure {
    /// Short connections to the last service.
    LastService,
    /// Short connections, each to a service at random.
    RandomService,
    /// One byte each way on an open connection.
    OpenConnection,
    /// One byte each way by UDP.
    Datagrams,
    /// Short connections of many clients at once.
    Crowd,
    /// The same from outside to a node port with one endpoint, masqueraded.
    NodePortCrowd,
    /// Small packets from outside to a node port whose pod is on the same node.
    NodePortLocal,
    /// Small packets from outside to a node port whose pod is on another node.
    NodePortRemote,
    /// Short connections to pods' addresses, on the node with the proxy.
    NotOurs,
}

impl Measure {
    /// What a client in a pod does with a service, and what the proxy costs it otherwise.
    pub(crate) const CONNECTIONS: [Self; 5] = [
        Self::LastService,
        Self::NodePortCrowd,
        Self::OpenConnection,
        Self::Datagrams,
        Self::NotOurs,
    ];
    /// Returns the heading of its table, with the unit of the rate.
    pub(crate) const fn heading(self) -> &'static str {
        match self {
            Self::LastService => "short connections, last service (connections/s)",
            Self::RandomService => "short connections, random service (connections/s)",
            Self::OpenConnection => "request and response, open connection (exchanges/s)",
            Self::Datagrams => "UDP queries (exchanges/s)",
            Self::Crowd => "many clients at once (connections/s)",
            Self::NodePortCrowd => "many clients at once, node port from outside (connections/s)",
            Self::NodePortLocal => "node port to a pod here, packets (packets/s)",
            Self::NodePortRemote => "node port to another node, packets (packets/s)",
            Self::NotOurs => "connections to no service (connections/s)",
        }
    }
}

pub(crate) const CONNECT: &str =
    "connect() to the last service, µs: p50 / p99 / p99.9, in brackets direct";
pub(crate) const PROCESSOR: &str =
    "Processor time of a short connection to the last service, both ends, µs, in brackets direct";
pub(crate) const START: &str = "From the proxy's start until the last service answers, s";
pub(crate) const MEMORY: &str = "Resident then, MiB";
pub(crate) const ENDPOINT: &str = "A changed endpoint, ms: p50 / p99 (changes)";
pub(crate) const SERVICE: &str = "A new service, ms: p50 / p99 (services)";

/// Returns whether a heading is that of a figure of connections and packets.
pub(crate) fn of_connections(heading: &str) -> bool {
    let mut of_measures = Measure::value_variants().iter().copied();
    of_measures.any(|one| one.heading() == heading) || [CONNECT, PROCESSOR].contains(&heading)
}
