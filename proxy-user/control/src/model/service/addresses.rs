// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The addresses of a service, and the source ranges that may use it. Called by the conversion of
//! `v1.Service`.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{self as core, ServiceSpec};
use proxy_common::{V4, V6};

use super::{Complaints, Service, SourceRanges, parse};

/// Reads the addresses of one service.
pub(super) struct Addresses<'a> {
    /// Whether link-local addresses are served, too.
    pub(super) link_local: bool,
    pub(super) complaints: &'a mut Complaints,
}

impl Addresses<'_> {
    /// Reads the cluster IP of each family; None for a family without a valid one. KUBE:
    /// `clusterIPs` has one address per family; an object without it has only `clusterIP`.
    pub(super) fn cluster_ips(&mut self, spec: &ServiceSpec) -> (Option<V4>, Option<V6>) {
        let single = spec.cluster_ip.as_deref().unwrap_or_default();
        let many = spec.cluster_ips.as_deref().unwrap_or_default();
        let texts = many.iter().map(String::as_str);
        let texts = texts.chain(Some(single).filter(|_| many.is_empty()));
        let (mut v4, mut v6) = (None, None);
        for text in texts {
            if text.is_empty() || text == "None" || single == "None" {
                continue;
            }
            let twice = match self.possible("clusterIP", text) {
                Some(IpAddr::V4(address)) => v4.replace(address.into()).is_some(),
                Some(IpAddr::V6(address)) => v6.replace(address.into()).is_some(),
                None => false,
            };
            if twice {
                self.complaints.add(format!(
                    "clusterIPs has several addresses of one family; only {text} is served, keep one per family",
                ));
            }
        }
        (v4, v6)
    }

    pub(super) fn external_ips(&mut self, spec: &ServiceSpec, service: &Service) -> Box<[IpAddr]> {
        let texts = spec.external_ips.iter().flatten();
        let served = texts.filter_map(|text| {
            let address = self.possible("externalIP", text)?;
            if has_family_of(service, address) {
                return Some(address);
            }
            let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
            self.complaints.add(format!(
                "externalIP {address} is not served because the service has no {family} cluster IP; add {family} to its ipFamilies or remove the address",
            ));
            None
        });
        served.collect()
    }

    pub(super) fn load_balancer_ips(
        &mut self,
        object: &core::Service,
        service: &Service,
    ) -> Box<[IpAddr]> {
        ingress(object)
            // KUBE: with ipMode Proxy, packets must go through the load balancer.
            .filter(|ingress| ingress.ip_mode.as_deref() != Some("Proxy"))
            .filter_map(|ingress| ingress.ip.as_deref().filter(|ip| !ip.is_empty()))
            // KUBE: a load balancer may publish addresses of both families for a service of one,
            // and translate between them itself. That is no fault, so there is no warning.
            .filter(|text| parse::address(text).is_none_or(|ip| has_family_of(service, ip)))
            .filter_map(|text| self.possible("load balancer IP", text))
            .collect()
    }

    /// Parses an address; warns and returns None if no service can have it (e.g. loopback,
    /// multicast).
    fn possible(&mut self, what: &str, text: &str) -> Option<IpAddr> {
        let Some(address) = parse::address(text) else {
            self.complaints.add(format!(
                "{what} {text:?} is not an IP address; it is not served, correct the address",
            ));
            return None;
        };
        let flaw = parse::flaw(address);
        let Some(flaw) = flaw.filter(|flaw| *flaw != parse::LINK_LOCAL || !self.link_local) else {
            return Some(address);
        };
        let remedy = match flaw {
            parse::LINK_LOCAL => "use another address, or set portolan.serveLinkLocal to true",
            _ => "use another address",
        };
        self.complaints.add(format!(
            "{what} {address} is {flaw}, which no service can have; it is not served, {remedy}",
        ));
        None
    }
}

/// Returns what the load balancer of a service has published.
pub(super) fn ingress(object: &core::Service) -> impl Iterator<Item = &core::LoadBalancerIngress> {
    let status = object.status.as_ref();
    let balancer = status.and_then(|status| status.load_balancer.as_ref());
    let ingress = balancer.and_then(|balancer| balancer.ingress.as_ref());
    ingress.into_iter().flatten()
}

/// True if the service has a cluster IP of the address's family. KUBE: without one, the address is
/// not served.
fn has_family_of(service: &Service, address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => service.cluster_v4.is_some(),
        IpAddr::V6(_) => service.cluster_v6.is_some(),
    }
}

/// Reads `loadBalancerSourceRanges`; warns about unreadable ranges, and about a family that has
/// load balancer IPs but no range.
pub(super) fn source_ranges(
    spec: &ServiceSpec,
    balancers: &[IpAddr],
    complaints: &mut Complaints,
) -> SourceRanges {
    let given = spec
        .load_balancer_source_ranges
        .as_deref()
        .unwrap_or_default();
    let fate = "allows nobody; write it like 203.0.113.0/24";
    let ranges = parse::ranges("loadBalancerSourceRanges", given, fate, complaints);
    let ranges = SourceRanges {
        unreadable: ranges.len() < given.len(),
        ranges,
    };
    for (v4, family, all) in [(true, "IPv4", "0.0.0.0/0"), (false, "IPv6", "::/0")] {
        if given.is_empty() || ranges.names(v4) || balancers.iter().all(|ip| ip.is_ipv4() != v4) {
            continue;
        }
        complaints.add(if ranges.unreadable {
            format!(
                "loadBalancerSourceRanges has no readable range of {family}, so no client may use the {family} load balancer IPs; correct the list"
            )
        } else {
            format!(
                "loadBalancerSourceRanges has no range of {family}, so every client may use the {family} load balancer IPs; add ranges of {family}, or {all} if this is meant"
            )
        });
    }
    ranges
}
