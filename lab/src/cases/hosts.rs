// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Derives the hosts that flows need from their addresses, for the conformance runner and the demo.

use std::{collections::BTreeSet, net::IpAddr};

use super::{
    cluster::Endpoint,
    format::{Flow, Node},
};
use crate::node::layout::Layout;

/// Returns the hosts that flows need. A pod that is on the node in any step of a case exists from
/// the beginning: an endpoint that moves keeps its address and therefore its host.
pub fn hosts(node: &Node, flows: &[&Flow], endpoints: &BTreeSet<Endpoint>) -> Layout {
    let mut layout = Layout {
        node: node.ips.clone(),
        ..Layout::default()
    };
    let is_node = |ip: &IpAddr| node.ips.contains(ip) || ip.is_loopback();
    let usable = |ip: &IpAddr| {
        let family = node.ips.iter().any(|node| node.is_ipv4() == ip.is_ipv4());
        family && !is_node(ip) && !ip.is_multicast() && !is_link_local(ip) && !ip.is_unspecified()
    };
    let clients = flows.iter().map(|flow| flow.from).filter(usable);
    let is_pod = |ip: &IpAddr| node.pod_cidrs.iter().any(|range| range.contains(ip));
    let (mut pods, outside): (BTreeSet<_>, BTreeSet<_>) = clients.partition(is_pod);
    let served = |local: bool| {
        let these = endpoints.iter().filter(move |one| one.local == local);
        these.map(|one| one.address.ip()).filter(usable)
    };
    pods.extend(served(true));
    layout.remote = served(false).filter(|ip| !pods.contains(ip)).collect();
    layout.outside = outside;
    layout
        .outside
        .retain(|ip| !pods.contains(ip) && !layout.remote.contains(ip));
    layout.pods = pods.into_iter().map(|ip| vec![ip]).collect();
    let called = flows.iter().filter_map(|flow| Some(flow.to?.ip()));
    let called = called.filter(usable);
    layout.unowned = called.filter(|ip| layout.owner(*ip).is_none()).collect();
    layout
}

fn is_link_local(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}
