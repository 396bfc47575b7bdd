// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The services and node settings of a sequence: plain values that become plans for real maps.

use std::{
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
};

use clap::ValueEnum;
use control::plan::{BackendPlan, FamilyPlan, FrontendPlan, PortPlan, ServicePlan};
use datapath::maps::family::Family;
use ipnet::IpNet;
use proxy_common::{EndpointSet, FrontendKind, Port, Protocol, ServiceFlags, Settings, V4, V6};

use crate::kept::word;

/// A service with one port.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) protocol: u8,
    pub(crate) frontends: Vec<Frontend>,
    pub(crate) backends: Vec<Backend>,
    /// The timeout of session affinity in seconds; 0 means no affinity.
    pub(crate) affinity: u32,
    /// True for selection of backends by hash.
    pub(crate) is_maglev: bool,
    pub(crate) sources: Vec<IpNet>,
}

/// An address and port at which clients call a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Frontend {
    pub(crate) kind: FrontendKind,
    /// For a node port, the address is unspecified (0.0.0.0 or ::).
    pub(crate) at: SocketAddr,
    /// True for `externalTrafficPolicy: Local`, or `internalTrafficPolicy: Local` for a cluster IP.
    pub(crate) local: bool,
}

/// An endpoint of a service that can serve.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Backend {
    pub(crate) at: SocketAddr,
    pub(crate) sets: EndpointSet,
    /// Its share of new connections; with 0 it keeps those that it has, and clients by affinity.
    pub(crate) weight: u32,
}

impl Backend {
    /// Whether new connections may go to this backend, by some policy.
    pub(crate) fn is_wanted(&self) -> bool {
        self.weight > 0 && self.sets != EndpointSet::NONE
    }
}

impl Service {
    /// Returns the flags that the agent's planner gives to a frontend of this service.
    pub(crate) fn flags(&self, frontend: &Frontend) -> ServiceFlags {
        let is_cluster_ip = frontend.kind == FrontendKind::ClusterIp;
        let v6 = frontend.at.is_ipv6();
        let local_policy = self
            .frontends
            .iter()
            .any(|one| one.local && one.kind == FrontendKind::ClusterIp && one.at.is_ipv6() == v6);
        let mut backends = self.backends.iter();
        let has_endpoints = backends.any(|one| one.at.is_ipv6() == v6 && one.is_wanted());
        let is_balancer = frontend.kind == FrontendKind::LoadBalancer;
        let local = ServiceFlags::EXTERNAL_LOCAL | ServiceFlags::EXTERNAL_BLOCK_LOCAL;
        ServiceFlags::new(frontend.kind)
            .with(ServiceFlags::HAS_ENDPOINTS, has_endpoints)
            .with(ServiceFlags::AFFINITY, self.affinity > 0)
            .with(ServiceFlags::MAGLEV, self.is_maglev)
            .with(ServiceFlags::INTERNAL_BLOCK_LOCAL, local_policy)
            .with(local, frontend.local && !is_cluster_ip)
            .with(
                ServiceFlags::SOURCE_RANGES,
                is_balancer && !self.sources.is_empty(),
            )
    }
    /// Returns the plan that the agent's planner would make of this service.
    pub(crate) fn plan(&self) -> ServicePlan {
        let cluster_ips = self.frontends.iter();
        let cluster_ips = cluster_ips.filter(|one| one.kind == FrontendKind::ClusterIp);
        let guarded = cluster_ips.map(|one| one.at.ip());
        ServicePlan {
            ports: vec![PortPlan {
                name: "".into(),
                protocol: Protocol(self.protocol),
                port: Port::from_host(80),
                affinity_timeout: self.affinity,
                source_ranges: self.sources.clone(),
                v4: self.family(),
                v6: self.family(),
            }],
            guarded_v4: guarded.clone().filter_map(V4::of_ip).collect(),
            guarded_v6: guarded.filter_map(V6::of_ip).collect(),
            health_check: None,
            ready: [0; 2],
        }
    }
    fn family<A: Family>(&self) -> FamilyPlan<A> {
        let backends = self.backends.iter().filter_map(|backend| {
            Some(BackendPlan {
                address: A::of_ip(backend.at.ip())?,
                port: Port::from_host(backend.at.port()),
                sets: backend.sets,
                weight: backend.weight,
                local_weight: None,
            })
        });
        let plan = |at: SocketAddr, flags| {
            Some(FrontendPlan {
                address: A::of_ip(at.ip())?,
                port: Port::from_host(at.port()),
                flags,
            })
        };
        let frontends = self.frontends.iter();
        let frontends = frontends.filter_map(|one| plan(one.at, self.flags(one)));
        // As the planner does with the setting `answerPing`.
        let echo = ServiceFlags::new(FrontendKind::Echo);
        let is_pinged =
            |kind| matches!(kind, FrontendKind::LoadBalancer | FrontendKind::ExternalIp);
        let pinged = self.frontends.iter().filter(|one| is_pinged(one.kind));
        let pinged = pinged.filter_map(|one| plan(SocketAddr::new(one.at.ip(), 0), echo));
        let mut backends: Vec<_> = backends.collect();
        backends.sort();
        FamilyPlan {
            frontends: frontends.chain(pinged).collect(),
            backends,
        }
    }
}

/// The settings of the node that a sequence can change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NodeSettings {
    /// Flags of [`Settings`]: those that have a word in `text`.
    pub(crate) flags: u32,
    /// True if packets to unallocated addresses in the cluster IP ranges are dropped.
    pub(crate) allocated: bool,
    /// The first and last masquerade port.
    pub(crate) ports: (u16, u16),
}

impl NodeSettings {
    pub(crate) const fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
    /// Returns the masquerade ports.
    pub(crate) fn ports(&self) -> RangeInclusive<u16> {
        self.ports.0..=self.ports.1
    }
    /// Returns true if there are so few ports that the programs' tries may find no free one.
    pub(crate) fn are_ports_scarce(&self, tries: usize) -> bool {
        self.ports().len() <= 8 * tries
    }
    /// Checks that a source is this address with one of the masquerade ports.
    pub(crate) fn expect_source(&self, source: SocketAddr, address: IpAddr) -> Result<(), String> {
        if source.ip() == address && self.ports().contains(&source.port()) {
            return Ok(());
        }
        let ports = &self.ports;
        Err(format!("{source} is not {address} and a port of {ports:?}"))
    }
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            flags: Settings::DETECTS_PODS | Settings::RESET_UNKNOWN,
            allocated: false,
            ports: (1024, 29_999),
        }
    }
}

/// The MAC of the router at the uplink. `POD_MAC`: that of pod A, whose link the agent knows.
pub(crate) const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 8, 8];
pub(crate) const POD_MAC: [u8; 6] = [2, 0, 0, 0, 8, 9];

/// An interface of the node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Debug)]
pub(crate) enum Interface {
    /// The interface of pod A; each of the next two also leads to one pod.
    PodA,
    PodB,
    PodC,
    /// The interface that all clients outside of the node share.
    Uplink,
}

impl Interface {
    pub(crate) fn name(self) -> String {
        word(self)
    }
    pub(crate) const fn index(self) -> u32 {
        11 + self as u32
    }
    /// Returns the MAC of the interface, to which frames for this node are addressed.
    pub(crate) const fn mac(self) -> [u8; 6] {
        [2, 0, 0, 0, 1, self.index() as u8]
    }
    pub(crate) fn is_bridge_port(self) -> bool {
        self == Self::PodB
    }
    /// Returns true if packets that arrive at this interface may leave past the stack.
    pub(crate) fn redirects(self) -> bool {
        self != Self::PodC
    }
    pub(crate) fn has_pods(self) -> bool {
        self != Self::Uplink
    }
    /// Returns the interface to which the node's routes send packets to this address.
    pub(crate) fn towards(address: IpAddr) -> Self {
        let mut pods = [Self::PodA, Self::PodB, Self::PodC].into_iter();
        let found = pods.find(|at| pod(*at, address.is_ipv6()) == address);
        found.unwrap_or(Self::Uplink)
    }
}

/// Returns one of two addresses.
pub(crate) fn pick(v6: bool, four: &str, six: &str) -> IpAddr {
    (if v6 { six } else { four }).parse().expect("an address")
}

/// Returns the address of the pod behind an interface; for the uplink, of a pod on another node.
pub(crate) fn pod(interface: Interface, v6: bool) -> IpAddr {
    match interface {
        Interface::PodA => pick(v6, "10.40.1.9", "fd00:40:0:1::9"),
        Interface::PodB => pick(v6, "10.40.1.10", "fd00:40:0:1::10"),
        Interface::PodC => pick(v6, "10.40.1.11", "fd00:40:0:1::11"),
        Interface::Uplink => pick(v6, "10.40.2.10", "fd00:40:0:2::10"),
    }
}

/// Returns the address of a client outside the cluster; `n` is its last part.
pub(crate) fn outsider(n: u8, v6: bool) -> IpAddr {
    let (four, six) = (format!("203.0.113.{n}"), format!("2001:db8:113::{n}"));
    pick(v6, &four, &six)
}

/// Returns the node's InternalIP, at which node ports are served.
pub(crate) fn node(v6: bool) -> IpAddr {
    pick(v6, "192.168.40.2", "fd00:c0::2")
}

/// Returns another address of the node, at which node ports are not served.
pub(crate) fn other_node_address(v6: bool) -> IpAddr {
    pick(v6, "192.168.41.2", "fd00:c0:1::2")
}

/// Returns the uplink's own address: the source of masqueraded packets that leave through the
/// uplink. Node ports are not served there.
pub(crate) fn uplink_address(v6: bool) -> IpAddr {
    pick(v6, "192.168.43.2", "fd00:c0:3::2")
}

/// Returns the address of the router at the uplink.
pub(crate) fn router(v6: bool) -> IpAddr {
    pick(v6, "192.168.43.1", "fd00:c0:3::1")
}

/// Returns all addresses of the node.
pub(crate) fn node_addresses(v6: bool) -> [IpAddr; 3] {
    [node(v6), other_node_address(v6), uplink_address(v6)]
}

pub(crate) fn is_node(address: IpAddr) -> bool {
    node_addresses(address.is_ipv6()).contains(&address)
}

pub(crate) fn pod_range(v6: bool) -> IpNet {
    let range = if v6 { "fd00:40::/48" } else { "10.40.0.0/16" };
    range.parse().expect("a range")
}

pub(crate) fn service_range(v6: bool) -> IpNet {
    let range = if v6 { "fd00:30::/112" } else { "172.30.0.0/16" };
    range.parse().expect("a range")
}
