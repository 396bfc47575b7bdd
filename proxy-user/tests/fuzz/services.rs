// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The services and node settings of a sequence: plain values that the model reads, and that become
//! plans for the real maps.

use std::net::{IpAddr, SocketAddr};

use control::plan::{BackendPlan, FamilyPlan, FrontendPlan, PortPlan, ServicePlan};
use ipnet::IpNet;
use proxy_common::{Addr, EndpointSet, FrontendKind, Port, Protocol, ServiceFlags, V4, V6};

/// A service with one port.
#[derive(Clone, PartialEq, Eq, Debug)]
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
        ServiceFlags::new(frontend.kind)
            .with(
                ServiceFlags::HAS_ENDPOINTS,
                self.backends
                    .iter()
                    .any(|backend| backend.at.is_ipv6() == v6 && backend.is_wanted()),
            )
            .with(ServiceFlags::AFFINITY, self.affinity > 0)
            .with(ServiceFlags::MAGLEV, self.is_maglev)
            .with(ServiceFlags::INTERNAL_BLOCK_LOCAL, local_policy)
            .with(
                ServiceFlags::EXTERNAL_LOCAL | ServiceFlags::EXTERNAL_BLOCK_LOCAL,
                frontend.local && !is_cluster_ip,
            )
            .with(
                ServiceFlags::SOURCE_RANGES,
                frontend.kind == FrontendKind::LoadBalancer && !self.sources.is_empty(),
            )
    }
    /// Returns the plan that the agent's planner would make of this service.
    pub(crate) fn plan(&self) -> ServicePlan {
        let guarded = self
            .frontends
            .iter()
            .filter(|frontend| frontend.kind == FrontendKind::ClusterIp)
            .map(|frontend| frontend.at.ip());
        ServicePlan {
            ports: vec![PortPlan {
                name: "".into(),
                protocol: Protocol(self.protocol),
                port: Port::from_host(80),
                affinity_timeout: self.affinity,
                source_ranges: self.sources.clone(),
                v4: self.family(v4),
                v6: self.family(v6),
            }],
            guarded_v4: guarded.clone().filter_map(v4).collect(),
            guarded_v6: guarded.filter_map(v6).collect(),
            health_check: None,
        }
    }
    fn family<A: Addr>(&self, of: fn(IpAddr) -> Option<A>) -> FamilyPlan<A> {
        let backends = self.backends.iter().filter_map(|backend| {
            Some(BackendPlan {
                address: of(backend.at.ip())?,
                port: Port::from_host(backend.at.port()),
                sets: backend.sets,
                weight: backend.weight,
                local_weight: None,
            })
        });
        let frontends = self.frontends.iter().filter_map(|frontend| {
            Some(FrontendPlan {
                address: of(frontend.at.ip())?,
                port: Port::from_host(frontend.at.port()),
                flags: self.flags(frontend),
            })
        });
        // As the planner does with the setting `answerPing`.
        let pinged = self.frontends.iter().filter_map(|frontend| {
            matches!(
                frontend.kind,
                FrontendKind::LoadBalancer | FrontendKind::ExternalIp
            )
            .then_some(FrontendPlan {
                address: of(frontend.at.ip())?,
                port: Port::ANY,
                flags: ServiceFlags::new(FrontendKind::Echo),
            })
        });
        let mut backends: Vec<_> = backends.collect();
        backends.sort();
        FamilyPlan {
            frontends: frontends.chain(pinged).collect(),
            backends,
        }
    }
}

pub(crate) fn v4(address: IpAddr) -> Option<V4> {
    match address {
        IpAddr::V4(address) => Some(address.into()),
        IpAddr::V6(_) => None,
    }
}

pub(crate) fn v6(address: IpAddr) -> Option<V6> {
    match address {
        IpAddr::V6(address) => Some(address.into()),
        IpAddr::V4(_) => None,
    }
}

/// The settings of the node that a sequence can change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NodeSettings {
    pub(crate) masquerade_all: bool,
    pub(crate) detects_pods: bool,
    pub(crate) by_interface: bool,
    pub(crate) mark_only: bool,
    pub(crate) resets: bool,
    pub(crate) answer_ping: bool,
    /// True if packets to unallocated addresses in the cluster IP ranges are dropped.
    pub(crate) allocated: bool,
    /// The first and last masquerade port.
    pub(crate) ports: (u16, u16),
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            masquerade_all: false,
            detects_pods: true,
            by_interface: false,
            mark_only: false,
            resets: true,
            answer_ping: false,
            allocated: false,
            ports: (1024, 29_999),
        }
    }
}

/// The MAC of the router at the uplink. `POD_MAC`: that of pod A, whose link the agent knows.
pub(crate) const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 8, 8];
pub(crate) const POD_MAC: [u8; 6] = [2, 0, 0, 0, 8, 9];

/// An interface of the node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Interface {
    /// The interface of pod A; each of the next two also leads to one pod.
    PodA,
    PodB,
    PodC,
    /// The interface that all clients outside of the node share.
    Uplink,
}

impl Interface {
    pub(crate) const ALL: [Self; 4] = [Self::PodA, Self::PodB, Self::PodC, Self::Uplink];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::PodA => "pod-a",
            Self::PodB => "pod-b",
            Self::PodC => "pod-c",
            Self::Uplink => "uplink",
        }
    }
    pub(crate) const fn index(self) -> u32 {
        match self {
            Self::PodA => 11,
            Self::PodB => 12,
            Self::PodC => 13,
            Self::Uplink => 14,
        }
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
        let addresses = |v6| [Self::PodA, Self::PodB, Self::PodC].map(|at| (at, pod(at, v6)));
        addresses(address.is_ipv6())
            .into_iter()
            .find(|(_, pod)| *pod == address)
            .map_or(Self::Uplink, |(interface, _)| interface)
    }
}

fn pick(v6: bool, four: &str, six: &str) -> IpAddr {
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

pub(crate) fn is_node(address: IpAddr) -> bool {
    let v6 = address.is_ipv6();
    [node(v6), other_node_address(v6), uplink_address(v6)].contains(&address)
}

pub(crate) fn pod_range(v6: bool) -> IpNet {
    let range = if v6 { "fd00:40::/48" } else { "10.40.0.0/16" };
    range.parse().expect("a range")
}

pub(crate) fn service_range(v6: bool) -> IpNet {
    let range = if v6 { "fd00:30::/112" } else { "172.30.0.0/16" };
    range.parse().expect("a range")
}
