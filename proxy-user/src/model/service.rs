// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Services as the planner needs them, and the conversion from `v1.Service`.

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{self as core, ServiceSpec};
use proxy_common::{Port, Protocol, V4, V6};

use super::{Complaints, Converted, Converter, Kind, is_for_others, parse};
use crate::object::{ObjectName, Warning};

/// KUBE: the default of `sessionAffinityConfig.clientIP.timeoutSeconds`.
const DEFAULT_AFFINITY_TIMEOUT: u32 = 10_800;
/// KUBE: the API server's limit of the same.
const MAX_AFFINITY_TIMEOUT: i32 = 86_400;

/// A service. One that is not served (headless, ExternalName, another proxy's) has no cluster IP here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Service {
    pub name: ObjectName,
    /// Seconds since 1970; an object without a time counts as the newest.
    pub created: i64,
    pub cluster_v4: Option<V4>,
    pub cluster_v6: Option<V6>,
    pub external_ips: Box<[IpAddr]>,
    /// Only those that the node itself serves.
    pub load_balancer_ips: Box<[IpAddr]>,
    pub source_ranges: SourceRanges,
    pub ports: Box<[ServicePort]>,
    /// Seconds; 0 without session affinity.
    pub affinity_timeout: u32,
    pub internal_local: bool,
    pub external_local: bool,
    pub health_check_node_port: Option<u16>,
}

/// `loadBalancerSourceRanges`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SourceRanges {
    pub ranges: Box<[IpNet]>,
    /// Ranges are given and none can be read: rather nobody than everybody.
    pub nobody: bool,
}

/// One port of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServicePort {
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: Port,
    /// [`Port::ANY`] without a node port.
    pub node_port: Port,
}

impl Service {
    /// Whether anything of this service goes into the maps.
    pub fn is_served(&self) -> bool {
        self.cluster_v4.is_some() || self.cluster_v6.is_some()
    }
}

impl Converter {
    /// Converts a service; fails only where it has no name.
    pub fn service(&mut self, object: &core::Service) -> Result<Converted<Service>, Warning> {
        let name = self.object_name(Kind::Service, &object.metadata)?;
        let mut complaints = Complaints::about(Kind::Service, &name);
        let empty = ServiceSpec::default();
        let spec = object.spec.as_ref().unwrap_or(&empty);
        let mut service = Service {
            name,
            created: object
                .metadata
                .creation_timestamp
                .as_ref()
                .map_or(i64::MAX, |time| time.0.as_second()),
            cluster_v4: None,
            cluster_v6: None,
            external_ips: Box::default(),
            load_balancer_ips: Box::default(),
            source_ranges: SourceRanges::default(),
            ports: Box::default(),
            affinity_timeout: affinity_timeout(spec, &mut complaints),
            internal_local: is_local(
                "internalTrafficPolicy",
                spec.internal_traffic_policy.as_deref(),
                &mut complaints,
            ),
            external_local: is_external_local(spec, &mut complaints),
            health_check_node_port: None,
        };
        // KUBE: ExternalName is not served even where a cluster IP is left over from another type.
        if is_for_others(&object.metadata) || spec.type_.as_deref() == Some("ExternalName") {
            return Ok((service, complaints.into_warnings()));
        }
        (service.cluster_v4, service.cluster_v6) = cluster_ips(spec, &mut complaints);
        if !service.is_served() {
            return Ok((service, complaints.into_warnings()));
        }
        service.ports = self.service_ports(spec, &mut complaints);
        service.external_ips = external_ips(spec, &service, &mut complaints);
        service.load_balancer_ips = load_balancer_ips(object, &service, &mut complaints);
        service.source_ranges = source_ranges(spec, &mut complaints);
        service.health_check_node_port = health_check_node_port(spec, &service, &mut complaints);
        Ok((service, complaints.into_warnings()))
    }

    fn service_ports(
        &mut self,
        spec: &ServiceSpec,
        complaints: &mut Complaints,
    ) -> Box<[ServicePort]> {
        let mut ports: Vec<ServicePort> = Vec::new();
        for (index, port) in spec.ports.iter().flatten().enumerate() {
            let field = match port.name.as_deref() {
                None | Some("") => format!("spec.ports[{index}]"),
                Some(name) => format!("spec.ports[{index}] ({name})"),
            };
            let Some(protocol) = parse::protocol(port.protocol.as_deref()) else {
                complaints.add(format!(
                    "{field}: protocol {:?} is not TCP, UDP or SCTP; this port is not served, correct its protocol",
                    port.protocol.as_deref().unwrap_or_default(),
                ));
                continue;
            };
            let Some(number) = parse::port(port.port) else {
                complaints.add(format!(
                    "{field}: port {} is not between 1 and 65535; this port is not served, correct its number",
                    port.port,
                ));
                continue;
            };
            let node_port = match port.node_port {
                None | Some(0) => Port::ANY,
                Some(number) => parse::port(number).unwrap_or_else(|| {
                    complaints.add(format!(
                        "{field}: nodePort {number} is not between 1 and 65535; the port is served without a node port, correct its number",
                    ));
                    Port::ANY
                }),
            };
            let name = self.text(port.name.as_deref().unwrap_or_default());
            if ports
                .iter()
                .any(|other| other.name == name && other.protocol == protocol)
            {
                complaints.add(format!(
                    "{field}: another port before it has the same name and protocol; this one is not served, give it a name of its own",
                ));
                continue;
            }
            ports.push(ServicePort {
                name,
                protocol,
                port: number,
                node_port,
            });
        }
        ports.into()
    }
}

/// KUBE: the families are those of `clusterIPs`; an object that knows only `clusterIP` has the one.
fn cluster_ips(spec: &ServiceSpec, complaints: &mut Complaints) -> (Option<V4>, Option<V6>) {
    let single = spec.cluster_ip.as_deref().unwrap_or_default();
    let many = spec.cluster_ips.as_deref().unwrap_or_default();
    let texts: Vec<&str> = if many.is_empty() {
        vec![single]
    } else {
        many.iter().map(String::as_str).collect()
    };
    let (mut v4, mut v6) = (None, None);
    for text in texts {
        if text.is_empty() || text == "None" || single == "None" {
            continue;
        }
        let twice = match parse::address(text) {
            Some(IpAddr::V4(address)) => v4.replace(address.into()).is_some(),
            Some(IpAddr::V6(address)) => v6.replace(address.into()).is_some(),
            None => {
                complaints.add(format!(
                    "clusterIP {text:?} is not an IP address; the service is not served by it, correct the address",
                ));
                false
            }
        };
        if twice {
            complaints.add(format!(
                "clusterIPs has several addresses of one family; only {text} is served, keep one of each family",
            ));
        }
    }
    (v4, v6)
}

fn external_ips(
    spec: &ServiceSpec,
    service: &Service,
    complaints: &mut Complaints,
) -> Box<[IpAddr]> {
    let texts = spec.external_ips.iter().flatten();
    texts
        .filter_map(|text| served_address("externalIP", text, service, complaints))
        .collect()
}

fn load_balancer_ips(
    object: &core::Service,
    service: &Service,
    complaints: &mut Complaints,
) -> Box<[IpAddr]> {
    let status = object
        .status
        .as_ref()
        .and_then(|s| s.load_balancer.as_ref());
    status
        .into_iter()
        .flat_map(|status| status.ingress.iter().flatten())
        // KUBE: in ipMode Proxy packets go out to the balancer, which sends them on itself.
        .filter(|ingress| ingress.ip_mode.as_deref() != Some("Proxy"))
        .filter_map(|ingress| ingress.ip.as_deref().filter(|ip| !ip.is_empty()))
        .filter_map(|text| served_address("load balancer IP", text, service, complaints))
        .collect()
}

/// An address of a family that the service has; KUBE: others are not served.
fn served_address(
    what: &str,
    text: &str,
    service: &Service,
    complaints: &mut Complaints,
) -> Option<IpAddr> {
    let Some(address) = parse::address(text) else {
        complaints.add(format!(
            "{what} {text:?} is not an IP address; it is not served, correct the address",
        ));
        return None;
    };
    let (has_family, family) = match address {
        IpAddr::V4(_) => (service.cluster_v4.is_some(), "IPv4"),
        IpAddr::V6(_) => (service.cluster_v6.is_some(), "IPv6"),
    };
    if !has_family {
        complaints.add(format!(
            "{what} {address} is not served because the service has no {family} cluster IP; add {family} to its ipFamilies or remove the address",
        ));
        return None;
    }
    Some(address)
}

fn source_ranges(spec: &ServiceSpec, complaints: &mut Complaints) -> SourceRanges {
    let given = spec
        .load_balancer_source_ranges
        .as_deref()
        .unwrap_or_default();
    let ranges: Box<[IpNet]> = given
        .iter()
        .filter_map(|text| {
            let range = parse::range(text);
            if range.is_none() {
                complaints.add(format!(
                    "loadBalancerSourceRanges: {text:?} is not an address range; it allows nobody, write it like 203.0.113.0/24",
                ));
            }
            range
        })
        .collect();
    let nobody = ranges.is_empty() && !given.is_empty();
    SourceRanges { ranges, nobody }
}

fn affinity_timeout(spec: &ServiceSpec, complaints: &mut Complaints) -> u32 {
    match spec.session_affinity.as_deref() {
        None | Some("" | "None") => return 0,
        Some("ClientIP") => {}
        Some(other) => {
            complaints.add(format!(
                "sessionAffinity {other:?} is neither None nor ClientIP; clients are spread freely, correct it",
            ));
            return 0;
        }
    }
    let given = spec
        .session_affinity_config
        .as_ref()
        .and_then(|config| config.client_ip.as_ref()?.timeout_seconds);
    match given {
        None => DEFAULT_AFFINITY_TIMEOUT,
        Some(seconds @ 1..=MAX_AFFINITY_TIMEOUT) => seconds.unsigned_abs(),
        Some(seconds) => {
            complaints.add(format!(
                "sessionAffinityConfig.clientIP.timeoutSeconds {seconds} is not between 1 and {MAX_AFFINITY_TIMEOUT}; the default of {DEFAULT_AFFINITY_TIMEOUT} holds, correct it",
            ));
            DEFAULT_AFFINITY_TIMEOUT
        }
    }
}

/// Whether a traffic policy is Local; KUBE: none means Cluster.
fn is_local(field: &str, policy: Option<&str>, complaints: &mut Complaints) -> bool {
    match policy {
        Some("Local") => true,
        None | Some("" | "Cluster") => false,
        Some(other) => {
            complaints.add(format!(
                "{field} {other:?} is neither Cluster nor Local; Cluster holds, correct it",
            ));
            false
        }
    }
}

/// KUBE: `externalTrafficPolicy` counts for the types that are reached from outside, and for a ClusterIP
/// service with external IPs.
fn is_external_local(spec: &ServiceSpec, complaints: &mut Complaints) -> bool {
    let local = is_local(
        "externalTrafficPolicy",
        spec.external_traffic_policy.as_deref(),
        complaints,
    );
    let has_external_ips = spec
        .external_ips
        .as_ref()
        .is_some_and(|ips| !ips.is_empty());
    local
        && match spec.type_.as_deref() {
            Some("LoadBalancer" | "NodePort") => true,
            None | Some("" | "ClusterIP") => has_external_ips,
            Some(_) => false,
        }
}

/// KUBE: only load balancers with external policy Local are asked for their health.
fn health_check_node_port(
    spec: &ServiceSpec,
    service: &Service,
    complaints: &mut Complaints,
) -> Option<u16> {
    if spec.type_.as_deref() != Some("LoadBalancer") || !service.external_local {
        return None;
    }
    match spec.health_check_node_port {
        None | Some(0) => None,
        Some(number) => {
            let port = parse::port(number).map(Port::host);
            if port.is_none() {
                complaints.add(format!(
                    "healthCheckNodePort {number} is not between 1 and 65535; health is not answered, correct its number",
                ));
            }
            port
        }
    }
}
