// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists the endpoints that could answer, and those that cannot and why, by maps and objects. Pure.

use std::net::SocketAddr;

use datapath::read::{Explained, ServingEndpoint, Share};
use proxy_common::Counter;
use serde::Serialize;

use super::reasons::{Entry, Reason, Wanted};
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
    /// Its share of new connections; `None` if all that can answer have about the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) share: Option<Share>,
    /// What became of the packet that was followed to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) followed: Option<String>,
    /// Why the endpoint cannot answer; empty if it can.
    #[serde(flatten)]
    pub(super) reason: Reason,
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
        if let Some(followed) = &self.followed {
            line += &format!(": {followed}");
        }
        if !self.can_answer {
            line += &format!(": {}", self.reason.because);
        }
        line
    }
}

/// Returns a row for each endpoint in the maps, and for each that only Kubernetes lists.
pub(super) fn rows(explained: &Explained, listed: Option<Wanted<'_>>) -> Vec<EndpointRow> {
    let entries = listed.map_or_else(Vec::new, Wanted::entries);
    let weighted = all_slots_if_weighted(&explained.endpoints);
    let mut rows = Vec::new();
    for endpoint in &explained.endpoints {
        let own = best(&entries, endpoint.address);
        let reason = reason(explained, endpoint, own);
        let mut row = row(endpoint.address.to_string(), own, reason);
        if endpoint.slots > 0 && explained.affinity.is_none() {
            let slots = endpoint.slots;
            row.share = weighted.map(|of| Share { slots, of });
        }
        rows.push(row);
    }
    for entry in &entries {
        let address = entry.address();
        let is_known = |one: &ServingEndpoint| Some(one.address) == address;
        let is_in_maps = explained.endpoints.iter().any(is_known);
        let reason = match address {
            Some(address) if is_in_maps => {
                if best(&entries, address).is_some_and(|best| std::ptr::eq(best, entry)) {
                    continue;
                }
                Reason::of("listed-twice", &[&entry.slice_name()])
            }
            _ => entry.absent(),
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
    EndpointRow {
        address,
        pod: entry.and_then(|entry| entry.endpoint.pod.clone()),
        node: entry.and_then(|entry| entry.endpoint.node.clone()),
        can_answer: reason.is_none(),
        share: None,
        followed: None,
        reason: reason.unwrap_or_default(),
    }
}

/// Returns why an endpoint of the maps does not answer this client; None if it may.
fn reason(
    explained: &Explained,
    endpoint: &ServingEndpoint,
    entry: Option<&Entry<'_>>,
) -> Option<Reason> {
    let held = explained.affinity.map(|held| held.endpoint);
    match held {
        Some(held) if held == endpoint.address => None,
        _ if endpoint.slots == 0 => Some(left_out(explained, endpoint, entry)),
        Some(_) => Some(Reason::of("held-elsewhere", &[])),
        None => None,
    }
}

/// Returns the number of all slots if shares differ by more than a Maglev table's rounding.
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
) -> Reason {
    if explained.counter == Counter::DroppedSource {
        return Reason::of("outside-ranges", &[]);
    }
    if explained.local_only && !endpoint.local {
        let node = entry.and_then(|entry| entry.endpoint.node.as_deref());
        let node = node.map_or_else(String::new, |node| format!(" ({node})"));
        return Reason::of("on-another-node", &[&node]);
    }
    if explained.local_only || endpoint.cluster {
        return Reason::of("weight-0", &[]);
    }
    let is_of_other_policy = endpoint.local;
    let Some(entry) = entry else {
        let code = match is_of_other_policy {
            true => "other-policy",
            false => "not-in-use",
        };
        return Reason::of(code, &[]);
    };
    let one = &entry.endpoint;
    match one.hints.as_slice() {
        _ if !one.ready && one.terminating => Reason::of("terminating", &[]),
        _ if !one.ready => entry.not_ready(),
        _ if is_of_other_policy => Reason::of("other-policy", &[]),
        [] => Reason::of("maps-differ", &[]),
        hints => Reason::of("hinted", &[&hints.join(", ")]),
    }
}

#[cfg(test)]
#[path = "endpoints_tests.rs"]
mod tests;
