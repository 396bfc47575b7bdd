// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plans a Gateway: its listeners are the ports, and the endpoints of its routes' Services the
//! backends. Called by `syncer` for the plans of Gateways.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use proxy_common::{Addr, EndpointSet, Port};

use super::{
    Backends, NodeView, SlicePorts, candidates,
    claims::{Claims, Refusal},
    local_endpoints, plan_ports, slice_ports, topology, unreached_health_check,
};
use crate::{
    gateway::{PortBackends, Served, names, weights::factors},
    model::{EndpointSlice, ServicePort, family::Family},
    object::{ObjectName, Warning},
    plan::{BackendPlan, HealthCheckPlan, ServicePlan},
};

/// The port of the node's own address to which connections to missing backends go, to be refused:
/// no process listens there (IANA: TCP Port Service Multiplexer).
const REFUSING: u16 = 1;

/// The plan of a Gateway.
#[derive(Debug, Default)]
pub struct GatewayPlan {
    pub plan: ServicePlan,
    pub warnings: Vec<Warning>,
    /// Frontends that belong to others: the name of the port, and the reason.
    pub refusals: Vec<(Arc<str>, String)>,
}

/// Returns the plan of a Gateway. `slices` has those of each Service.
pub fn plan_gateway<'a>(
    served: &Served,
    slices: impl Fn(&ObjectName) -> &'a [Arc<EndpointSlice>],
    node: &NodeView,
    claims: &Claims,
) -> GatewayPlan {
    let service = &served.service;
    let mut warnings = Vec::new();
    let mut refusals = Vec::new();
    let mut said = HashSet::new();
    let shares = || served.ports.iter().flat_map(|port| &port.shares);
    let named: HashSet<_> = shares().map(|share| &share.service).collect();
    let ports = named
        .into_iter()
        .map(|name| (name, slice_ports(slices(name))));
    let ports: PortsOf<'_> = ports.collect();
    let mut plan = plan_ports(
        service,
        node,
        claims,
        |index, port| backends(served, index, port, &ports, node),
        |index, port| backends(served, index, port, &ports, node),
        |index, Refusal { reason, .. }| {
            let listener = service.ports.get(index).map(|port| &port.name);
            let refusal = (listener.cloned().unwrap_or_default(), reason.clone());
            if said.insert(refusal.clone()) {
                let object = names::described(&service.name);
                warnings.push(Warning { object, reason });
                refusals.push(refusal);
            }
        },
    );
    if !plan.ports.is_empty() {
        let shares = shares().filter(|share| share.weight > 0);
        let of_backends = shares.flat_map(|share| slices(&share.service));
        plan.health_check = service.health_check_node_port.map(|port| HealthCheckPlan {
            port,
            local_endpoints: local_endpoints(service, of_backends),
        });
        warnings.extend(unreached_health_check(service, claims));
        warnings.extend(node.broadcasts_of(service));
    }
    GatewayPlan {
        plan,
        warnings,
        refusals,
    }
}

/// The ports of the slices of each Service.
type PortsOf<'a> = HashMap<&'a ObjectName, SlicePorts<'a>>;

fn backends<A: Family>(
    served: &Served,
    index: usize,
    port: &ServicePort,
    ports: &PortsOf<'_>,
    node: &NodeView,
) -> Backends<A> {
    let none = PortBackends::default();
    let of_port = served.ports.get(index).unwrap_or(&none);
    let used = topology::used_sets(&served.service, port);
    // Of each backend its weight, and its endpoints as they would be in a service of their own.
    let mut groups = Vec::with_capacity(of_port.shares.len());
    let mut has_endpoints = false;
    let mut ready = [0; 2];
    for share in &of_port.shares {
        let of_service = ports.get(&share.service);
        let same = of_service.and_then(|all| all.get(&(&*share.port_name, port.protocol)));
        let mut found = candidates::<A>(same.into_iter().flatten().copied());
        let is_useful = topology::categorize(&mut found, used, node.zone.as_deref());
        if node.keeps_clients(&served.service) {
            topology::locate(&mut found, &node.takers);
        }
        has_endpoints |= is_useful && share.weight > 0;
        if share.weight > 0 {
            let [here, elsewhere] = topology::ready(&found);
            ready = [ready[0] + here, ready[1] + elsewhere];
        }
        let plans: Vec<_> = found.iter().map(topology::Candidate::plan).collect();
        groups.push((share.weight, plans));
    }
    let mut own = node.internal_ips.iter().copied().filter_map(A::of);
    let own = own.next();
    let mut all = Vec::new();
    for set in [EndpointSet::CLUSTER, EndpointSet::LOCAL] {
        if used.intersects(set) {
            all.extend(of_set(&groups, of_port.refused, set, own));
        }
    }
    let unused = groups.into_iter().flat_map(|(_, plans)| plans);
    let unused = unused.filter(|plan| plan.sets == EndpointSet::NONE);
    all.extend(unused.map(|plan| BackendPlan { weight: 0, ..plan }));
    Backends {
        has_endpoints,
        ready,
        plans: merged(all),
    }
}

/// Returns the backends of one endpoint set, each in that set alone. `groups` has the weight and
/// the endpoints of each backend of the route, `refused` the weight of those that do not exist.
///
/// KUBE: the share of a Service without endpoints is refused, at the address `own` of this node.
fn of_set<A: Addr>(
    groups: &[(u32, Vec<BackendPlan<A>>)],
    mut refused: u32,
    set: EndpointSet,
    own: Option<A>,
) -> Vec<BackendPlan<A>> {
    let members = |plans: &[BackendPlan<A>]| -> Vec<BackendPlan<A>> {
        let members = plans.iter().filter(|plan| plan.sets.intersects(set));
        members
            .map(|plan| BackendPlan {
                sets: set.union(plan.sets.location()),
                ..*plan
            })
            .collect()
    };
    let sum = |plans: &[BackendPlan<A>]| plans.iter().map(|plan| u64::from(plan.weight)).sum();
    let mut shares: Vec<(u32, u64, Vec<_>)> = Vec::with_capacity(groups.len() + 1);
    for (weight, plans) in groups {
        let members = members(plans);
        let sum = sum(&members);
        if sum == 0 {
            refused = refused.saturating_add(*weight);
        }
        shares.push((*weight, sum, members));
    }
    if refused > 0
        && let Some(address) = own
        && shares
            .iter()
            .any(|(weight, sum, _)| *weight > 0 && *sum > 0)
    {
        let refusing = BackendPlan {
            address,
            port: Port::from_host(REFUSING),
            sets: set,
            weight: 1,
            local_weight: None,
        };
        shares.push((refused, 1, vec![refusing]));
    }
    let sums: Vec<_> = shares
        .iter()
        .map(|(weight, sum, _)| (*weight, *sum))
        .collect();
    let shares = factors(&sums).into_iter().zip(shares);
    let members = shares.flat_map(|(factor, (_, _, members))| {
        members.into_iter().map(move |plan| BackendPlan {
            weight: plan.weight.saturating_mul(factor),
            ..plan
        })
    });
    members.collect()
}

/// Sorts backends, and makes one of those with the same address and port: one for each endpoint set
/// that it is in, and a route may name a Service twice, or two Services of the same pods.
fn merged<A: Addr>(mut all: Vec<BackendPlan<A>>) -> Vec<BackendPlan<A>> {
    all.sort_unstable_by_key(|plan| (plan.address, plan.port));
    let same = |one: &BackendPlan<A>, other: &BackendPlan<A>| {
        (one.address, one.port) == (other.address, other.port)
    };
    let each = all.chunk_by(same).filter_map(|entries| {
        let first = *entries.first()?;
        let sets = entries
            .iter()
            .fold(EndpointSet::NONE, |all, one| all.union(one.sets));
        let weight_in = |set| {
            let members = entries.iter().filter(|one| one.sets.intersects(set));
            members.fold(0u32, |all, one| all.saturating_add(one.weight))
        };
        let (cluster, local) = (
            weight_in(EndpointSet::CLUSTER),
            weight_in(EndpointSet::LOCAL),
        );
        let has = |set| sets.intersects(set);
        let (weight, local_weight) = match (has(EndpointSet::CLUSTER), has(EndpointSet::LOCAL)) {
            (true, true) => (cluster, (local != cluster).then_some(local)),
            (true, false) => (cluster, None),
            (false, _) => (local, None),
        };
        Some(BackendPlan {
            sets,
            weight,
            local_weight,
            ..first
        })
    });
    each.collect()
}
