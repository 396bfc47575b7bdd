// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hosts of the storm: a node with two client pods, four pods that answer and a client outside,
//! all of both families. Also the services, as objects of an API server.

use std::net::{IpAddr, SocketAddr};

use lab::node::{api_server::Record, cgroup::Cgroup, netns::NetNs, pod::plug};
use serde_json::{Value, json};

use super::kinds::{ClientKind, Kind, Service};
use crate::{connection::answer_as, world::World};

/// The number of pods that answer; each pod sends its own number.
pub(crate) const BACKENDS: u8 = 4;
/// The backends of the services whose endpoints stay, as bits.
pub(crate) const STEADY: u8 = 0b0111;
const PORT: u16 = 8080;

/// The network namespaces in addition to those of `World`.
pub(crate) struct Topology<'a> {
    world: &'a World,
    /// A pod that no socket hook reaches, and one whose sockets the hooks translate.
    clients: [NetNs; 2],
    outside: NetNs,
    _backends: Vec<NetNs>,
}

impl<'a> Topology<'a> {
    pub(crate) fn build(world: &'a World) -> Self {
        let node = world.node();
        let pod = |last: u8| {
            let pod = NetNs::new("pod").expect("run as root");
            let [v4, v6] = addresses(last).map(|address| address.to_string());
            plug(node, &pod, &[&v4, &v6]).expect("a pod");
            pod
        };
        let backends = (0..BACKENDS).map(|number| {
            let pod = pod(last_of(number));
            answer_as(&pod, number);
            pod
        });
        let backends = backends.collect();
        let outside = NetNs::new("outside").expect("run as root");
        world.ip(&format!(
            "link add uplink type veth peer name eth0 netns {}
address add 192.168.44.2/24 dev uplink
address add fd00:44::2/64 dev uplink nodad
link set uplink up",
            outside.path()
        ));
        let batch = "link set lo up
address add 192.168.44.1/24 dev eth0
address add fd00:44::1/64 dev eth0 nodad
link set eth0 up
";
        outside.ip(batch).expect("a client outside");
        Self {
            world,
            clients: [pod(60), pod(61)],
            outside,
            _backends: backends,
        }
    }

    /// The place where a client of this kind runs.
    pub(crate) fn home(&self, way: ClientKind) -> Home<'_> {
        let cgroup = way.is_at_sockets().then(|| self.world.cgroup());
        let namespace = match way {
            ClientKind::Node4 => self.world.node(),
            ClientKind::Outside4 | ClientKind::Outside6 => &self.outside,
            _ => &self.clients[usize::from(way.is_at_sockets())],
        };
        Home { cgroup, namespace }
    }
}

/// The place where a client's sockets are made.
pub(crate) struct Home<'a> {
    cgroup: Option<&'a Cgroup>,
    namespace: &'a NetNs,
}

impl Home<'_> {
    pub(crate) fn run(&self, work: impl FnOnce()) {
        let enter = || self.namespace.enter(work).expect("enter the namespace");
        match self.cgroup {
            Some(cgroup) => cgroup.inside(enter).expect("enter the cgroup"),
            None => enter(),
        }
    }
}

/// The addresses of a pod that end in this number.
fn addresses(last: u8) -> [IpAddr; 2] {
    let v6 = [0xfd00, 0x40, 0, 1, 0, 0, 0, u16::from(last)];
    [IpAddr::from([10, 40, 1, last]), IpAddr::from(v6)]
}

/// The last number of a backend's addresses, different from those of `load::objects`.
const fn last_of(backend: u8) -> u8 {
    120 + backend
}

const fn number(service: Service) -> u16 {
    match service {
        Service::Steady => 1,
        Service::Sticky => 2,
        Service::Moving => 3,
    }
}

fn cluster_ips(service: Service) -> [IpAddr; 2] {
    let number = number(service);
    let v6 = [0xfd00, 0x30, 0, 0, 0, 0, 0, 0x200 + number];
    [IpAddr::from([172, 30, 240, number as u8]), IpAddr::from(v6)]
}

/// The frontend that a client of this kind asks.
pub(crate) fn target(kind: Kind, way: ClientKind) -> SocketAddr {
    let family = usize::from(way.is_v6());
    let node_port = 30_000 + number(kind.service());
    match way {
        ClientKind::Outside4 => (IpAddr::from([192, 168, 44, 2]), node_port).into(),
        ClientKind::Outside6 => (IpAddr::from([0xfd00, 0x44, 0, 0, 0, 0, 0, 2]), node_port).into(),
        _ => (cluster_ips(kind.service())[family], 80).into(),
    }
}

/// The manifests of the services.
pub(crate) fn services() -> String {
    let port = |service: Service, name: &str| {
        let node_port = 30_000 + number(service);
        json!({"name": name.to_lowercase(), "protocol": name, "port": 80, "targetPort": PORT, "nodePort": node_port})
    };
    let object = |service: Service| {
        let affinity = match service {
            Service::Sticky => "ClientIP",
            _ => "None",
        };
        let ips = cluster_ips(service);
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": service.name(), "namespace": "shop"},
            "spec": {
                "type": "NodePort", "ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"],
                "clusterIP": ips[0], "clusterIPs": ips, "sessionAffinity": affinity,
                "ports": [port(service, "TCP"), port(service, "UDP")]
            }
        })
    };
    let all = Service::ALL.map(|service| object(service).to_string());
    all.join("\n---\n")
}

/// The EndpointSlices of a service with these backends, as the server stores them.
pub(crate) fn slices(service: Service, backends: u8) -> [Record; 2] {
    ["IPv4", "IPv6"].map(|family| {
        let at = usize::from(family == "IPv6");
        let name = format!("{}-{}", service.name(), family.to_lowercase());
        let chosen = (0..BACKENDS).filter(|number| backends >> number & 1 == 1);
        let endpoints = chosen.map(|number| {
            let address = addresses(last_of(number))[at];
            json!({"addresses": [address], "nodeName": "node-a", "conditions": {"ready": true}})
        });
        let ports = ["TCP", "UDP"].map(
            |protocol| json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": PORT}),
        );
        let number = u64::from(number(service)) * 2 + at as u64;
        let slice = json!({
            "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
            "metadata": {
                "name": name, "namespace": "shop", "uid": format!("00000009-0000-4000-8000-{number:012}"),
                "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"kubernetes.io/service-name": service.name()}
            },
            "addressType": family, "ports": ports, "endpoints": endpoints.collect::<Vec<Value>>()
        });
        Record {
            key: format!("/registry/endpointslices/shop/{name}"),
            value: Some(slice),
        }
    })
}

/// The addresses of these backends.
pub(crate) fn endpoints(backends: u8) -> impl Iterator<Item = IpAddr> {
    let chosen = (0..BACKENDS).filter(move |number| backends >> number & 1 == 1);
    chosen.flat_map(|number| addresses(last_of(number)))
}
