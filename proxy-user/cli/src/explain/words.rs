// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Describes the programs' decision in Kubernetes' terms. Takes the decision that `datapath::read`
//! has made from the maps, and returns sentences. Pure.

use std::net::SocketAddr;

use datapath::read::{AffineEndpoint, Asked, By, Explained, MatchedFrontend, kind_name};
use proxy_common::{Counter, FrontendKind, Origin, ServiceFlags, Settings};
use serde::Serialize;

use crate::services::host_port;

/// The frontend that the packet's destination matches, with its service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ServiceRow {
    /// The service's namespace and name.
    pub(super) service: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) port_name: String,
    pub(super) kind: &'static str,
    /// The frontend's address and port; the address is `*` for a node port, the port is `*` for the
    /// ports that a cluster IP does not serve.
    pub(super) frontend: String,
    pub(super) policies: Vec<String>,
    pub(super) service_id: u32,
}

impl ServiceRow {
    pub(super) fn new(frontend: &MatchedFrontend) -> Self {
        // The frontend for a cluster IP's other ports has the name of one of the Service's ports.
        let port_name = match frontend.port {
            0 => String::new(),
            _ => frontend.port_name.clone(),
        };
        Self {
            service: frontend.service.clone(),
            port_name,
            kind: kind_name(frontend.kind),
            frontend: host_port(frontend.address, "*", frontend.port),
            policies: policies(frontend),
            service_id: frontend.service_id,
        }
    }
}

/// Returns where the programs see the packet first, which comes in by the interface of this name.
pub(super) fn hook(asked: &Asked, interface: Option<&str>) -> String {
    match (asked.by, interface) {
        (By::NodeSocket, _) => "at the socket of a process of this node".into(),
        (By::PodSocket, _) => "at the socket of a pod's process".into(),
        (_, Some(name)) => format!("a packet that comes in by {name}"),
        (_, None) => "a packet that comes in by an unknown interface".into(),
    }
}

/// Returns where the client comes from (pod, node, outside), and how that is known.
pub(super) fn origin(explained: &Explained, asked: &Asked) -> Option<String> {
    let by_interface = explained.settings.has(Settings::PODS_BY_INTERFACE);
    let text = match (explained.origin?, asked.by) {
        (_, By::NodeSocket) => "a process of this node",
        (Origin::Pod, By::PodSocket) => "a pod's process",
        (_, By::PodSocket) => "a process of a pod, and pods are not detected (detectLocalMode)",
        (Origin::Pod, _) if by_interface => "a pod, by the interface that it comes in by",
        (Origin::Pod, _) => "a pod, by its address",
        (Origin::Host, _) => "this node, by its address",
        (Origin::External, _) => "outside the cluster",
    };
    Some(text.to_owned())
}

fn policies(frontend: &MatchedFrontend) -> Vec<String> {
    let mut words = Vec::new();
    if frontend.flags.has(ServiceFlags::INTERNAL_BLOCK_LOCAL) {
        words.push("internalTrafficPolicy Local".to_owned());
    }
    if frontend.flags.has(ServiceFlags::EXTERNAL_LOCAL) {
        words.push("externalTrafficPolicy Local".to_owned());
    }
    if frontend.flags.has(ServiceFlags::SOURCE_RANGES) {
        let ranges = frontend.source_ranges.iter().map(ToString::to_string);
        let ranges = match ranges.collect::<Vec<_>>().join(", ") {
            none if none.is_empty() => "without a readable range: no client is let in".to_owned(),
            ranges => ranges,
        };
        words.push(format!("loadBalancerSourceRanges {ranges}"));
    }
    if frontend.flags.has(ServiceFlags::AFFINITY) {
        let timeout = frontend.affinity_timeout;
        words.push(format!("sessionAffinity ClientIP, {timeout} s"));
    }
    words
}

/// Returns whether and why the client's source address is replaced in a translated packet.
pub(super) fn source(explained: &Explained, asked: &Asked) -> Option<String> {
    if explained.to.is_empty() {
        return None;
    }
    if !matches!(asked.by, By::Interface(_)) {
        let own =
            "the process's own, as the route to the endpoint gives it; nothing is masqueraded";
        return Some(own.into());
    }
    let word = match explained.masquerades {
        true => "masqueraded",
        false => "kept",
    };
    if explained.flow.is_some() {
        return Some(format!("{word}, as the connection began"));
    }
    let why = reason(explained, explained.frontend.as_ref()?);
    let keeps = |to: &&SocketAddr| explained.keeps.contains(to);
    let kept = match explained.to.iter().filter(keeps).count() {
        0 => String::new(),
        all if all == explained.to.len() => {
            return Some("kept: clientAddress is keep, and the endpoints' nodes take part".into());
        }
        some => format!(
            "; kept towards {some} of {} endpoints (clientAddress: keep)",
            explained.to.len()
        ),
    };
    let to_itself = explained.to.iter().any(|to| to.ip() == asked.client);
    let hairpin = match (explained.masquerades, to_itself, explained.to.len()) {
        (false, true, 1) => return Some("masqueraded: the client reaches itself (hairpin)".into()),
        (false, true, _) => "; masqueraded where the client reaches itself (hairpin)",
        _ => "",
    };
    let mark = match explained.masquerades && explained.settings.has(Settings::MARK_ONLY) {
        true => "; only marked, for the node's own rules (masquerade: mark)",
        false => "",
    };
    Some(format!("{word}: {why}{hairpin}{mark}{kept}"))
}

/// Returns why the source address is masqueraded or kept, by the rules of `proxy_common::decide`.
fn reason(explained: &Explained, frontend: &MatchedFrontend) -> &'static str {
    let is_pod = explained.origin == Some(Origin::Pod);
    let has = |flag| explained.settings.has(flag);
    match frontend.kind {
        FrontendKind::ClusterIp if has(Settings::MASQUERADE_ALL) => "masqueradeAll is set",
        FrontendKind::ClusterIp if explained.masquerades => {
            "no pod asks, and the answer must come back through this node"
        }
        FrontendKind::ClusterIp if is_pod => "a pod asks a cluster IP",
        FrontendKind::ClusterIp => {
            "pods are not detected (detectLocalMode), so no client of a cluster IP is masqueraded"
        }
        _ if !frontend.flags.has(ServiceFlags::EXTERNAL_LOCAL) => {
            "with externalTrafficPolicy Cluster the answer must come back through this node"
        }
        _ if explained.masquerades => "the node's own source may be the balancer's address",
        _ => "externalTrafficPolicy Local keeps the client's address",
    }
}

/// Returns the endpoint that session affinity binds the client to, or how long it will bind.
pub(super) fn affinity(explained: &Explained, asked: &Asked) -> Option<String> {
    let frontend = explained.frontend.as_ref()?;
    if explained.to.is_empty() || frontend.affinity_timeout == 0 {
        return None;
    }
    if let Some(AffineEndpoint {
        endpoint,
        seconds_left,
    }) = explained.affinity
    {
        return Some(format!(
            "held to {endpoint}, for {seconds_left} s more; each connection begins the time anew"
        ));
    }
    let timeout = frontend.affinity_timeout;
    Some(match asked.by {
        By::PodSocket => format!(
            "a pod is held by its network namespace, which is not asked here (`portolan affinity` has it), for {timeout} s"
        ),
        _ => format!("not held yet; its first connection will hold it for {timeout} s"),
    })
}

/// Describes the path that the answer takes; None if there is no answer. `masquerade`: the source
/// address that the endpoint sees, if masqueraded.
pub(super) fn way_back(
    explained: &Explained,
    asked: &Asked,
    masquerade: Option<std::net::IpAddr>,
) -> Option<String> {
    let refusals = [Counter::RejectedNoEndpoint, Counter::RejectedUnserved];
    if refusals.contains(&explained.counter) {
        return Some("the refusal is made here and sent back at once".into());
    }
    if explained.to.is_empty() {
        return None;
    }
    let (client, to) = (asked.client, asked.to);
    Some(match (asked.by, masquerade) {
        (By::NodeSocket | By::PodSocket, _) => {
            "straight from the endpoint to the socket; getpeername and datagrams show the service's address".to_owned()
        }
        (By::Interface(_), Some(own)) => format!(
            "the endpoint answers to {own}; ingress there puts {client} back, and egress to the client {to}"
        ),
        (By::Interface(_), None) => format!(
            "the endpoint answers to {client}, by this node; egress to the client puts {to} back"
        ),
    })
}

#[cfg(test)]
#[path = "words_tests.rs"]
pub(super) mod tests;
