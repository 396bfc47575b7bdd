// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists the endpoints that could answer, and those that cannot and why. Takes the endpoints in the
//! maps and those that Kubernetes lists. Pure.

use datapath::read::{Explained, ServingEndpoint, Share};
use proxy_common::Counter;
use source::named::ListedEndpoint;

use super::report::EndpointRow;

/// Returns whether the decision depends on the service port's endpoints. It does not for an open
/// connection, nor for a port that is not served.
pub(super) fn are_asked_for(explained: &Explained) -> bool {
    explained.flow.is_none() && explained.counter != Counter::RejectedUnserved
}

/// Returns a row for each endpoint of the service port in the maps, and for each that only
/// Kubernetes lists (`listed`), of this IP family.
pub(super) fn rows(explained: &Explained, listed: &[ListedEndpoint], v6: bool) -> Vec<EndpointRow> {
    let ports: Vec<_> = explained
        .endpoints
        .iter()
        .map(|one| one.address.port())
        .collect();
    let weighted = all_slots_if_weighted(&explained.endpoints);
    let mut rows = Vec::new();
    for endpoint in &explained.endpoints {
        let own = listed
            .iter()
            .find(|one| one.address == Some(endpoint.address.ip()));
        let held = explained.affinity.map(|held| held.endpoint);
        let has_slots = endpoint.slots > 0;
        rows.push(EndpointRow {
            address: endpoint.address.to_string(),
            pod: own.and_then(|own| own.pod.clone()),
            node: own.and_then(|own| own.node.clone()),
            can_answer: held.map_or(has_slots, |held| held == endpoint.address),
            share: weighted
                .filter(|_| has_slots && held.is_none())
                .map(|of| Share {
                    slots: endpoint.slots,
                    of,
                }),
            because: match held {
                Some(held) if held == endpoint.address => String::new(),
                Some(_) if has_slots => "affinity holds the client to another one".to_owned(),
                None if has_slots => String::new(),
                _ => left_out(explained, endpoint, own),
            },
        });
    }
    let is_absent = |one: &&ListedEndpoint| {
        let mut known = explained.endpoints.iter();
        one.address
            .is_some_and(|own| own.is_ipv6() == v6 && !known.any(|known| known.address.ip() == own))
            && (ports.is_empty() || one.ports.iter().any(|port| ports.contains(port)))
    };
    let absent = listed.iter().filter(is_absent);
    rows.extend(absent.filter_map(|one| {
        Some(EndpointRow {
            address: one.address?.to_string(),
            pod: one.pod.clone(),
            node: one.node.clone(),
            can_answer: false,
            share: None,
            because: if one.ready || one.serving {
                "listed by Kubernetes, and not in the maps: the agent has not applied it yet"
            } else if one.terminating {
                "terminating, and no longer serving"
            } else {
                "not ready"
            }
            .to_owned(),
        })
    }));
    rows
}

/// Returns the number of all slots if endpoints differ in their shares by more than the rounding of
/// a Maglev table.
fn all_slots_if_weighted(endpoints: &[ServingEndpoint]) -> Option<u32> {
    let slots = || endpoints.iter().map(|one| one.slots);
    let least = slots().filter(|slots| *slots > 0).min()?;
    let most = slots().max()?;
    (most - least > most / 32).then(|| slots().sum())
}

/// Returns why an endpoint that serves is not chosen for this client.
fn left_out(
    explained: &Explained,
    endpoint: &ServingEndpoint,
    listed: Option<&ListedEndpoint>,
) -> String {
    if explained.counter == Counter::DroppedSource {
        return "the client is outside the source ranges".into();
    }
    if explained.local_only && !endpoint.local {
        return "on another node, and the traffic policy is Local".into();
    }
    match listed {
        Some(one) if !one.ready && one.terminating => "terminating, while others are ready".into(),
        Some(one) if !one.ready => "not ready".into(),
        Some(one) if !one.hints.is_empty() => format!("hinted for {}", one.hints.join(", ")),
        _ if !endpoint.cluster && !endpoint.local => {
            "serves, but is hinted for another zone or node, or terminates while others are ready"
                .into()
        }
        _ if endpoint.cluster && !explained.local_only || endpoint.local && explained.local_only => {
            "gets no new connections: its EndpointSlice has the annotation service.portolan.dev/weight with 0, or there was no room for it in the map slots".into()
        }
        _ => "of the service's other traffic policy".into(),
    }
}

#[cfg(test)]
#[path = "endpoints_tests.rs"]
mod tests;
