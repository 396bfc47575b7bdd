// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Selects the endpoints of a service port by readiness, node and hints. Called by the planner.
//!
//! KUBE: `CategorizeEndpoints` of kube-proxy 1.36.

use std::{cmp::Reverse, collections::BTreeSet, sync::Arc};

use proxy_common::{Addr, EndpointSet, Port};

use crate::model::{Conditions, Endpoint, Service, ServicePort};

/// A serving endpoint of a service port, before it becomes a backend of the plan.
#[derive(Clone, Debug)]
pub struct Candidate<'a, A> {
    pub address: A,
    pub port: Port,
    pub sets: EndpointSet,
    pub weight: u16,
    conditions: Conditions,
    zones: &'a [Arc<str>],
    node: Option<&'a str>,
}

impl<'a, A: Addr> Candidate<'a, A> {
    pub(super) fn new(endpoint: &'a Endpoint<A>, port: Port, weight: u16) -> Self {
        Self {
            address: endpoint.address,
            port,
            sets: EndpointSet::NONE,
            weight,
            conditions: endpoint.conditions,
            zones: endpoint.hinted_zones(),
            node: endpoint.node(),
        }
    }
    /// Returns the sort key: address, port, conditions, weight, zones. Of several entries for one
    /// address and port, the one to keep comes first: local, then ready, serving, not terminating,
    /// then that of the larger weight.
    pub(super) fn order(&self) -> Order<'a, A> {
        let ranks = [
            self.is_local(),
            self.is_ready(),
            self.conditions.has(Conditions::SERVING),
            !self.conditions.has(Conditions::TERMINATING),
        ];
        let ranks = Reverse((ranks, self.weight));
        (self.address, self.port, ranks, self.zones)
    }
    pub(super) fn is_serving(&self) -> bool {
        self.is_ready() || self.conditions.has(Conditions::SERVING)
    }
    /// True if the endpoint takes new connections because it is ready.
    fn is_wanted(&self) -> bool {
        self.is_ready() && self.weight > 0
    }
    fn is_ready(&self) -> bool {
        self.conditions.has(Conditions::READY)
    }
    fn is_local(&self) -> bool {
        self.conditions.has(Conditions::LOCAL)
    }
    /// True if the endpoint is used only when no endpoint is ready.
    fn is_serving_terminating(&self) -> bool {
        !self.is_ready()
            && self.weight > 0
            && self.conditions.has(Conditions::SERVING)
            && self.conditions.has(Conditions::TERMINATING)
    }
    fn is_hinted_for_zone(&self, zone: Option<&str>) -> bool {
        zone.is_some_and(|zone| self.zones.iter().any(|hinted| **hinted == *zone))
    }
}

/// A candidate's sort key.
type Order<'a, A> = (A, Port, Reverse<([bool; 4], u16)>, &'a [Arc<str>]);

/// Returns the sets that the frontends of a service port use. KUBE: with external policy Local,
/// pods and the node still use the cluster set.
pub(super) fn used_sets(service: &Service, port: &ServicePort) -> EndpointSet {
    let from_outside = port.node_port != Port::ANY
        || !service.load_balancer_ips.is_empty()
        || !service.external_ips.is_empty();
    let mut used = EndpointSet::NONE;
    if !service.internal_local || from_outside {
        used = used.union(EndpointSet::CLUSTER);
    }
    if service.internal_local || (service.external_local && from_outside) {
        used = used.union(EndpointSet::LOCAL);
    }
    used
}

/// Returns how many candidates are ready: on this node, and on others.
pub(super) fn ready<A: Addr>(candidates: &[Candidate<'_, A>]) -> [usize; 2] {
    let ready = || candidates.iter().filter(|one| one.is_wanted());
    let here = ready().filter(|one| one.is_local()).count();
    [here, ready().count() - here]
}

/// Which topology hints narrow the cluster set: none, those for nodes, or those for zones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hinted {
    Not,
    ForNode,
    ForZone,
}

/// Marks each candidate with its sets; returns whether the service port has a usable endpoint
/// anywhere in the cluster.
///
/// The ready endpoints are usable. If no endpoint is ready, terminating endpoints that still serve
/// are usable. This is decided separately for the cluster and the local set. `zone` is the node's
/// zone; no hint matches a node without a zone.
///
/// An endpoint of weight 0 counts as one that is not ready. But it stays in the sets that it would
/// be in, for clients with affinity to it.
pub(super) fn categorize<A: Addr>(
    candidates: &mut [Candidate<'_, A>],
    used: EndpointSet,
    zone: Option<&str>,
) -> bool {
    let sets = [
        (EndpointSet::CLUSTER, hinted(candidates, zone)),
        (EndpointSet::LOCAL, Hinted::Not),
    ];
    for (set, hinted) in sets.into_iter().filter(|(set, _)| used.intersects(*set)) {
        let may_have =
            |candidate: &Candidate<'_, A>| set == EndpointSet::CLUSTER || candidate.is_local();
        let any_wanted = candidates
            .iter()
            .any(|one| may_have(one) && one.is_wanted());
        for candidate in &mut *candidates {
            let usable = if candidate.is_ready() {
                match hinted {
                    Hinted::Not => true,
                    Hinted::ForNode => candidate.conditions.has(Conditions::HINTED_HERE),
                    Hinted::ForZone => candidate.is_hinted_for_zone(zone),
                }
            } else {
                !any_wanted && candidate.is_serving_terminating()
            };
            if usable && may_have(candidate) {
                candidate.sets = candidate.sets.union(set);
            }
        }
    }
    candidates
        .iter()
        .any(|candidate| candidate.is_wanted() || candidate.is_serving_terminating())
}

/// Notes of each candidate that is in a set whether it is on this node, or on one whose agent takes
/// outer headers off.
pub(super) fn locate<A: Addr>(candidates: &mut [Candidate<'_, A>], takers: &BTreeSet<Arc<str>>) {
    let used = candidates.iter_mut();
    for candidate in used.filter(|candidate| candidate.sets != EndpointSet::NONE) {
        let location = match candidate.node {
            _ if candidate.is_local() => EndpointSet::HERE,
            Some(node) if takers.contains(node) => EndpointSet::TAKES_HEADERS,
            _ => EndpointSet::NONE,
        };
        candidate.sets = candidate.sets.union(location);
    }
}

/// Returns how topology hints narrow the cluster set. KUBE: hints count if every ready endpoint has
/// one, and some endpoint is hinted for this node, or else for its zone. The proxy does not read
/// `trafficDistribution`, because the hints follow from it.
fn hinted<A: Addr>(candidates: &[Candidate<'_, A>], zone: Option<&str>) -> Hinted {
    let ready = || candidates.iter().filter(|candidate| candidate.is_wanted());
    let has = |bit| move |candidate: &Candidate<'_, A>| candidate.conditions.has(bit);
    if ready().all(has(Conditions::NODE_HINTED)) && ready().any(has(Conditions::HINTED_HERE)) {
        return Hinted::ForNode;
    }
    let zone_hinted = ready().all(|candidate| !candidate.zones.is_empty());
    if zone_hinted && ready().any(|candidate| candidate.is_hinted_for_zone(zone)) {
        return Hinted::ForZone;
    }
    Hinted::Not
}
