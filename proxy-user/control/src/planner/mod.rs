// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Computes the plan of one service from the cluster's objects, as a pure function. `syncer` calls
//! it for each changed service.

pub mod claims;
pub mod frontends;
pub mod gateway;
pub mod topology;

#[cfg(test)]
pub(crate) mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use proxy_common::{Addr, FrontendKind, Port, Protocol, ServiceFlags, V4, V6};

use crate::{
    gateway::names,
    model::{
        ClientAddress, Conditions, EndpointSlice, Selection, Service, ServicePort, family::Family,
    },
    object::Warning,
    plan::{BackendPlan, FamilyPlan, FrontendPlan, HealthCheckPlan, PortPlan, ServicePlan},
};
use claims::{ClaimKey, Claims, Refusal};
use topology::Candidate;

/// How many frontends that one other service has in place of this one are warnings each.
const NAMED: usize = 3;

/// The facts about the node that planning needs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeView {
    pub zone: Option<Arc<str>>,
    /// The node's InternalIPs.
    pub internal_ips: Vec<IpAddr>,
    /// Whether echo requests (pings) to external and load balancer IPs are answered, by frontends
    /// of their own.
    pub answer_ping: bool,
    /// How a new flow gets its backend, for services whose annotation does not say it.
    pub selection: Selection,
    /// What endpoints see of clients that are masqueraded, for services whose annotation does not
    /// say it; None if this node puts no outer headers on.
    pub client_address: Option<ClientAddress>,
    /// The nodes whose agents take outer headers off.
    pub takers: BTreeSet<Arc<str>>,
    /// Addresses at which processes of this node answer. A cluster IP among them is not served
    /// here.
    pub own_addresses: BTreeSet<IpAddr>,
    /// The broadcast addresses of this node's subnets. No frontend is served at them: the kernel
    /// forwards no packet to them.
    pub broadcasts: BTreeSet<IpAddr>,
}

impl NodeView {
    /// True if a frontend at this address is not served on this node.
    fn leaves<A: Family>(&self, address: A, kind: FrontendKind) -> bool {
        let address = address.into();
        self.broadcasts.contains(&address)
            || kind == FrontendKind::ClusterIp && self.own_addresses.contains(&address)
    }

    /// Whether clients of a service keep their addresses where it is possible.
    pub fn keeps_clients(&self, service: &Service) -> bool {
        let of_service = |of_node| service.client_address.unwrap_or(of_node);
        self.client_address.map(of_service) == Some(ClientAddress::Keep)
    }

    /// Returns a warning about each address of a service that is the broadcast address of a subnet.
    fn broadcasts_of(&self, service: &Service) -> impl Iterator<Item = Warning> {
        let all: BTreeSet<_> = service.addresses().collect();
        let named = all.into_iter().filter(|ip| self.broadcasts.contains(ip));
        named.map(|ip| Warning {
            object: names::described(&service.name),
            reason: format!(
                "{ip} is the broadcast address of a subnet of this node and is not served here; give the service another address"
            ),
        })
    }
}

/// Returns the plan of `service`, and warnings about the parts that cannot be served.
///
/// `slices` are all slices of the service. `claims` has the claims of every service, including this
/// one. KUBE: kube-proxy 1.36 serves the same parts of an object.
pub fn plan_service(
    service: &Service,
    slices: &[Arc<EndpointSlice>],
    node: &NodeView,
    claims: &Claims,
) -> (ServicePlan, Vec<Warning>) {
    let mut warnings = Vec::new();
    let about = |reason| Warning {
        object: format!("Service {}", service.name),
        reason,
    };
    // Both families may warn about the same node port.
    let mut said = HashSet::new();
    let mut refused = BTreeMap::new();
    let mut refuse = |_, Refusal { holder, reason }| {
        if said.insert(reason.clone()) {
            let count = refused.entry(holder).or_insert(0);
            *count += 1;
            if *count <= NAMED {
                warnings.push(about(reason));
            }
        }
    };
    let ports = slice_ports(slices);
    let mut plan = plan_ports(
        service,
        node,
        claims,
        |_, port| backends(service, port, &ports, node),
        |_, port| backends(service, port, &ports, node),
        &mut refuse,
    );
    for (holder, count) in refused.into_iter().filter(|(_, count)| *count > NAMED) {
        warnings.push(about(format!(
            "{} more of its frontends already belong to ports of {}; remove them from one of the two",
            count - NAMED,
            names::described(&holder)
        )));
    }
    if plan.ports.is_empty() {
        return (plan, warnings);
    }
    plan.health_check = service.health_check_node_port.map(|port| HealthCheckPlan {
        port,
        local_endpoints: local_endpoints(service, slices.iter()),
    });
    warnings.extend(unreached_health_check(service, claims));
    warnings.extend(node.broadcasts_of(service));
    (plan, warnings)
}

/// The backends of a service port in one family.
struct Backends<A: Addr> {
    /// Whether any of them may be used, in the whole cluster.
    has_endpoints: bool,
    /// How many are ready: on this node, and on others.
    ready: [usize; 2],
    plans: Vec<BackendPlan<A>>,
}

/// Returns the plan of a service but for its health check node port. `v4` and `v6` give the
/// backends of a port by its index; `refuse` takes why a port's frontend is not served.
fn plan_ports(
    service: &Service,
    node: &NodeView,
    claims: &Claims,
    v4: impl Fn(usize, &ServicePort) -> Backends<V4>,
    v6: impl Fn(usize, &ServicePort) -> Backends<V6>,
    mut refuse: impl FnMut(usize, Refusal),
) -> ServicePlan {
    let mut plan = ServicePlan::default();
    if !service.is_served() || service.ports.is_empty() {
        return plan;
    }
    let source_ranges = frontends::source_ranges(service, node);
    for (index, port) in service.ports.iter().enumerate() {
        let (plan_v4, ready_v4) = plan_family(service, index, port, node, claims, &v4, &mut refuse);
        let (plan_v6, ready_v6) = plan_family(service, index, port, node, claims, &v6, &mut refuse);
        let counts = [plan.ready, ready_v4, ready_v6].into_iter();
        let most = counts.max_by_key(|[here, elsewhere]| here + elsewhere);
        plan.ready = most.unwrap_or_default();
        plan.ports.push(PortPlan {
            name: Arc::clone(&port.name),
            protocol: port.protocol,
            port: port.port,
            affinity_timeout: service.affinity_timeout,
            source_ranges: source_ranges.clone(),
            v4: plan_v4,
            v6: plan_v6,
        });
    }
    plan.guarded_v4 = guarded(service, node, claims);
    plan.guarded_v6 = guarded(service, node, claims);
    plan
}

/// Returns a warning if the health check node port is also a TCP node port: then the node port gets
/// the packets of the health checks.
fn unreached_health_check(service: &Service, claims: &Claims) -> Option<Warning> {
    let port = service.health_check_node_port?;
    let holder = claims.node_port_holder(Port::from_host(port))?;
    let whose = if *holder == service.name {
        "its own".to_owned()
    } else {
        format!("{}'s", names::described(holder))
    };
    Some(Warning {
        object: names::described(&service.name),
        reason: format!(
            "healthCheckNodePort {port} is {whose} node port, too, and that gets the packets: load balancers are answered by its endpoints; give one of the two another number",
        ),
    })
}

/// Returns the plan of a service port in one family, and how many of its endpoints are ready: on
/// this node, and on others.
fn plan_family<A: Family>(
    service: &Service,
    index: usize,
    port: &ServicePort,
    node: &NodeView,
    claims: &Claims,
    backends: &impl Fn(usize, &ServicePort) -> Backends<A>,
    refuse: &mut impl FnMut(usize, Refusal),
) -> (FamilyPlan<A>, [usize; 2]) {
    if !A::is_served(service) {
        return Default::default();
    }
    let backends = backends(index, port);
    let mut wanted = Vec::new();
    frontends::of_port::<A>(service, port, &mut wanted);
    let mut planned = Vec::with_capacity(wanted.len());
    let keeps_clients = node.keeps_clients(service);
    let is_maglev = service.selection.unwrap_or(node.selection) == Selection::Maglev;
    for (address, number, flags) in wanted {
        if node.leaves(address, flags.kind()) {
            continue;
        }
        let key = ClaimKey::new(address, number, port.protocol);
        if let Some(refusal) = claims.refusal(&key, service, index, flags.kind()) {
            refuse(index, refusal);
            continue;
        }
        planned.push(FrontendPlan {
            address,
            port: number,
            flags: flags
                .with(ServiceFlags::HAS_ENDPOINTS, backends.has_endpoints)
                .with(ServiceFlags::MAGLEV, is_maglev)
                .with(ServiceFlags::KEEP_CLIENT, keeps_clients),
        });
    }
    if node.answer_ping && index == 0 {
        frontends::of_echo(service, claims, &mut planned);
        planned.retain(|plan| !node.leaves(plan.address, plan.flags.kind()));
    }
    let plan = FamilyPlan {
        frontends: planned,
        backends: backends.plans,
    };
    (plan, backends.ready)
}

/// The ports of a service's slices, each with its slice, by name and protocol.
type SlicePorts<'a> = HashMap<(&'a str, Protocol), Vec<(&'a EndpointSlice, Port)>>;

fn slice_ports(slices: &[Arc<EndpointSlice>]) -> SlicePorts<'_> {
    let mut ports = SlicePorts::new();
    for slice in slices {
        for port in &slice.ports {
            let same = ports.entry((&*port.name, port.protocol)).or_default();
            same.push((slice, port.port));
        }
    }
    ports
}

/// Returns the backends of a service port from the service's own slices.
fn backends<A: Family>(
    service: &Service,
    port: &ServicePort,
    slice_ports: &SlicePorts<'_>,
    node: &NodeView,
) -> Backends<A> {
    let same = slice_ports.get(&(&*port.name, port.protocol));
    let mut candidates = candidates::<A>(same.into_iter().flatten().copied());
    let used = topology::used_sets(service, port);
    let has_endpoints = topology::categorize(&mut candidates, used, node.zone.as_deref());
    if node.keeps_clients(service) {
        topology::locate(&mut candidates, &node.takers);
    }
    Backends {
        has_endpoints,
        ready: topology::ready(&candidates),
        plans: candidates.iter().map(Candidate::plan).collect(),
    }
}

/// Returns the serving endpoints of a service port, sorted and without duplicates. `ports`: the
/// ports of slices that have its name and protocol.
///
/// KUBE: if several slices list an endpoint, the entry on this node is kept, else a ready one. So
/// the order of slices does not matter. Of entries that are alike, the larger weight counts.
fn candidates<'a, A: Family>(
    ports: impl Iterator<Item = (&'a EndpointSlice, Port)>,
) -> Vec<Candidate<'a, A>> {
    let mut candidates = Vec::new();
    for (slice, port) in ports {
        let endpoints = A::endpoints(&slice.endpoints).unwrap_or_default();
        let new = |endpoint| Candidate::new(endpoint, port, slice.weight);
        candidates.extend(endpoints.iter().map(new));
    }
    candidates.sort_unstable_by_key(Candidate::order);
    candidates.dedup_by_key(|candidate| (candidate.address, candidate.port));
    candidates.retain(Candidate::is_serving);
    candidates
}

impl<A: Addr> Candidate<'_, A> {
    fn plan(&self) -> BackendPlan<A> {
        BackendPlan {
            address: self.address,
            port: self.port,
            sets: self.sets,
            weight: self.weight.into(),
            local_weight: None,
        }
    }
}

fn guarded<A: Family>(service: &Service, node: &NodeView, claims: &Claims) -> Vec<A> {
    A::cluster_ip(service)
        .into_iter()
        .filter(|address| !node.leaves(*address, FrontendKind::ClusterIp))
        .filter(|address| claims.holds(&ClaimKey::guard(*address), service))
        .collect()
}

/// Counts the ready endpoints on this node. KUBE: each address counts once, whether it is
/// terminating or not. kube-proxy counts per family and answers on addresses of that family; here
/// the larger count is the answer for both families. Endpoints of weight 0 do not count.
fn local_endpoints<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a Arc<EndpointSlice>>,
) -> usize {
    let wanted = Conditions::default()
        .with(Conditions::READY, true)
        .with(Conditions::LOCAL, true);
    let slices = slices.filter(|slice| !slice.ports.is_empty() && slice.weight > 0);
    let all = slices.flat_map(|slice| slice.endpoints.all());
    let ready = all.filter(|(_, conditions, _)| conditions.has(wanted));
    let addresses: BTreeSet<_> = ready.map(|(address, ..)| address).collect();
    let counts = service.cluster_ips().map(|own| {
        let of_family = addresses.iter().filter(|ip| ip.is_ipv4() == own.is_ipv4());
        of_family.count()
    });
    counts.max().unwrap_or_default()
}

/// Returns all that `service` claims: every frontend, guarded cluster IP, echo address and its
/// health check node port. Each key comes with the index of the service port that claims it.
pub fn claims_of(service: &Service) -> Vec<(ClaimKey, u32)> {
    let mut keys = Vec::new();
    family_claims::<V4>(service, &mut keys);
    family_claims::<V6>(service, &mut keys);
    let health_check = service.health_check_node_port.map(Port::from_host);
    // The Service that was made for a Gateway is served as a part of the Gateway.
    let health_check = health_check.filter(|_| service.is_served());
    keys.extend(health_check.map(|port| (ClaimKey::health(port), 0)));
    keys.sort_unstable();
    // If several ports of the service claim a key, the first one owns it.
    keys.dedup_by_key(|(key, _)| *key);
    keys
}

fn family_claims<A: Family>(service: &Service, keys: &mut Vec<(ClaimKey, u32)>) {
    if !A::is_served(service) || service.ports.is_empty() || !service.is_served() {
        return;
    }
    keys.extend(A::cluster_ip(service).map(|ip| (ClaimKey::guard(ip), 0)));
    keys.extend(
        frontends::echo_addresses::<A>(service).map(|address| (ClaimKey::echo(address), 0)),
    );
    let mut wanted: Vec<(A, Port, ServiceFlags)> = Vec::new();
    for (index, port) in (0..).zip(&service.ports) {
        wanted.clear();
        frontends::of_port(service, port, &mut wanted);
        keys.extend(
            wanted.iter().map(|(address, number, _)| {
                (ClaimKey::new(*address, *number, port.protocol), index)
            }),
        );
    }
}
