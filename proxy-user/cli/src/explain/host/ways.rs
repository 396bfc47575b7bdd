// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Findings about the route to one endpoint: its next hop, its MTU, and whether the endpoint
//! answered a probe. Pure.

use linux::Routed;

use super::{Endpoint, Host, Pointed, links, of_route};
use crate::check::finding::Finding;

/// Returns findings about the route to one endpoint. Their level is only `Differs` if other
/// endpoints can be reached.
pub(super) fn findings(host: &Host, endpoint: &Endpoint) -> Vec<Pointed> {
    let is_bad = |one: &Endpoint| {
        let has_way = matches!(one.routed, Routed::Leaves { .. } | Routed::Here);
        !has_way || one.deaf.is_some() || one.silent.is_some() || down(one).is_some()
    };
    let all_bad = host.endpoints.iter().all(is_bad);
    // Foreign rules may give the packet another destination before the kernel looks up its route.
    let may_be_translated =
        endpoint.asked_for && !(host.tracked.is_empty() && host.kube_proxy.is_empty());
    let finding = |found: String, remedy: &str| {
        let about = name_of(endpoint);
        if all_bad && !may_be_translated {
            Finding::in_the_way(about, found, remedy)
        } else {
            Finding::differs(about, found, remedy)
        }
    };
    let mut found = Vec::new();
    match &endpoint.routed {
        Routed::Leaves { .. } | Routed::Here => {}
        // The function `forwarding` in mod.rs reports the cause.
        Routed::Refused if host.not_forwarding.is_some() => {}
        Routed::Refused => {
            let reason = "there is a route, and the kernel refuses to forward from this client and interface: its source is not believed \
                          there";
            let remedy =
                "see rp_filter and the routes: `ip route get ENDPOINT from CLIENT iif INTERFACE`";
            found.push(Pointed::new(
                finding(reason.into(), remedy),
                "docs/explain.md#rp-filter",
            ));
        }
        other => {
            let remedy =
                "correct the route, or see why the CNI has not set it: `ip route get ENDPOINT`";
            found.push(Pointed::new(
                finding(of_route(other), remedy),
                "docs/explain.md#no-route",
            ));
        }
    }
    // A link that is down is why nobody answers, and why no connection is made.
    let unreachable = match (down(endpoint), &endpoint.silent) {
        (Some(fault), _) => Some(fault),
        (None, Some(silence)) => Some((
            silence.describe(),
            "see whether the pod, or the next node, is there and has this address: `ip neighbour`, and `ip address` in the pod's network \
             namespace"
                .to_owned(),
        )),
        (None, None) => None,
    };
    if let Some((reason, remedy)) = unreachable {
        found.push(Pointed::new(
            finding(reason, &remedy),
            "docs/explain.md#nobody-answers",
        ));
    } else if let Some(reason) = &endpoint.deaf {
        let remedy = match endpoint.routed {
            Routed::Here => "see the log of the node's process that should listen at this port",
            _ => "see the pod's log and its containerPort; a network policy may drop it, too",
        };
        found.push(Pointed::new(
            finding(reason.clone(), remedy),
            "docs/explain.md#deaf-endpoint",
        ));
    }
    let client_mtu = host.incoming.as_ref().map(|place| place.link.mtu);
    if let (Some(client), Some(way)) = (client_mtu, endpoint.mtu)
        && way < client
    {
        let finding = Finding::differs(
            name_of(endpoint),
            format!(
                "the way has an MTU of {way}, the client's interface one of {client}: larger packets need the ICMP error that says so"
            ),
            "give pods the smallest MTU on the way, and let ICMP pass",
        );
        found.push(Pointed::new(finding, "docs/explain.md#mtu"));
    }
    found
}

/// Returns why the interface to an endpoint carries no packet; None if it carries packets.
fn down(endpoint: &Endpoint) -> Option<(String, String)> {
    links::fault(&endpoint.outgoing.as_ref()?.link)
}

fn name_of(endpoint: &Endpoint) -> String {
    let word = if endpoint.asked_for {
        "destination"
    } else {
        "endpoint"
    };
    format!("{word} {}", endpoint.address)
}
