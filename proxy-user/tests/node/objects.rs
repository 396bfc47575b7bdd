// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The objects of the tests: the node, and services with their endpoints.

use std::fmt::{self, Display};

use k8s_openapi::{
    api::{
        core::v1::{
            Node, NodeAddress, NodeStatus, ObjectReference, Service as ServiceObject, ServicePort,
            ServiceSpec,
        },
        discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::Serialize;

/// The range of all cluster IPs.
pub(crate) const SERVICE_CIDR: &str = "{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: kubernetes}, spec: {cidrs: [172.30.0.0/16]}}";

/// The namespace of the services, for an API server.
pub(crate) const NAMESPACE: &str = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}";

/// The port at which endpoints serve.
const TARGET: i32 = 8080;

/// The Node object; a version is given where no server sets one.
pub(crate) fn node_object(version: Option<u64>) -> String {
    node_with(&["10.40.0.1"], version)
}

/// The Node object with these internal addresses.
pub(crate) fn node_with(addresses: &[impl Display], version: Option<u64>) -> String {
    let addresses = addresses.iter().map(|address| NodeAddress {
        type_: "InternalIP".to_owned(),
        address: address.to_string(),
    });
    json(&Node {
        metadata: ObjectMeta {
            name: Some("node-a".to_owned()),
            resource_version: version.map(|version| version.to_string()),
            ..ObjectMeta::default()
        },
        status: Some(NodeStatus {
            addresses: Some(addresses.collect()),
            ..NodeStatus::default()
        }),
        ..Node::default()
    })
}

/// The text of [`Service::new`].
pub(crate) fn service(name: &str, cluster_ip: &str) -> String {
    Service::new(name, cluster_ip).to_string()
}

/// A UDP service of the pod that answers, without a node port.
pub(crate) fn questions() -> Service {
    Service::new("questions", "172.30.1.9").ports(&[("", "UDP", 53, None)])
}

/// A service in the namespace `shop`, and the slices of its endpoints. Its text is the manifest of
/// all of them.
#[derive(Clone)]
pub(crate) struct Service {
    object: ServiceObject,
    slices: Vec<EndpointSlice>,
}

impl Service {
    /// A service of type NodePort at port 80, whose endpoint is the pod that answers. Its node port
    /// is 30000 plus the last number of the cluster IP.
    pub(crate) fn new(name: &str, cluster_ip: &str) -> Self {
        let last = cluster_ip.rsplit(['.', ':']).next();
        let last: u16 = last
            .and_then(|last| last.parse().ok())
            .expect("a cluster IP");
        let [family, server] = match cluster_ip.contains(':') {
            true => ["IPv6", "fd00:40::20"],
            false => ["IPv4", "10.40.1.20"],
        };
        let metadata = |name: String| ObjectMeta {
            name: Some(name),
            namespace: Some("shop".to_owned()),
            ..ObjectMeta::default()
        };
        let slice = EndpointSlice {
            metadata: ObjectMeta {
                labels: Some([("kubernetes.io/service-name".to_owned(), name.to_owned())].into()),
                ..metadata(format!("{name}-1"))
            },
            address_type: family.to_owned(),
            endpoints: vec![endpoint(server)],
            ports: None,
        };
        let service = Self {
            object: ServiceObject {
                metadata: metadata(name.to_owned()),
                ..ServiceObject::default()
            },
            slices: vec![slice],
        };
        let service = service.spec(|spec| {
            spec.type_ = Some("NodePort".to_owned());
            spec.cluster_ip = Some(cluster_ip.to_owned());
            spec.cluster_ips = Some(vec![cluster_ip.to_owned()]);
            spec.ip_families = Some(vec![family.to_owned()]);
        });
        service.ports(&[("", "TCP", 80, Some(30_000 + last))])
    }

    /// The name of a file for its manifest.
    pub(crate) fn file(&self) -> String {
        let name = self.object.metadata.name.as_deref();
        format!("{}.yaml", name.expect("a name"))
    }

    /// Changes any fields of the specification.
    pub(crate) fn spec(mut self, change: impl FnOnce(&mut ServiceSpec)) -> Self {
        change(self.object.spec.get_or_insert_default());
        self
    }

    /// Replaces all ports: name, protocol, port, node port. Without any node port the service is of
    /// type ClusterIP.
    pub(crate) fn ports(mut self, ports: &[(&str, &str, u16, Option<u16>)]) -> Self {
        let of_endpoints = ports.iter().map(|(name, protocol, ..)| EndpointPort {
            name: Some((*name).to_owned()),
            protocol: Some((*protocol).to_owned()),
            port: Some(TARGET),
            ..EndpointPort::default()
        });
        let of_endpoints: Vec<_> = of_endpoints.collect();
        for slice in &mut self.slices {
            slice.ports = Some(of_endpoints.clone());
        }
        let of_service = ports
            .iter()
            .map(|(name, protocol, port, node_port)| ServicePort {
                name: (!name.is_empty()).then(|| (*name).to_owned()),
                protocol: Some((*protocol).to_owned()),
                port: (*port).into(),
                node_port: node_port.map(Into::into),
                ..ServicePort::default()
            });
        let is_internal = ports.iter().all(|(.., node_port)| node_port.is_none());
        self.spec(|spec| {
            spec.ports = Some(of_service.collect());
            if is_internal {
                spec.type_ = None;
            }
        })
    }

    /// Changes the node port of a service with one port.
    pub(crate) fn node_port(self, node_port: u16) -> Self {
        self.ports(&[("", "TCP", 80, Some(node_port))])
    }

    /// Changes the port at which the endpoints serve.
    pub(crate) fn target(mut self, target: u16) -> Self {
        let ports = self.slices.iter_mut().flat_map(|slice| &mut slice.ports);
        for port in ports.flatten() {
            port.port = Some(target.into());
        }
        self
    }

    pub(crate) fn endpoints(mut self, endpoints: Vec<Endpoint>) -> Self {
        self.slices[0].endpoints = endpoints;
        self
    }

    /// Moves all endpoints to this node.
    pub(crate) fn on(mut self, node: &str) -> Self {
        let slices = self.slices.iter_mut();
        for endpoint in slices.flat_map(|slice| &mut slice.endpoints) {
            endpoint.node_name = Some(node.to_owned());
        }
        self
    }

    /// Removes the slices of endpoints.
    pub(crate) fn alone(mut self) -> Self {
        self.slices.clear();
        self
    }

    pub(crate) fn labelled(mut self, key: &str, value: &str) -> Self {
        let labels = self.object.metadata.labels.get_or_insert_default();
        labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Sets `externalTrafficPolicy: Local`.
    pub(crate) fn local(self) -> Self {
        self.spec(|spec| spec.external_traffic_policy = Some("Local".to_owned()))
    }

    /// Sets `sessionAffinity: ClientIP`.
    pub(crate) fn sticky(self) -> Self {
        self.spec(|spec| spec.session_affinity = Some("ClientIP".to_owned()))
    }
}

impl Display for Service {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(to, "{}", json(&self.object))?;
        let mut slices = self.slices.iter();
        slices.try_for_each(|slice| writeln!(to, "---\n{}", json(slice)))
    }
}

/// An endpoint on this node.
pub(crate) fn endpoint(address: &str) -> Endpoint {
    Endpoint {
        addresses: vec![address.to_owned()],
        node_name: Some("node-a".to_owned()),
        ..Endpoint::default()
    }
}

/// An endpoint on this node that is this pod, and whether the pod is ready, serving and
/// terminating.
pub(crate) fn pod_endpoint(
    address: &str,
    pod: &str,
    [ready, serving, terminating]: [bool; 3],
) -> Endpoint {
    Endpoint {
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".to_owned()),
            name: Some(pod.to_owned()),
            ..ObjectReference::default()
        }),
        ..endpoint(address)
    }
}

fn json(object: &impl Serialize) -> String {
    serde_json::to_string(object).expect("an object is JSON")
}
