// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Generates random services and settings of a node, and random changes of services.

use std::net::IpAddr;

use proxy_common::{EndpointSet, FrontendKind, Settings};

use crate::{
    model::wire::{SCTP, TCP, UDP},
    packets::at,
    random::Random,
    services::{Backend, Frontend, Interface, NodeSettings, Service, pick, pod},
};

/// Returns the cluster IP of the service with this number.
pub(crate) fn cluster_ip(n: u8, v6: bool) -> IpAddr {
    pick(v6, &format!("172.30.1.{n}"), &format!("fd00:30::1:{n}"))
}

/// Returns six random services, all with the same pods and port, so that their tuples collide.
pub(crate) fn services(random: &mut Random) -> Vec<Service> {
    let protocols = [TCP, TCP, UDP, UDP, SCTP, TCP].into_iter().zip(1..);
    let services = protocols.map(|(protocol, n)| service(n, protocol, random));
    services.collect()
}

fn service(n: u8, protocol: u8, random: &mut Random) -> Service {
    use FrontendKind::{ClusterIp, ExternalIp, LoadBalancer, NodePort};
    let mut frontends = Vec::new();
    let (balanced, external, node_port) = (random.one_in(2), random.one_in(3), random.one_in(2));
    let (inner, outer) = (random.one_in(6), random.one_in(3));
    for v6 in [false, true] {
        let any = pick(v6, "0.0.0.0", "::");
        let balancer = pick(v6, &format!("198.51.100.{n}"), &format!("2001:db8:51::{n}"));
        let external_ip = pick(v6, &format!("192.0.2.{n}"), &format!("2001:db8:2::{n}"));
        let number = 30_050 + u16::from(n) * 10;
        for (is, kind, address, port, local) in [
            (true, ClusterIp, cluster_ip(n, v6), 80, inner),
            (balanced, LoadBalancer, balancer, 80, outer),
            (external, ExternalIp, external_ip, 80, outer),
            (node_port, NodePort, any, number, outer),
        ] {
            let at = at(address, port);
            frontends.extend(is.then_some(Frontend { kind, at, local }));
        }
    }
    let sources = match random.one_in(4) {
        true => "203.0.113.8/31 2001:db8:113::8/125 10.40.0.0/16 fd00:40::/48",
        false => "",
    };
    let sources = sources.split_whitespace();
    Service {
        name: format!("s{n}"),
        protocol,
        frontends,
        backends: backends(random),
        affinity: random.pick(&[0, 0, 0, 21]),
        is_maglev: random.one_in(3),
        sources: sources.map(|one| one.parse().expect("a range")).collect(),
    }
}

fn backends(random: &mut Random) -> Vec<Backend> {
    let mut backends = Vec::new();
    for interface in [Interface::PodB, Interface::PodC, Interface::Uplink] {
        let is_local = interface != Interface::Uplink;
        if random.one_in(3) {
            continue;
        }
        let sets = match random.below(8) {
            0 => EndpointSet::NONE,
            1 if is_local => EndpointSet::LOCAL,
            _ if is_local => EndpointSet::CLUSTER.union(EndpointSet::LOCAL),
            _ => EndpointSet::CLUSTER,
        };
        let weight = random.pick(&[0, 1, 1, 1, 1, 2, 5]);
        for v6 in [false, true] {
            let at = at(pod(interface, v6), 8080);
            backends.push(Backend { at, sets, weight });
        }
    }
    // As the planner does: if any backend is wanted, one in the set CLUSTER is.
    let is_one = |one: &Backend| one.is_wanted() && one.sets.intersects(EndpointSet::CLUSTER);
    if !backends.iter().any(is_one) {
        let are_all_0 = random.one_in(2);
        for backend in &mut backends {
            if are_all_0 {
                backend.weight = 0;
            } else {
                backend.sets = EndpointSet::NONE;
            }
        }
    }
    backends
}

/// Returns the service with other backends, or with another affinity, traffic policy or selection.
pub(crate) fn changed(service: &Service, random: &mut Random) -> Service {
    let mut changed = service.clone();
    match random.below(6) {
        5 => changed.is_maglev = !service.is_maglev,
        0 => changed.affinity = 21 - service.affinity,
        1 => {
            for frontend in &mut changed.frontends {
                frontend.local = frontend.kind != FrontendKind::ClusterIp && !frontend.local;
            }
        }
        _ => changed.backends = backends(random),
    }
    changed
}

/// Returns random settings of a node.
pub(crate) fn settings(random: &mut Random) -> NodeSettings {
    let detects_pods = !random.one_in(5);
    let flags = [
        (random.one_in(4), Settings::MASQUERADE_ALL),
        (detects_pods, Settings::DETECTS_PODS),
        (
            detects_pods && random.one_in(4),
            Settings::PODS_BY_INTERFACE,
        ),
        (random.one_in(12), Settings::MARK_ONLY),
        (!random.one_in(5), Settings::RESET_UNKNOWN),
        (random.one_in(2), Settings::ANSWER_PING),
    ];
    let flags = flags.into_iter().filter(|(is, _)| *is);
    NodeSettings {
        flags: flags.fold(0, |all, (_, flag)| all | flag),
        allocated: random.one_in(4),
        ports: random.pick(&[(1024, 29_999), (5000, 5003), (5000, 5007), (1024, 1100)]),
    }
}
