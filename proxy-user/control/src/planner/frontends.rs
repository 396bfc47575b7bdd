// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The frontends of a service port: their kinds, policies and source ranges. Called by the planner.

use std::{collections::HashSet, net::IpAddr};

use ipnet::IpNet;
use proxy_common::{FrontendKind, Port, ServiceFlags};

use super::{
    NodeView,
    claims::{ClaimKey, Claims},
};
use crate::{
    model::{Service, ServicePort, family::Family},
    plan::FrontendPlan,
};

/// Appends a service port's frontends of one family in which the service is served, as address,
/// port number and flags, each address and port once.
///
/// KUBE: if an address is of several kinds, the first of cluster IP, external IP, load balancer IP
/// and node port counts.
pub(super) fn of_port<A: Family>(
    service: &Service,
    port: &ServicePort,
    frontends: &mut Vec<(A, Port, ServiceFlags)>,
) {
    let mut seen = HashSet::new();
    let mut add = |address: A, number: Port, flags: ServiceFlags| {
        if seen.insert((address, number)) {
            let flags = flags.with(ServiceFlags::AFFINITY, service.affinity_timeout > 0);
            frontends.push((address, number, flags));
        }
    };
    if let Some(cluster_ip) = A::cluster_ip(service) {
        let flags = internal(service, FrontendKind::ClusterIp);
        add(cluster_ip, port.port, flags);
    }
    for address in service.external_ips.iter().copied().filter_map(A::of) {
        let flags = external(service, FrontendKind::ExternalIp);
        add(address, port.port, flags);
    }
    let restricted = service.source_ranges.restrict(A::BITS == 32);
    for address in service.load_balancer_ips.iter().copied().filter_map(A::of) {
        let flags = external(service, FrontendKind::LoadBalancer)
            .with(ServiceFlags::SOURCE_RANGES, restricted);
        add(address, port.port, flags);
    }
    if port.node_port != Port::ANY {
        let flags = external(service, FrontendKind::NodePort);
        add(A::UNSPECIFIED, port.node_port, flags);
    }
}

/// Returns the external and load balancer IPs of a service, duplicates included. The cluster IP is
/// left out: what rejects its unserved ports also answers echo requests to it.
pub(super) fn echo_addresses<A: Family>(service: &Service) -> impl Iterator<Item = A> + '_ {
    let external = service.external_ips.iter();
    let all = external.chain(&service.load_balancer_ips).copied();
    all.filter_map(A::of)
        .filter(|address| A::cluster_ip(service) != Some(*address))
}

/// Appends the frontends that answer echo requests (pings). If several services have an address,
/// one of them gets it.
pub(super) fn of_echo<A: Family>(
    service: &Service,
    claims: &Claims,
    planned: &mut Vec<FrontendPlan<A>>,
) {
    // The echo frontend uses the same endpoint sets as the cluster IP's frontend, so the maps need
    // no further list of backends for it.
    let flags = internal(service, FrontendKind::Echo);
    let mut seen = HashSet::new();
    let addresses = echo_addresses::<A>(service).filter(|address| seen.insert(*address));
    let owned = addresses.filter(|address| claims.holds(&ClaimKey::echo(*address), service));
    planned.extend(owned.map(|address| FrontendPlan {
        address,
        port: Port::ANY,
        flags,
    }));
}

/// Returns the flags of a frontend that has the internal policy for all clients.
fn internal(service: &Service, kind: FrontendKind) -> ServiceFlags {
    ServiceFlags::new(kind)
        .with(ServiceFlags::INTERNAL_BLOCK_LOCAL, service.internal_local)
        .with(ServiceFlags::EXTERNAL_BLOCK_LOCAL, service.internal_local)
}

/// Returns the flags of a frontend that is an external IP, load balancer IP or node port. KUBE:
/// pods and the node use the endpoints of the whole cluster, whatever the external policy.
fn external(service: &Service, kind: FrontendKind) -> ServiceFlags {
    ServiceFlags::new(kind)
        .with(ServiceFlags::EXTERNAL_LOCAL, service.external_local)
        .with(ServiceFlags::EXTERNAL_BLOCK_LOCAL, service.external_local)
}

/// Returns the sorted ranges of clients that may use the load balancer frontends.
///
/// KUBE: if a range includes an InternalIP of the node, the load balancer IP itself is allowed,
/// too. Where that IP is local, it is the source address of the node's own connections to it.
pub(super) fn source_ranges(service: &Service, node: &NodeView) -> Vec<IpNet> {
    if service.load_balancer_ips.is_empty() || service.source_ranges.ranges.is_empty() {
        return Vec::new();
    }
    let mut ranges = service.source_ranges.ranges.to_vec();
    for v4 in [true, false] {
        let of_family = |ip: &&IpAddr| ip.is_ipv4() == v4;
        let mut own = node.internal_ips.iter().filter(of_family);
        if own.any(|ip| service.source_ranges.ranges.iter().any(|r| r.contains(ip))) {
            let addresses = service.load_balancer_ips.iter().filter(of_family);
            ranges.extend(addresses.map(|address| IpNet::from(*address)));
        }
    }
    ranges.sort_unstable();
    ranges.dedup();
    ranges
}
