// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The services of the soak test, their current endpoints, and the objects for the proxies.
//! `pods` changes the endpoints.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Mutex,
    time::Instant,
};

use clap::ValueEnum;
use lab::{
    load::manifests::{self, Port},
    lock,
};
use serde_json::{Value, json};

use crate::{
    pods,
    world::{NODE, NODE_V6, REMOTE_ENDPOINTS, is_here, remote_pod, server_pod, v6_of},
};

/// The port of every server pod, and the services' port that leads to it.
pub(crate) const PORT: u16 = 8080;
const SERVICE_PORT: u16 = 80;
/// The services' port for a second connection beside the first, as FTP has, and how far its node
/// port is from the first one's.
const SERVICE_DATA_PORT: u16 = 21;
const NEXT_NODE_PORT: u16 = 1_000;

/// One of the services of the soak test.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub(crate) enum Service {
    /// One endpoint.
    One,
    /// Two endpoints, both on the node.
    Two,
    /// Ten endpoints, half of them on other nodes.
    Ten,
    /// 300 endpoints, most of them on other nodes. Clients call it over TCP only.
    Many,
    /// Has the same endpoints as `Two`.
    Shared,
    /// Three endpoints, `sessionAffinity: ClientIP`.
    Sticky,
    /// Two endpoints, which are replaced one by one.
    RollingA,
    /// Like `RollingA`. Its new pods get addresses that endpoints of `RollingA` had before.
    RollingB,
    /// Four endpoints. The pod of one of them goes without a word: see `pods`.
    Leaving,
    /// Two endpoints on the node and five on other nodes, `externalTrafficPolicy: Local`.
    Local,
}

impl Service {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied()
    }

    /// Returns the name, such as `rolling-a`.
    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Returns the last octet of the service's addresses.
    pub(crate) const fn number(self) -> u8 {
        self as u8 + 1
    }
    pub(crate) const fn bit(self) -> u32 {
        1 << self.number()
    }

    fn first_endpoints(self) -> Vec<Endpoint> {
        let here = |numbers: std::ops::Range<u8>| numbers.map(server_pod).map(Endpoint::ready);
        match self {
            Self::One => here(0..1).collect(),
            Self::Two | Self::Shared => here(1..3).collect(),
            Self::Ten => here(3..8).chain(elsewhere(5)).collect(),
            Self::Many => here(0..10).chain(elsewhere(REMOTE_ENDPOINTS)).collect(),
            Self::Sticky => here(5..8).collect(),
            Self::RollingA => here(10..12).collect(),
            Self::RollingB => here(12..14).collect(),
            Self::Leaving => pods::endpoints(),
            Self::Local => here(8..10).chain(elsewhere(5)).collect(),
        }
    }
}

fn elsewhere(count: u16) -> impl Iterator<Item = Endpoint> {
    (0..count).map(remote_pod).map(Endpoint::ready)
}

/// The kind of address by which a client calls a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Frontend {
    ClusterIp,
    NodePort,
    LoadBalancer,
}

/// Returns the load balancer's addresses of a service, of IPv4 and IPv6.
pub(crate) fn load_balancer(service: Service) -> [IpAddr; 2] {
    let number = service.number();
    let v6 = Ipv6Addr::new(0x2001, 0xdb8, 0x64, 0, 0, 0, 0, number.into());
    [Ipv4Addr::new(198, 51, 100, number).into(), v6.into()]
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: Ipv4Addr,
    pub(crate) condition: Condition,
}

/// What an EndpointSlice says about an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Condition {
    Ready,
    /// Gets no new connections.
    NotReady,
    /// Still serves open connections but gets no new ones.
    Terminating,
}

impl Endpoint {
    pub(crate) const fn ready(address: Ipv4Addr) -> Self {
        let condition = Condition::Ready;
        Self { address, condition }
    }
}

/// The current endpoints of all services.
pub(crate) struct Cluster {
    endpoints: Mutex<BTreeMap<Service, Vec<Endpoint>>>,
    /// Since when an address has not been a ready endpoint any more.
    left: Mutex<BTreeMap<(Service, Ipv4Addr), Instant>>,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let all = Service::all().map(|service| (service, service.first_endpoints()));
        Self {
            endpoints: Mutex::new(all.collect()),
            left: Mutex::default(),
        }
    }

    pub(crate) fn endpoints(&self, service: Service) -> Vec<Endpoint> {
        let endpoints = lock(&self.endpoints);
        endpoints.get(&service).cloned().unwrap_or_default()
    }

    pub(crate) fn set(&self, service: Service, endpoints: Vec<Endpoint>) {
        let before = self.ready(service);
        lock(&self.endpoints).insert(service, endpoints);
        let (now, ready) = (Instant::now(), self.ready(service));
        let mut left = lock(&self.left);
        left.retain(|(of, address), _| *of != service || !ready.contains(address));
        let gone = before.into_iter();
        let gone = gone.filter(|address| !ready.contains(address));
        left.extend(gone.map(|address| ((service, address), now)));
    }

    /// Returns since when an address has not been a ready endpoint of the service any more; None if
    /// it is one, or has never been one.
    pub(crate) fn left(&self, service: Service, address: Ipv4Addr) -> Option<Instant> {
        lock(&self.left).get(&(service, address)).copied()
    }

    /// Returns the addresses of the endpoints that get new connections.
    pub(crate) fn ready(&self, service: Service) -> Vec<Ipv4Addr> {
        let endpoints = self.endpoints(service).into_iter();
        let ready = endpoints.filter(|endpoint| endpoint.condition == Condition::Ready);
        ready.map(|endpoint| endpoint.address).collect()
    }

    /// Returns whether an address is an endpoint of the service, ready or not.
    pub(crate) fn serves(&self, service: Service, address: Ipv4Addr) -> bool {
        let endpoints = self.endpoints(service);
        endpoints.iter().any(|endpoint| endpoint.address == address)
    }

    /// Returns the bits of all services that a server pod is an endpoint of.
    pub(crate) fn bits(&self, pod: u8) -> u32 {
        let services = Service::all().filter(|service| self.serves(*service, server_pod(pod)));
        services.fold(0, |bits, service| bits | service.bit())
    }

    /// Returns the EndpointSlices of a service, of IPv4 and IPv6.
    pub(crate) fn slices(&self, service: Service) -> [Value; 2] {
        let mut v6 = self.slice(service, |pod| v6_of(pod).into());
        v6["metadata"]["name"] = format!("{}-v6", service.name()).into();
        v6["addressType"] = "IPv6".into();
        [self.slice(service, IpAddr::V4), v6]
    }

    fn slice(&self, service: Service, address: fn(Ipv4Addr) -> IpAddr) -> Value {
        let endpoints = self.endpoints(service).into_iter().map(|endpoint| {
            let node = ["node-b", "node-a"][usize::from(is_here(endpoint.address))];
            let condition = endpoint.condition;
            let mut object = manifests::endpoint(address(endpoint.address), node);
            object["conditions"] = json!({
                "ready": condition == Condition::Ready,
                "serving": condition != Condition::NotReady,
                "terminating": condition == Condition::Terminating
            });
            object
        });
        manifests::slice(&service.name(), &ports(service), endpoints)
    }

    /// Returns all objects as manifests. `version` is the resource version of the Node object.
    pub(crate) fn manifests(&self, version: u64) -> String {
        let mut node = manifests::node(NODE, version);
        let internal = |ip: IpAddr| json!({"type": "InternalIP", "address": ip});
        node["status"]["addresses"] = json!([internal(NODE.into()), internal(NODE_V6.into())]);
        manifests::text(&[vec![node], self.objects()].concat())
    }

    /// Returns all services and their EndpointSlices.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let slices = Service::all().flat_map(|service| self.slices(service));
        Service::all().map(service_object).chain(slices).collect()
    }
}

/// Returns the ports of a service.
fn ports(service: Service) -> [Port<'static>; 4] {
    let first = (SERVICE_PORT, node_port(service));
    let data = (SERVICE_DATA_PORT, first.1 + NEXT_NODE_PORT);
    let all = [
        (("tcp", "TCP"), first),
        (("udp", "UDP"), first),
        (("sctp", "SCTP"), first),
        (("data", "TCP"), data),
    ];
    all.map(|(names, (port, node_port))| Port::new(names, [port, PORT], Some(node_port)))
}

fn node_port(service: Service) -> u16 {
    30_000 + u16::from(service.number())
}

/// Returns the Service object of a service, with its load balancer's address.
fn service_object(service: Service) -> Value {
    let affinity = match service {
        Service::Sticky => "ClientIP",
        _ => "None",
    };
    let mut spec = json!({
        "type": "LoadBalancer", "sessionAffinity": affinity,
        "clusterIP": cluster_ips(service)[0], "clusterIPs": cluster_ips(service),
        "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack"
    });
    if service == Service::Local {
        spec["externalTrafficPolicy"] = "Local".into();
    }
    let mut object = manifests::service(&service.name(), &ports(service), spec);
    object["status"] = status(service);
    object
}

/// Returns the status of a Service, with its load balancer's addresses.
pub(crate) fn status(service: Service) -> Value {
    let ingress = load_balancer(service).map(|ip| json!({"ip": ip}));
    json!({"loadBalancer": {"ingress": ingress}})
}

fn cluster_ips(service: Service) -> [IpAddr; 2] {
    let number = service.number();
    let v6 = Ipv6Addr::new(0xfd00, 0x30, 0, 0, 0, 0, 0, 0x2500 + u16::from(number));
    [Ipv4Addr::new(172, 30, 250, number).into(), v6.into()]
}

/// Returns the address and port that clients of a service call.
pub(crate) fn frontend(service: Service, by: Frontend, is_v6: bool) -> SocketAddr {
    let (addresses, port): ([IpAddr; 2], u16) = match by {
        Frontend::NodePort => ([NODE.into(), NODE_V6.into()], node_port(service)),
        Frontend::ClusterIp => (cluster_ips(service), SERVICE_PORT),
        Frontend::LoadBalancer => (load_balancer(service), SERVICE_PORT),
    };
    (addresses[usize::from(is_v6)], port).into()
}

/// Returns the address and port for a second connection beside one to `to`.
pub(crate) fn data(mut to: SocketAddr, by: Option<Frontend>) -> SocketAddr {
    match by {
        // An endpoint has one port for both.
        None => {}
        Some(Frontend::NodePort) => to.set_port(to.port() + NEXT_NODE_PORT),
        Some(_) => to.set_port(SERVICE_DATA_PORT),
    }
    to
}
