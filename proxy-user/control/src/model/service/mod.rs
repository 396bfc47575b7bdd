// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Services as the planner needs them, and the conversion from `v1.Service`.

mod addresses;
mod policy;

use std::{collections::HashSet, net::IpAddr, sync::Arc};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{self as core, ServiceSpec};
use proxy_common::{Port, Protocol, V4, V6};
use serde_json::{Value, json};

use super::{Complaints, Converted, Converter, Kind, created, gateway::is_made, parse};
use crate::object::{ObjectName, Warning, uid_hash};

use addresses::Addresses;
pub use policy::{ClientAddress, Selection};

/// A service. If it is not served (headless, ExternalName, of another proxy), it has no cluster IP
/// here.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Service {
    pub name: ObjectName,
    /// `object::uid_hash` of the original, for events about it.
    pub uid_hash: u64,
    /// Creation time in seconds since 1970; an object without one counts as the newest.
    pub created: i64,
    pub cluster_v4: Option<V4>,
    pub cluster_v6: Option<V6>,
    pub external_ips: Box<[IpAddr]>,
    /// The IPs with ipMode Proxy are left out, because the node does not serve them.
    pub load_balancer_ips: Box<[IpAddr]>,
    pub source_ranges: SourceRanges,
    pub ports: Box<[ServicePort]>,
    /// How long a client keeps its backend, in seconds; 0 without session affinity.
    pub affinity_timeout: u32,
    /// How a new flow gets its backend, as the service's annotation says; None: the setting
    /// `portolan.selection` counts.
    pub selection: Option<Selection>,
    /// Whether the service's clients keep their addresses, as its annotation says; None: the
    /// setting `portolan.clientAddress` counts.
    pub client_address: Option<ClientAddress>,
    pub internal_local: bool,
    pub external_local: bool,
    pub health_check_node_port: Option<u16>,
    pub role: Role,
}

/// What a service is to the Gateway API.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Role {
    /// A Service as users make it.
    #[default]
    Plain,
    /// A Service that was made for a Gateway, which has its addresses. It is served as a part of
    /// the Gateway.
    Made(Box<Made>),
    /// A Gateway, in the form of a service: its listeners are the ports.
    Gateway,
}

/// What the Gateway of such a Service needs to know of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Made {
    /// The Service as it is, if `Converter::keeps_made`.
    pub object: Value,
    /// The addresses and host names of its load balancer, as it publishes them.
    pub published: Box<[Arc<str>]>,
}

/// KUBE: the clients that may use the load balancer IPs (`loadBalancerSourceRanges`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SourceRanges {
    pub ranges: Box<[IpNet]>,
    /// True if a range could not be read. Then a family without a readable range allows no client,
    /// because the unreadable range may be of this family.
    pub unreadable: bool,
}

impl SourceRanges {
    /// True if a readable range is IPv4 (if `v4`) or IPv6 (if not).
    fn names(&self, v4: bool) -> bool {
        self.ranges.iter().any(|range| range.addr().is_ipv4() == v4)
    }
    /// True if the ranges restrict IPv4 clients (if `v4`) or IPv6 clients (if not). KUBE: ranges
    /// of one family do not restrict the other.
    pub fn restrict(&self, v4: bool) -> bool {
        self.unreadable || self.names(v4)
    }
}

/// One port of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServicePort {
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: Port,
    /// [`Port::ANY`] if there is no node port.
    pub node_port: Port,
}

impl Service {
    /// Whether this service gets any entry in the maps.
    pub fn is_served(&self) -> bool {
        match self.role {
            Role::Plain => self.cluster_v4.is_some() || self.cluster_v6.is_some(),
            Role::Made(_) => false,
            Role::Gateway => !self.ports.is_empty(),
        }
    }
    /// Returns the service's cluster IPs, at most one of each family.
    pub fn cluster_ips(&self) -> impl Iterator<Item = IpAddr> {
        let v6 = self.cluster_v6.map(IpAddr::from);
        self.cluster_v4.map(IpAddr::from).into_iter().chain(v6)
    }
    /// Returns the service's cluster IPs, external IPs and load balancer IPs.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let external = self.external_ips.iter().chain(&self.load_balancer_ips);
        self.cluster_ips().chain(external.copied())
    }
}

impl Converter {
    /// Converts a service; fails only if it has no name.
    pub fn service(&mut self, object: &core::Service) -> Result<Converted<Service>, Warning> {
        let name = self.object_name(Kind::Service, &object.metadata)?;
        let mut complaints = Complaints::about(Kind::Service, &name);
        let empty = ServiceSpec::default();
        let spec = object.spec.as_ref().unwrap_or(&empty);
        let mut service = Service {
            name,
            uid_hash: uid_hash(object.metadata.uid.as_deref()),
            created: created(&object.metadata),
            affinity_timeout: policy::affinity_timeout(spec, &mut complaints),
            internal_local: policy::is_local(
                "internalTrafficPolicy",
                spec.internal_traffic_policy.as_deref(),
                &mut complaints,
            ),
            external_local: policy::is_external_local(spec, &mut complaints),
            role: self.role(object),
            ..Service::default()
        };
        // KUBE: ExternalName is not served, even with a cluster IP left over from another type.
        if self.is_of_another_proxy(&object.metadata)
            || spec.type_.as_deref() == Some("ExternalName")
        {
            return Ok((service, complaints.into_warnings()));
        }
        let mut addresses = Addresses {
            link_local: self.link_local,
            complaints: &mut complaints,
        };
        (service.cluster_v4, service.cluster_v6) = addresses.cluster_ips(spec);
        if service.cluster_ips().next().is_none() {
            return Ok((service, complaints.into_warnings()));
        }
        service.external_ips = addresses.external_ips(spec, &service);
        service.load_balancer_ips = addresses.load_balancer_ips(object, &service);
        let metadata = &object.metadata;
        service.selection = policy::choice(policy::SELECTION, metadata, &mut complaints);
        service.client_address = policy::choice(policy::CLIENT_ADDRESS, metadata, &mut complaints);
        service.ports = self.service_ports(spec, &mut complaints);
        service.source_ranges =
            addresses::source_ranges(spec, &service.load_balancer_ips, &mut complaints);
        service.health_check_node_port =
            policy::health_check_node_port(spec, &service, &mut complaints);
        Ok((service, complaints.into_warnings()))
    }

    fn role(&mut self, object: &core::Service) -> Role {
        if !self.gateways || !is_made(Kind::Service, &object.metadata) {
            return Role::Plain;
        }
        let published = addresses::ingress(object)
            .filter_map(|one| one.ip.as_deref().or(one.hostname.as_deref()));
        Role::Made(Box::new(Made {
            object: if self.keeps_made {
                json!(object)
            } else {
                Value::Null
            },
            published: published.map(|text| self.text(text)).collect(),
        }))
    }

    fn service_ports(
        &mut self,
        spec: &ServiceSpec,
        complaints: &mut Complaints,
    ) -> Box<[ServicePort]> {
        let mut ports: Vec<ServicePort> = Vec::new();
        let mut seen = HashSet::new();
        for (index, port) in spec.ports.iter().flatten().enumerate() {
            let name = port.name.as_deref().unwrap_or_default();
            let field = parse::named(format!("spec.ports[{index}]"), name);
            let read = parse::port_of(port.protocol.as_deref(), Some(port.port));
            let (protocol, number) = match read {
                Ok(read) => read,
                Err((fault, part)) => {
                    complaints.add(format!(
                        "{field}: {fault}; this port is not served, correct its {part}"
                    ));
                    continue;
                }
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
            let name = self.text(name);
            if !seen.insert((Arc::clone(&name), protocol)) {
                complaints.add(format!(
                    "{field}: an earlier port has the same name and protocol; this one is not served, give it another name",
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
