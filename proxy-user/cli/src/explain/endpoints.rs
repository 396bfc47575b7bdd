// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists the endpoints that could answer, and those that cannot and why. Takes the endpoints in the
//! maps and the objects of Kubernetes. Pure.

use std::net::SocketAddr;

use datapath::read::{Explained, ServingEndpoint, Share};
use proxy_common::Counter;
use serde::Serialize;
use source::service::ServiceObjects;

use super::reasons::{Entry, Reason, Wanted, entries};
use crate::backends::percent;

/// An endpoint of the service port, as the report lists it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EndpointRow {
    pub(super) address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pod: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<String>,
    pub(super) can_answer: bool,
    /// The endpoint's share of new connections by this policy; `None` if it cannot answer, or if
    /// all that can have about the same share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) share: Option<Share>,
    /// Why the endpoint cannot answer; empty if it can.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) because: String,
    /// What to do about it; empty if there is nothing to do.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) remedy: String,
}

impl EndpointRow {
    pub(super) fn line(&self) -> String {
        let mut line = self.address.clone();
        if let Some(pod) = &self.pod {
            line += &format!(" (pod {pod})");
        }
        if let Some(share) = self.share {
            line += &format!(", {} of new connections", percent(share));
        }
        if !self.because.is_empty() {
            line += &format!(": {}", self.because);
        }
        line
    }
}

/// What Kubernetes has of the service, and the port that is asked for.
pub(super) type Listed<'a> = Option<(&'a ServiceObjects, Wanted<'a>)>;

/// Returns a row for each endpoint of the service port in the maps, and for each that only
/// Kubernetes lists, of this IP family.
pub(super) fn rows(explained: &Explained, listed: Listed<'_>) -> Vec<EndpointRow> {
    let entries = listed.map_or_else(Vec::new, |(objects, wanted)| entries(objects, wanted));
    let weighted = all_slots_if_weighted(&explained.endpoints);
    let mut rows = Vec::new();
    for endpoint in &explained.endpoints {
        let own = best(&entries, endpoint.address);
        let reason = reason(explained, endpoint, own, listed);
        let mut row = row(endpoint.address.to_string(), own, reason);
        if endpoint.slots > 0 && explained.affinity.is_none() {
            let slots = endpoint.slots;
            row.share = weighted.map(|of| Share { slots, of });
        }
        rows.push(row);
    }
    let Some((objects, wanted)) = listed else {
        return rows;
    };
    for entry in &entries {
        let address = entry.address();
        let is_known = |one: &ServingEndpoint| Some(one.address) == address;
        let is_in_maps = explained.endpoints.iter().any(is_known);
        let reason = match address {
            Some(address) if is_in_maps => {
                if best(&entries, address).is_some_and(|best| std::ptr::eq(best, entry)) {
                    continue;
                }
                let slice = entry.slice_name();
                Reason::new(
                    format!("listed once more, by EndpointSlice {slice}: counts once"),
                    format!("remove it from {slice} if that was not meant"),
                )
            }
            _ => entry.absent(objects, wanted),
        };
        rows.push(row(entry.shown(), Some(entry), Some(reason)));
    }
    rows
}

/// Returns the entry that stands for an address of the maps.
fn best<'a>(entries: &'a [Entry<'a>], address: SocketAddr) -> Option<&'a Entry<'a>> {
    let own = entries.iter().filter(|one| one.address() == Some(address));
    // Of several with one rank the first one.
    own.rev().max_by_key(|entry| entry.rank())
}

fn row(address: String, entry: Option<&Entry<'_>>, reason: Option<Reason>) -> EndpointRow {
    let can_answer = reason.is_none();
    let Reason { because, remedy } = reason.unwrap_or_default();
    EndpointRow {
        address,
        pod: entry.and_then(|entry| entry.endpoint.pod.clone()),
        node: entry.and_then(|entry| entry.endpoint.node.clone()),
        can_answer,
        share: None,
        because,
        remedy,
    }
}

/// Returns why an endpoint of the maps does not answer this client; None if it may.
fn reason(
    explained: &Explained,
    endpoint: &ServingEndpoint,
    entry: Option<&Entry<'_>>,
    listed: Listed<'_>,
) -> Option<Reason> {
    let held = explained.affinity.map(|held| held.endpoint);
    match held {
        Some(held) if held == endpoint.address => None,
        _ if endpoint.slots == 0 => Some(left_out(explained, endpoint, entry, listed)),
        Some(_) => Some(Reason::new(
            "affinity holds the client to another one",
            "wait until its time is over, or end the affinity: `portolan affinity`",
        )),
        None => None,
    }
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
    entry: Option<&Entry<'_>>,
    listed: Listed<'_>,
) -> Reason {
    const OF_OTHER_POLICY: &str = "of the service's other traffic policy";
    let normal = |because: &str| Reason::new(because, "");
    if explained.counter == Counter::DroppedSource {
        return normal("the client is outside the source ranges");
    }
    if explained.local_only && !endpoint.local {
        let node = entry.and_then(|entry| entry.endpoint.node.as_deref());
        let node = node.map_or_else(String::new, |node| format!(" ({node})"));
        return normal(&format!(
            "on another node{node}, and the traffic policy is Local"
        ));
    }
    if explained.local_only || endpoint.cluster {
        return Reason::new(
            "gets no new connections: its EndpointSlice has the annotation service.portolan.dev/weight with 0, or there was no room for it in the map slots",
            "see the slice's annotation, and `portolan warnings`",
        );
    }
    let is_of_other_policy = endpoint.local;
    let Some((entry, (objects, _))) = entry.zip(listed) else {
        return match is_of_other_policy {
            true => normal(OF_OTHER_POLICY),
            false => Reason::new(
                "not in use: it is not ready, terminates while others are ready, or is hinted for another zone or node",
                "--kubeconfig or --manifests asks Kubernetes which it is",
            ),
        };
    };
    let one = &entry.endpoint;
    match one.hints.as_slice() {
        _ if !one.ready && one.terminating => normal("terminating, while others are ready"),
        _ if !one.ready => entry.not_ready(objects),
        _ if is_of_other_policy => normal(OF_OTHER_POLICY),
        [] => Reason::new(
            "ready by Kubernetes, and not in use by the maps: they are older or newer",
            "ask again in a moment",
        ),
        hints => normal(&format!(
            "hinted for {}, not for this node",
            hints.join(", ")
        )),
    }
}

#[cfg(test)]
#[path = "endpoints_tests.rs"]
mod tests;
