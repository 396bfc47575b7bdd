// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The services and settings of a sequence: plain values that the model reads and that become plans
//! for the real maps.

use std::net::{IpAddr, SocketAddr};

use control::plan::{BackendPlan, FamilyPlan, FrontendPlan, PortPlan, ServicePlan};
use ipnet::IpNet;
use proxy_common::{Addr, EndpointSet, FrontendKind, Port, Protocol, ServiceFlags, V4, V6};

/// One service with one port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) protocol: u8,
    pub(crate) frontends: Vec<Frontend>,
    pub(crate) backends: Vec<Backend>,
    /// The affinity timeout in seconds; 0 without affinity.
    pub(crate) affinity: u32,
    /// True with selection by hash.
    pub(crate) is_maglev: bool,
    pub(crate) sources: Vec<IpNet>,
}

/// An address and port of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Frontend {
    pub(crate) kind: FrontendKind,
    /// The address and port; the address is unspecified for a node port.
    pub(crate) at: SocketAddr,
    /// `externalTrafficPolicy: Local`; for a cluster IP, `internalTrafficPolicy: Local`.
    pub(crate) local: bool,
}

/// An endpoint that serves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Backend {
    pub(crate) at: SocketAddr,
    pub(crate) sets: EndpointSet,
}

impl Service {
    /// The flags that the planner gives to a frontend of this service.
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
                    .any(|backend| backend.at.is_ipv6() == v6 && backend.sets != EndpointSet::NONE),
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
    /// The plan of this service.
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
            })
        });
        let frontends = self.frontends.iter().filter_map(|frontend| {
            Some(FrontendPlan {
                address: of(frontend.at.ip())?,
                port: Port::from_host(frontend.at.port()),
                flags: self.flags(frontend),
            })
        });
        // As the planner does with `answerPing`.
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

/// The settings of the node that sequences change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NodeSettings {
    pub(crate) masquerade_all: bool,
    pub(crate) detects_pods: bool,
    pub(crate) by_interface: bool,
    pub(crate) mark_only: bool,
    pub(crate) resets: bool,
    pub(crate) answer_ping: bool,
    /// Cluster IPs are allocated from the ranges; packets to unallocated ones are dropped.
    pub(crate) allocated: bool,
    /// The only range of masquerade ports.
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

/// The MACs of the router at the uplink, and of the pod whose link the agent has.
pub(crate) const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 8, 8];
pub(crate) const POD_MAC: [u8; 6] = [2, 0, 0, 0, 8, 9];

/// An interface of the node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Interface {
    /// The interfaces of one pod each.
    PodA,
    PodB,
    PodC,
    /// The interface that many clients share.
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
    /// The link-layer address of the interface, to which frames for this node are sent.
    pub(crate) const fn mac(self) -> [u8; 6] {
        [2, 0, 0, 0, 1, self.index() as u8]
    }
    pub(crate) fn is_bridge_port(self) -> bool {
        self == Self::PodB
    }
    /// Whether packets from this interface may leave past the stack.
    pub(crate) fn redirects(self) -> bool {
        self != Self::PodC
    }
    pub(crate) fn has_pods(self) -> bool {
        self != Self::Uplink
    }
    /// The interface to which the node's routes send packets to this address.
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

/// The address of the pod behind an interface; for the uplink, of one on another node.
pub(crate) fn pod(interface: Interface, v6: bool) -> IpAddr {
    match interface {
        Interface::PodA => pick(v6, "10.40.1.9", "fd00:40:0:1::9"),
        Interface::PodB => pick(v6, "10.40.1.10", "fd00:40:0:1::10"),
        Interface::PodC => pick(v6, "10.40.1.11", "fd00:40:0:1::11"),
        Interface::Uplink => pick(v6, "10.40.2.10", "fd00:40:0:2::10"),
    }
}

/// The address of a client outside the cluster.
pub(crate) fn outsider(n: u8, v6: bool) -> IpAddr {
    let (four, six) = (format!("203.0.113.{n}"), format!("2001:db8:113::{n}"));
    pick(v6, &four, &six)
}

/// The node's InternalIP, at which node ports are served.
pub(crate) fn node(v6: bool) -> IpAddr {
    pick(v6, "192.168.40.2", "fd00:c0::2")
}

/// Another address of the node, without node ports.
pub(crate) fn other_node_address(v6: bool) -> IpAddr {
    pick(v6, "192.168.41.2", "fd00:c0:1::2")
}

/// The uplink's own address, the source of masqueraded packets that leave through it. No node port
/// is served there.
pub(crate) fn uplink_address(v6: bool) -> IpAddr {
    pick(v6, "192.168.43.2", "fd00:c0:3::2")
}

/// The address of the router at the uplink.
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
