// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Derives the hosts that a conformance case needs from its addresses. Pure; called by the
//! conformance runner.

use std::{collections::BTreeSet, net::IpAddr};

use super::{cluster::Endpoint, format::Case};
use crate::node::layout::Layout;

/// Returns the hosts that a case needs. A pod that is on the node in any step exists from the
/// beginning: an endpoint that moves keeps its address and therefore its host.
pub fn hosts(case: &Case, endpoints: &BTreeSet<Endpoint>) -> Layout {
    let mut layout = Layout {
        node: case.node.ips.clone(),
        ..Layout::default()
    };
    let is_node = |ip: &IpAddr| case.node.ips.contains(ip) || ip.is_loopback();
    let usable = |ip: &IpAddr| {
        let family = case
            .node
            .ips
            .iter()
            .any(|node| node.is_ipv4() == ip.is_ipv4());
        family && !is_node(ip) && !ip.is_multicast() && !is_link_local(ip) && !ip.is_unspecified()
    };
    let flows = || case.steps.iter().flat_map(|step| &step.flows);
    let clients: BTreeSet<_> = flows().map(|flow| flow.from).filter(usable).collect();
    let (pods, outside): (BTreeSet<_>, BTreeSet<_>) = clients
        .into_iter()
        .partition(|ip| case.node.pod_cidrs.iter().any(|range| range.contains(ip)));
    let served = || {
        endpoints
            .iter()
            .filter(|endpoint| usable(&endpoint.address.ip()))
    };
    let local = served()
        .filter(|endpoint| endpoint.local)
        .map(|endpoint| endpoint.address.ip());
    let pods: BTreeSet<_> = pods.into_iter().chain(local).collect();
    layout.remote = served().map(|endpoint| endpoint.address.ip()).collect();
    layout.remote.retain(|ip| !pods.contains(ip));
    layout.outside = outside;
    layout
        .outside
        .retain(|ip| !pods.contains(ip) && !layout.remote.contains(ip));
    layout.pods = pods.into_iter().map(|ip| vec![ip]).collect();
    let called = flows()
        .filter_map(|flow| flow.to)
        .map(|to| to.ip())
        .filter(usable);
    layout.unowned = called.filter(|ip| layout.owner(*ip).is_none()).collect();
    layout
}

fn is_link_local(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}
