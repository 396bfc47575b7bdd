// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nodes as the agent needs them, and the conversion from `v1.Node`.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use ipnet::IpNet;
use k8s_openapi::api::core::v1 as core;

use super::{Complaints, Converted, Converter, Kind, label, parse};
use crate::object::{ObjectName, Warning};

const LABEL_ZONE: &str = "topology.kubernetes.io/zone";
/// KUBE: set by the cluster autoscaler on a node that it is about to delete.
const TAINT_TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// A node of the cluster, as the agent needs it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// The namespace is empty, because nodes have none.
    pub name: ObjectName,
    pub resource_version: Box<str>,
    pub zone: Option<Arc<str>>,
    /// The node's address of each family: its first InternalIP, else its first ExternalIP. KUBE:
    /// `GetNodeHostIPs`.
    pub internal_v4: Option<Ipv4Addr>,
    pub internal_v6: Option<Ipv6Addr>,
    /// The address ranges of this node's pods. KUBE: `spec.podCIDRs`.
    pub pod_ranges: Box<[IpNet]>,
    /// Whether load balancers may still send to this node: false if it is about to be deleted.
    pub eligible: bool,
}

impl Converter {
    /// Converts a node; fails only if it has no name.
    pub fn node(&mut self, object: &core::Node) -> Result<Converted<Node>, Warning> {
        let name = self.object_name(Kind::Node, &object.metadata)?;
        let mut complaints = Complaints::about(Kind::Node, &name);
        let metadata = &object.metadata;
        let zone = label(metadata, LABEL_ZONE);
        let taints = object.spec.iter().flat_map(|s| s.taints.iter().flatten());
        let mut node = Node {
            name,
            resource_version: metadata.resource_version.as_deref().unwrap_or("").into(),
            zone: zone.filter(|z| !z.is_empty()).map(|zone| self.text(zone)),
            internal_v4: None,
            internal_v6: None,
            pod_ranges: pod_ranges(object, &mut complaints),
            eligible: metadata.deletion_timestamp.is_none()
                && !taints.into_iter().any(|t| t.key == TAINT_TO_BE_DELETED),
        };
        let addresses = ["InternalIP", "ExternalIP"].into_iter().flat_map(|kind| {
            let status = object.status.iter();
            let all = status.flat_map(|status| status.addresses.iter().flatten());
            all.filter(move |address| address.type_ == kind)
        });
        for address in addresses {
            let kind = &address.type_;
            let parsed = parse::address(&address.address);
            // KUBE: the kubelet refuses the same kinds of address.
            if let Some((ip, flaw)) = parsed.and_then(|ip| Some((ip, parse::flaw(ip)?))) {
                complaints.add(format!(
                    "status.addresses: {kind} {ip} is {flaw} and is ignored; give the node an address that other hosts reach",
                ));
                continue;
            }
            match parsed {
                Some(IpAddr::V4(v4)) => _ = node.internal_v4.get_or_insert(v4),
                Some(IpAddr::V6(v6)) => _ = node.internal_v6.get_or_insert(v6),
                None => complaints.add(format!(
                    "status.addresses: {kind} {:?} is not an IP address and is ignored; correct the address",
                    address.address,
                )),
            }
        }
        Ok((node, complaints.into_warnings()))
    }
}

fn pod_ranges(object: &core::Node, complaints: &mut Complaints) -> Box<[IpNet]> {
    let spec = object.spec.as_ref();
    let many = spec
        .and_then(|spec| spec.pod_cidrs.as_deref())
        .unwrap_or_default();
    let one = spec.and_then(|spec| spec.pod_cidr.as_ref());
    let texts = many.iter().chain(one.filter(|_| many.is_empty()));
    parse::ranges("spec.podCIDRs", texts, parse::IGNORED, complaints)
}
