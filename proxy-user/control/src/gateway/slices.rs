// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The EndpointSlices of a Service that is made for a Gateway: with them load balancers know where
//! traffic can go. portolan itself serves the Gateway by the slices of its routes' backends. Pure
//! functions.

use std::{cmp::Reverse, collections::BTreeMap, net::IpAddr, sync::Arc};

use serde_json::{Value, json};

use super::{
    build::Served,
    made::{owners, port_name},
};
use crate::{
    model::{
        Conditions, EndpointSlice, Endpoints, Gateway, Site, endpoint::LABEL_SERVICE,
        gateway::LABEL_GATEWAY,
    },
    object::ObjectName,
};

/// KUBE: the label that says who writes a slice, and our value of it.
const LABEL_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGED_BY: &str = "portolan.dev";
/// KUBE: the most endpoints of a slice.
const MAX: usize = 1000;

/// The endpoints of one listener with one address family and port number.
#[derive(Debug)]
pub(super) struct Slice<'a> {
    port_name: String,
    protocol: &'static str,
    /// In host byte order.
    target: u16,
    is_v4: bool,
    endpoints: Vec<Member<'a>>,
}

/// One endpoint, as every node sees it.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Member<'a> {
    address: IpAddr,
    is_ready: Reverse<bool>,
    is_serving: Reverse<bool>,
    is_terminating: bool,
    node: Option<&'a str>,
    zone: Option<&'a str>,
}

impl<'a> Member<'a> {
    fn of((address, conditions, site): (IpAddr, Conditions, Option<&'a Site>)) -> Self {
        Self {
            address,
            is_ready: Reverse(conditions.has(Conditions::READY)),
            is_serving: Reverse(conditions.has(Conditions::SERVING)),
            is_terminating: conditions.has(Conditions::TERMINATING),
            node: site.and_then(|site| site.node.as_deref()),
            zone: site.and_then(|site| site.zone.as_deref()),
        }
    }

    fn object(&self) -> Value {
        let mut object = json!({
            "addresses": [self.address],
            "conditions": {
                "ready": self.is_ready.0,
                "serving": self.is_serving.0,
                "terminating": self.is_terminating,
            },
        });
        if let Some(node) = self.node {
            object["nodeName"] = json!(node);
        }
        if let Some(zone) = self.zone {
            object["zone"] = json!(zone);
        }
        object
    }
}

/// Returns the slices that a Service made for a Gateway is to have, by their names. `slices` has
/// those of the routes' backends.
pub(super) fn wanted<'a>(
    service: &ObjectName,
    served: &Served,
    slices: impl Fn(&ObjectName) -> &'a [Arc<EndpointSlice>],
) -> BTreeMap<String, Slice<'a>> {
    let mut all: BTreeMap<String, Slice<'a>> = BTreeMap::new();
    for (port, backends) in served.service.ports.iter().zip(&served.ports) {
        let shares = backends.shares.iter().filter(|share| share.weight > 0);
        let sources = shares.flat_map(|share| {
            let slices = slices(&share.service).iter();
            slices.map(|slice| (slice, &share.port_name))
        });
        for (source, named) in sources.filter(|(source, _)| source.weight > 0) {
            let is_v4 = matches!(source.endpoints, Endpoints::V4(_));
            let family = if is_v4 { "v4" } else { "v6" };
            let targets = source
                .ports
                .iter()
                .filter(|target| target.protocol == port.protocol && target.name == *named);
            for target in targets.map(|target| target.port.host()) {
                let port_name = port_name(port);
                let name = format!("{}-{port_name}-{family}-{target}", service.name);
                let slice = all.entry(name).or_insert_with(|| Slice {
                    port_name,
                    protocol: port.protocol.name(),
                    target,
                    is_v4,
                    endpoints: Vec::new(),
                });
                let members = source.endpoints.all().map(Member::of);
                slice.endpoints.extend(members);
            }
        }
    }
    all.retain(|_, slice| !slice.endpoints.is_empty());
    for Slice { endpoints, .. } in all.values_mut() {
        // Each once. Those that are ready come first: of too many they are kept.
        endpoints.sort_unstable();
        endpoints.dedup_by_key(|member| member.address);
        endpoints.sort_by_key(|member| member.is_ready);
        endpoints.truncate(MAX);
    }
    all
}

impl Slice<'_> {
    /// Returns the EndpointSlice with this name.
    pub(super) fn object(
        &self,
        name: &ObjectName,
        service: &ObjectName,
        gateway: &Gateway,
    ) -> Value {
        let mut object = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": &*name.name,
                "namespace": &*name.namespace,
                "ownerReferences": owners(gateway),
            },
            "addressType": if self.is_v4 { "IPv4" } else { "IPv6" },
            "ports": [{"name": self.port_name, "protocol": self.protocol, "port": self.target}],
            "endpoints": self.endpoints.iter().map(Member::object).collect::<Vec<_>>(),
        });
        let labels = &mut object["metadata"]["labels"];
        labels[LABEL_SERVICE] = json!(&*service.name);
        labels[LABEL_GATEWAY] = json!(&*service.name);
        labels[LABEL_MANAGED_BY] = json!(MANAGED_BY);
        object
    }
}
