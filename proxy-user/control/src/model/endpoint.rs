// SPDX-License-Identifier: Apache-2.0 OR MIT
//! EndpointSlices as the planner needs them, and the conversion from `discovery.k8s.io/v1`. A
//! cluster may have hundreds of thousands of endpoints, so each is only an address, a byte of bits
//! and one pointer.

use std::{net::IpAddr, sync::Arc};

use k8s_openapi::{api::discovery::v1 as discovery, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use proxy_common::{Addr, Port, Protocol, V4, V6};
use serde_json::{Value, json};

use super::{
    Complaints, Converted, Converter, Kind, LABEL_HEADLESS, annotation, family::Family,
    gateway::is_made, label, parse,
};
use crate::object::{ObjectName, Warning, uid_hash};

/// KUBE: the label with the name of a slice's service.
pub const LABEL_SERVICE: &str = "kubernetes.io/service-name";
/// The annotation of a slice that gives its endpoints a weight.
const ANNOTATION_WEIGHT: &str = "service.portolan.dev/weight";
/// The weight of endpoints whose slice has no such annotation, or a wrong one.
const DEFAULT_WEIGHT: u16 = 1;
const MAX_WEIGHT: u16 = 256;

/// An EndpointSlice: some or all endpoints of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndpointSlice {
    pub name: ObjectName,
    /// `object::uid_hash` of the original, for events about it.
    pub uid_hash: u64,
    /// None if this agent serves nothing by the slice: it has no service label, belongs to another
    /// proxy, lists host names, or was made for a Gateway.
    pub service: Option<ObjectName>,
    /// What is known of a slice that was made for a Gateway.
    pub made: Option<Box<MadeSlice>>,
    /// The weight of each of its endpoints, from the annotation.
    pub weight: u16,
    pub ports: Box<[SlicePort]>,
    pub endpoints: Endpoints,
}

/// A slice that was made for a Gateway. It only tells load balancers where traffic can go: the
/// Gateway is served by the slices of its routes' backends, and this one's endpoints are not kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MadeSlice {
    /// The name of the Service that was made for the Gateway.
    pub service: Arc<str>,
    /// The slice as it is, if `Converter::keeps_made`.
    pub object: Arc<Value>,
}

/// One port of a slice; the planner matches it with a service port by name and protocol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlicePort {
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: Port,
}

/// The endpoints of a slice, which all have one family.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Endpoints {
    V4(Box<[Endpoint<V4>]>),
    V6(Box<[Endpoint<V6>]>),
}

impl Endpoints {
    /// Returns the address, conditions and site of every endpoint.
    pub fn all(&self) -> impl Iterator<Item = (IpAddr, Conditions, Option<&Site>)> {
        fn of_any<A: Addr + Into<IpAddr>>(
            one: &Endpoint<A>,
        ) -> (IpAddr, Conditions, Option<&Site>) {
            (one.address.into(), one.conditions, one.site.as_deref())
        }
        let (v4, v6): (&[_], &[_]) = match self {
            Self::V4(all) => (&**all, &[]),
            Self::V6(all) => (&[], &**all),
        };
        v4.iter().map(of_any).chain(v6.iter().map(of_any))
    }
}

/// One endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint<A> {
    pub address: A,
    pub conditions: Conditions,
    /// None if nothing is known of it. Endpoints with an equal site share it.
    pub site: Option<Arc<Site>>,
}

impl<A> Endpoint<A> {
    /// Returns the endpoint's node, if it is kept and known.
    pub fn node(&self) -> Option<&str> {
        self.site.as_ref()?.node.as_deref()
    }
    /// Returns the zones that the endpoint's topology hints name, sorted; none without such hints.
    pub fn hinted_zones(&self) -> &[Arc<str>] {
        self.site.as_ref().map_or(&[], |site| &site.hinted_zones)
    }
}

/// Where an endpoint is, and where its topology hints say that it is to be used.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Site {
    /// Sorted.
    pub hinted_zones: Box<[Arc<str>]>,
    /// The endpoint's own node, kept only if Gateways are served, or for `Converter::keeps_nodes`.
    pub node: Option<Arc<str>>,
    /// The endpoint's own zone, kept only if Gateways are served.
    pub zone: Option<Arc<str>>,
}

/// The conditions of an endpoint, as bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Conditions(u8);

impl Conditions {
    pub const READY: Self = Self(1);
    pub const SERVING: Self = Self(1 << 1);
    pub const TERMINATING: Self = Self(1 << 2);
    /// The endpoint is on this node.
    pub const LOCAL: Self = Self(1 << 3);
    /// The endpoint's topology hints name some node.
    pub const NODE_HINTED: Self = Self(1 << 4);
    /// The endpoint's topology hints name this node.
    pub const HINTED_HERE: Self = Self(1 << 5);
    /// The slice says that the endpoint is on another node.
    pub const ELSEWHERE: Self = Self(1 << 6);

    #[must_use]
    pub const fn with(self, other: Self, set: bool) -> Self {
        if set { Self(self.0 | other.0) } else { self }
    }
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl Converter {
    /// Converts an EndpointSlice; fails only if it has no name.
    pub fn endpoint_slice(
        &mut self,
        object: &discovery::EndpointSlice,
    ) -> Result<Converted<EndpointSlice>, Warning> {
        let name = self.object_name(Kind::EndpointSlice, &object.metadata)?;
        let mut complaints = Complaints::about(Kind::EndpointSlice, &name);
        let mut slice = EndpointSlice {
            service: None,
            made: None,
            weight: DEFAULT_WEIGHT,
            ports: Box::default(),
            endpoints: Endpoints::V4(Box::default()),
            uid_hash: uid_hash(object.metadata.uid.as_deref()),
            name,
        };
        // KUBE: kube-proxy ignores slices with this label, whatever its value.
        if label(&object.metadata, LABEL_HEADLESS).is_some() {
            return Ok((slice, complaints.into_warnings()));
        }
        let service = label(&object.metadata, LABEL_SERVICE);
        let Some(service) = service.filter(|service| !service.is_empty()) else {
            complaints.add(format!(
                "it has no label {LABEL_SERVICE}, so no service uses it; set this label to the service's name",
            ));
            return Ok((slice, complaints.into_warnings()));
        };
        // Where no Gateways are served, their Services are served by these slices as any.
        if self.gateways && is_made(Kind::EndpointSlice, &object.metadata) {
            let object = self.keeps_made.then(|| json!(object));
            slice.made = Some(Box::new(MadeSlice {
                service: self.text(service),
                object: object.unwrap_or_default().into(),
            }));
            return Ok((slice, complaints.into_warnings()));
        }
        let endpoints = match object.address_type.as_str() {
            "IPv4" => Endpoints::V4(self.endpoints(object, &mut complaints)),
            "IPv6" => Endpoints::V6(self.endpoints(object, &mut complaints)),
            // KUBE: slices with host names are for other consumers.
            "FQDN" => return Ok((slice, complaints.into_warnings())),
            other => {
                complaints.add(format!(
                    "addressType {other:?} is not IPv4, IPv6 or FQDN; the slice is ignored, correct its addressType",
                ));
                return Ok((slice, complaints.into_warnings()));
            }
        };
        slice.endpoints = endpoints;
        slice.weight = weight(&object.metadata, &mut complaints);
        slice.ports = self.slice_ports(object, &mut complaints);
        slice.service = Some(slice.name.beside(self.text(service)));
        Ok((slice, complaints.into_warnings()))
    }

    fn slice_ports(
        &mut self,
        object: &discovery::EndpointSlice,
        complaints: &mut Complaints,
    ) -> Box<[SlicePort]> {
        let mut ports = Vec::new();
        for (index, port) in object.ports.iter().flatten().enumerate() {
            let name = port.name.as_deref().unwrap_or_default();
            match parse::port_of(port.protocol.as_deref(), port.port) {
                Ok((protocol, port)) => ports.push(SlicePort {
                    name: self.text(name),
                    protocol,
                    port,
                }),
                Err((fault, part)) => {
                    let field = parse::named(format!("ports[{index}]"), name);
                    complaints.add(format!(
                        "{field}: {fault}; this port is ignored, correct its {part}"
                    ));
                }
            }
        }
        ports.into()
    }

    fn endpoints<A: Family>(
        &mut self,
        object: &discovery::EndpointSlice,
        complaints: &mut Complaints,
    ) -> Box<[Endpoint<A>]> {
        let mut endpoints = Vec::with_capacity(object.endpoints.len());
        for (index, endpoint) in object.endpoints.iter().enumerate() {
            // KUBE: only the first address of an endpoint counts.
            let Some(text) = endpoint.addresses.first() else {
                complaints.add(format!(
                    "endpoints[{index}] has no address and is ignored; give it one or remove it",
                ));
                continue;
            };
            let Some(parsed) = parse::address(text) else {
                complaints.add(format!(
                    "endpoints[{index}]: {text:?} is not an IP address; this endpoint is ignored, correct the address",
                ));
                continue;
            };
            if let Some(flaw) = parse::flaw(parsed) {
                complaints.add(format!(
                    "endpoints[{index}]: {parsed} is {flaw}, which other hosts cannot reach; this endpoint is ignored, use the pod's own address",
                ));
                continue;
            }
            let Some(address) = A::of(parsed) else {
                complaints.add(format!(
                    "endpoints[{index}]: {parsed} does not match addressType {}; this endpoint is ignored, put it into a slice of its own family",
                    object.address_type,
                ));
                continue;
            };
            let hints = endpoint.hints.as_ref();
            let hinted_zones = hints.iter().flat_map(|h| h.for_zones.iter().flatten());
            let mut hinted_zones: Vec<_> = hinted_zones.map(|zone| self.text(&zone.name)).collect();
            hinted_zones.sort_unstable();
            hinted_zones.dedup();
            let mut nodes = hints
                .iter()
                .flat_map(|h| h.for_nodes.iter().flatten())
                .peekable();
            let node_hinted = nodes.peek().is_some();
            let hinted_here = nodes.any(|node| *node.name == *self.node_name);
            let empty = discovery::EndpointConditions::default();
            let stated = endpoint.conditions.as_ref().unwrap_or(&empty);
            let node = endpoint.node_name.as_deref().unwrap_or_default();
            let local = node == &*self.node_name;
            endpoints.push(Endpoint {
                address,
                // KUBE: nil means ready, serving, not terminating.
                conditions: Conditions::default()
                    .with(Conditions::READY, stated.ready.unwrap_or(true))
                    .with(Conditions::SERVING, stated.serving.unwrap_or(true))
                    .with(Conditions::TERMINATING, stated.terminating.unwrap_or(false))
                    .with(Conditions::LOCAL, local)
                    .with(Conditions::ELSEWHERE, !local && !node.is_empty())
                    .with(Conditions::NODE_HINTED, node_hinted)
                    .with(Conditions::HINTED_HERE, hinted_here),
                site: self.site(hinted_zones.into(), endpoint),
            });
        }
        endpoints.into()
    }

    /// Returns where an endpoint is, shared with others that are there, too.
    fn site(
        &mut self,
        hinted_zones: Box<[Arc<str>]>,
        endpoint: &discovery::Endpoint,
    ) -> Option<Arc<Site>> {
        let mut site = Site {
            hinted_zones,
            ..Site::default()
        };
        if self.gateways || self.keeps_nodes {
            site.node = endpoint.node_name.as_deref().map(|node| self.text(node));
        }
        if self.gateways {
            site.zone = endpoint.zone.as_deref().map(|zone| self.text(zone));
        }
        let shared = |site: &Site| Arc::new(site.clone());
        (site != Site::default()).then(|| self.sites.intern(&site, shared))
    }
}

/// Returns the weight that the slice's annotation says; the default without a valid one.
fn weight(metadata: &ObjectMeta, complaints: &mut Complaints) -> u16 {
    let Some(given) = annotation(metadata, ANNOTATION_WEIGHT) else {
        return DEFAULT_WEIGHT;
    };
    let known = given.parse().ok().filter(|weight| *weight <= MAX_WEIGHT);
    if known.is_none() {
        complaints.add(format!(
            "annotation {ANNOTATION_WEIGHT} {given:?} is not a whole number between 0 and {MAX_WEIGHT}; the endpoints have weight {DEFAULT_WEIGHT}, as without it, correct the number",
        ));
    }
    known.unwrap_or(DEFAULT_WEIGHT)
}
