// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decides which service owns which frontend. Several services may claim one address, port and
//! protocol: one of them owns it, and the next gets it when the owner is removed. `syncer` keeps
//! the claims, and the planner reads them.

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    mem,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use proxy_common::{Addr, FrontendKind, Port, Protocol, V4, V6};

use crate::{gateway::names, model::Service, object::ObjectName};

/// Something that only one service can own: a frontend, the guard for the other ports of a cluster
/// IP, the frontend for echo requests to another address, or a health check node port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClaimKey {
    address: IpAddr,
    port: Port,
    protocol: Protocol,
}

impl ClaimKey {
    pub(super) fn new(address: impl Into<IpAddr>, port: Port, protocol: Protocol) -> Self {
        Self {
            address: address.into(),
            port,
            protocol,
        }
    }
    pub(super) fn guard(address: impl Into<IpAddr>) -> Self {
        Self::new(address, Port::ANY, Protocol::ANY)
    }
    pub(super) fn echo(address: impl Into<IpAddr>) -> Self {
        Self::new(address, Port::ANY, Protocol::ICMP)
    }
    /// Returns the key of a health check node port, which is no frontend. The services that claim
    /// it are planned again when a service claims or gives up the TCP node port of that number.
    pub(super) fn health(port: Port) -> Self {
        Self::new(V4::UNSPECIFIED, port, Protocol::ANY)
    }
    /// Returns the keys of the TCP node ports with this number, one for each family.
    fn node_ports(port: Port) -> [Self; 2] {
        [
            Self::new(V4::UNSPECIFIED, port, Protocol::TCP),
            Self::new(V6::UNSPECIFIED, port, Protocol::TCP),
        ]
    }
}

/// Orders the services that claim one key: first those whose cluster IP it is, then the older
/// first, Services before Gateways, then by name. The first one owns the key.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Rank {
    is_elsewhere: bool,
    created: i64,
    is_gateway: bool,
    service: ObjectName,
}

/// The ranks of one service: at its cluster IPs, and everywhere else.
#[derive(Clone, Debug)]
struct Ranks {
    own: Arc<Rank>,
    elsewhere: Arc<Rank>,
    cluster_ips: Box<[IpAddr]>,
}

impl Ranks {
    fn new(name: &ObjectName, created: i64, service: Option<&Service>) -> Self {
        let rank = |is_elsewhere| {
            Arc::new(Rank {
                is_elsewhere,
                created,
                is_gateway: names::is_plan(name),
                service: name.clone(),
            })
        };
        Self {
            own: rank(false),
            elsewhere: rank(true),
            cluster_ips: service.into_iter().flat_map(Service::cluster_ips).collect(),
        }
    }
    fn at(&self, key: &ClaimKey) -> &Arc<Rank> {
        if self.cluster_ips.contains(&key.address) {
            &self.own
        } else {
            &self.elsewhere
        }
    }
}

/// Why a service port does not get a frontend: another port has it, of the service `holder`.
pub(super) struct Refusal {
    pub(super) holder: ObjectName,
    pub(super) reason: String,
}

/// The claims of one service.
#[derive(Debug)]
pub(crate) struct Claim {
    ranks: Ranks,
    /// What the service claims, sorted; each key with the index of the service port that claims it.
    keys: Box<[(ClaimKey, u32)]>,
}

/// The claims of all services. The cost of every operation depends on the claims of one service,
/// not of all services.
#[derive(Debug, Default)]
pub struct Claims {
    /// Who owns each key.
    owners: HashMap<ClaimKey, Arc<Rank>>,
    /// The other services that claim a key, for the few keys that several claim. If there is none,
    /// every service owns all its claims.
    waiting: HashMap<ClaimKey, BTreeSet<Arc<Rank>>>,
    pub(crate) by_service: HashMap<ObjectName, Claim>,
}

impl Claims {
    /// Replaces the claims of a service, and returns the other services whose plans this changes. A
    /// service that is gone or not served has no claims.
    pub fn update(&mut self, name: &ObjectName, service: Option<&Service>) -> Vec<ObjectName> {
        let keys = service.map(super::claims_of).unwrap_or_default();
        let created = service.map_or(i64::MAX, |service| service.created);
        let mut affected = Vec::new();
        let known = self.by_service.get(name);
        match known {
            Some(known) if known.ranks.own.created == created && *known.keys == *keys => {
                return affected;
            }
            None if keys.is_empty() => return affected,
            _ => {}
        }
        let ranks = Ranks::new(name, created, service);
        let previous = if keys.is_empty() {
            self.by_service.remove(name)
        } else {
            let claim = Claim {
                ranks: ranks.clone(),
                keys: keys.clone().into(),
            };
            self.by_service.insert(name.clone(), claim)
        };
        if let Some(previous) = &previous {
            let kept = |key: &ClaimKey| {
                previous.ranks.at(key) == ranks.at(key)
                    && keys.binary_search_by_key(key, |(key, _)| *key).is_ok()
            };
            for (key, _) in previous.keys.iter().filter(|(key, _)| !kept(key)) {
                self.release(key, previous.ranks.at(key), &mut affected);
            }
        }
        for (key, _) in &keys {
            self.claim(*key, ranks.at(key), &mut affected);
        }
        let before = previous.iter().flat_map(|claim| &claim.keys);
        for (key, _) in before.chain(&keys) {
            if ClaimKey::node_ports(key.port).contains(key) {
                let health = ClaimKey::health(key.port);
                affected.extend(self.holder(&health).cloned());
                affected.extend(self.names_of_waiting(&health));
            }
        }
        affected.sort_unstable();
        affected.dedup();
        affected.retain(|affected| affected != name);
        affected
    }

    fn claim(&mut self, key: ClaimKey, rank: &Arc<Rank>, affected: &mut Vec<ObjectName>) {
        let owner = match self.owners.entry(key) {
            Entry::Occupied(owner) => owner.into_mut(),
            Entry::Vacant(free) => free.insert(Arc::clone(rank)),
        };
        if *owner == *rank {
            return;
        }
        let waiting = self.waiting.entry(key).or_default();
        if *rank < *owner {
            waiting.insert(mem::replace(owner, Arc::clone(rank)));
            affected.extend(self.names_of_waiting(&key));
        } else {
            waiting.insert(Arc::clone(rank));
        }
    }

    fn release(&mut self, key: &ClaimKey, rank: &Arc<Rank>, affected: &mut Vec<ObjectName>) {
        let was_owner = self.owners.get(key) == Some(rank);
        if was_owner {
            affected.extend(self.names_of_waiting(key));
            self.owners.remove(key);
        }
        let Some(waiting) = self.waiting.get_mut(key) else {
            return;
        };
        if was_owner {
            let next = waiting.pop_first();
            self.owners.extend(next.map(|next| (*key, next)));
        } else {
            waiting.remove(rank);
        }
        if waiting.is_empty() {
            self.waiting.remove(key);
        }
    }

    fn names_of_waiting(&self, key: &ClaimKey) -> impl Iterator<Item = ObjectName> {
        let waiting = self.waiting.get(key).into_iter().flatten();
        waiting.map(|rank| rank.service.clone())
    }

    fn holder(&self, key: &ClaimKey) -> Option<&ObjectName> {
        Some(&self.owners.get(key)?.service)
    }

    /// Returns the service that owns the TCP node port of this number; None if no service does.
    pub(super) fn node_port_holder(&self, port: Port) -> Option<&ObjectName> {
        let mut keys = ClaimKey::node_ports(port).into_iter();
        keys.find_map(|key| self.holder(&key))
    }

    /// True if the service owns the key.
    pub(super) fn holds(&self, key: &ClaimKey, service: &Service) -> bool {
        self.waiting.is_empty() || self.holder(key) == Some(&service.name)
    }

    /// Returns who owns the key in place of the service port with this index, and the reason; None
    /// if that port does.
    pub(super) fn refusal(
        &self,
        key: &ClaimKey,
        service: &Service,
        index: usize,
        kind: FrontendKind,
    ) -> Option<Refusal> {
        if !self.waiting.is_empty()
            && let Some(first) = self.owners.get(key)
            && first.service != service.name
        {
            let why = if first.is_elsewhere {
                "which is older (or comes first by name)"
            } else {
                "whose cluster IP it is"
            };
            let reason = format!(
                "{} already belongs to {}, {why}. This one does not get it: remove it from one of the two",
                name_frontend(key, kind),
                names::described(&first.service)
            );
            let holder = first.service.clone();
            return Some(Refusal { holder, reason });
        }
        if service.ports.len() < 2 {
            return None;
        }
        let claim = self.by_service.get(&service.name)?;
        let at = claim.keys.binary_search_by_key(key, |(key, _)| *key).ok()?;
        let owner = claim.keys.get(at)?.1 as usize;
        (owner != index).then(|| Refusal {
            holder: service.name.clone(),
            reason: format!(
                "{} is used by both spec.ports[{owner}] and spec.ports[{index}]; only the first is served, give each its own number",
                name_frontend(key, kind),
            ),
        })
    }
}

/// Returns a frontend's name for warnings, such as `node port 30080/TCP`.
fn name_frontend(key: &ClaimKey, kind: FrontendKind) -> String {
    let (port, protocol) = (key.port.host(), key.protocol.name());
    if kind == FrontendKind::NodePort {
        return format!("node port {port}/{protocol}");
    }
    let kind = match kind {
        FrontendKind::ExternalIp => "external IP",
        FrontendKind::LoadBalancer => "load balancer IP",
        _ => "cluster IP",
    };
    let address = SocketAddr::new(key.address, port);
    format!("{kind} {address}/{protocol}")
}
