// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plans a Gateway: its listeners are the ports, and the endpoints of its routes' Services the
//! backends. Called by `syncer` for the plans of Gateways.

use std::sync::Arc;

use proxy_common::{Addr, EndpointSet, Port};

use super::{Backends, NodeView, candidates, claims::Claims, family::Family, plan_ports, topology};
use crate::{
    gateway::{PortBackends, Served, names, weights::factors},
    model::{EndpointSlice, ServicePort},
    object::{ObjectName, Warning},
    plan::{BackendPlan, ServicePlan},
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
    let plan = plan_ports(
        service,
        node,
        claims,
        |index, port| backends(served, index, port, &slices, node),
        |index, port| backends(served, index, port, &slices, node),
        |index, reason| {
            let listener = service.ports.get(index).map(|port| &port.name);
            let refusal = (listener.cloned().unwrap_or_default(), reason.clone());
            if !refusals.contains(&refusal) {
                let object = names::described(&service.name);
                warnings.push(Warning { object, reason });
                refusals.push(refusal);
            }
        },
    );
    GatewayPlan {
        plan,
        warnings,
        refusals,
    }
}

fn backends<'a, A: Family>(
    served: &Served,
    index: usize,
    port: &ServicePort,
    slices: &impl Fn(&ObjectName) -> &'a [Arc<EndpointSlice>],
    node: &NodeView,
) -> Backends<A> {
    let none = PortBackends::default();
    let of_port = served.ports.get(index).unwrap_or(&none);
    let uses = topology::Uses::of(&served.service, port);
    // For each backend its weight, and its endpoints as they would be in a service of their own.
    let mut refused = of_port.refused;
    let mut groups = Vec::with_capacity(of_port.shares.len() + 1);
    for share in &of_port.shares {
        let as_named = ServicePort {
            name: Arc::clone(&share.port_name),
            ..port.clone()
        };
        let mut found = candidates::<A>(&as_named, slices(&share.service));
        let is_useful = topology::categorize(&mut found, uses, node.zone.as_deref());
        let plans: Vec<_> = found.iter().map(topology::Candidate::plan).collect();
        // KUBE: the share of a Service without endpoints is refused.
        if is_useful {
            groups.push((share.weight, plans));
        } else {
            refused = refused.saturating_add(share.weight);
        }
    }
    let has_endpoints = groups.iter().any(|(weight, _)| *weight > 0);
    let mut own = node.internal_ips.iter().copied().filter_map(A::of);
    let used = [
        (uses.cluster, EndpointSet::CLUSTER),
        (uses.local, EndpointSet::LOCAL),
    ];
    let used = used.iter().filter(|(is_used, _)| *is_used);
    let used = used.fold(EndpointSet::NONE, |all, (_, set)| all.union(*set));
    if refused > 0
        && has_endpoints
        && let Some(address) = own.next()
    {
        let refusing = BackendPlan {
            address,
            port: Port::from_host(REFUSING),
            sets: used,
            weight: 1,
        };
        groups.push((refused, vec![refusing]));
    }
    let sum = |plans: &[BackendPlan<A>]| -> u64 {
        let cluster = plans
            .iter()
            .filter(|plan| plan.sets.intersects(EndpointSet::CLUSTER));
        let sum = cluster.map(|plan| u64::from(plan.weight)).sum();
        // A Local policy alone leaves the cluster set empty.
        if sum == 0 { plans.len() as u64 } else { sum }
    };
    let sums: Vec<_> = groups
        .iter()
        .map(|(weight, plans)| (*weight, sum(plans)))
        .collect();
    let mut all = Vec::new();
    for (factor, (_, plans)) in factors(&sums).into_iter().zip(groups) {
        all.extend(plans.into_iter().map(|plan| BackendPlan {
            weight: plan.weight.saturating_mul(factor),
            ..plan
        }));
    }
    Backends {
        has_endpoints,
        plans: merged(all),
    }
}

/// Sorts backends, and makes one of those with the same address and port: a route may name a
/// Service twice, or two Services of the same pods.
fn merged<A: Addr>(mut all: Vec<BackendPlan<A>>) -> Vec<BackendPlan<A>> {
    all.sort_unstable_by_key(|plan| (plan.address, plan.port));
    let mut merged: Vec<BackendPlan<A>> = Vec::with_capacity(all.len());
    for plan in all {
        match merged.last_mut() {
            Some(last) if (last.address, last.port) == (plan.address, plan.port) => {
                last.sets = last.sets.union(plan.sets);
                last.weight = last.weight.saturating_add(plan.weight);
            }
            _ => merged.push(plan),
        }
    }
    merged
}
