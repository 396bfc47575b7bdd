// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the maps with the plan for one address family of a service port. Pure functions. Called
//! by `prepare`.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use control::plan::{BackendPlan, FamilyPlan, FrontendPlan};
use proxy_common::{
    Addr, BackendId, EndpointSet, FrontendKey, FrontendKind, Protocol, RecordId, ServiceFlags,
};

/// A frontend as the maps contain it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CurrentFrontend<A: Addr> {
    pub(super) record: RecordId,
    pub(super) key: FrontendKey<A>,
    pub(super) flags: ServiceFlags,
    pub(super) affinity_timeout: u32,
    /// True if the key leads to this record; false if another service has taken the key over.
    pub(super) reachable: bool,
}

/// What the maps contain for one family of a service port. Backends are sorted by address and port.
/// Their weights are not known: blocks are compared by their slots (`reserve`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Current<A: Addr> {
    pub(super) frontends: Vec<CurrentFrontend<A>>,
    pub(super) backends: Vec<(BackendId, BackendPlan<A>)>,
}

/// The difference between what the maps contain and the plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Delta<A: Addr> {
    /// All backends of the plan, in its order; `None` in place of the id means a new one.
    pub(super) backends: Vec<(Option<BackendId>, BackendPlan<A>)>,
    pub(super) changed_sets: Vec<(BackendId, EndpointSet)>,
    pub(super) gone_backends: Vec<BackendId>,
    /// Frontends that need a new record, each with the record that the new one replaces, if any.
    pub(super) new_frontends: Vec<(FrontendPlan<A>, Option<RecordId>)>,
    pub(super) gone_frontends: Vec<RecordId>,
}

/// Returns a plan's backends sorted by address and port, without duplicates. Copies them only if
/// they are not so already.
pub(super) fn ordered<A: Addr>(backends: &[BackendPlan<A>]) -> Cow<'_, [BackendPlan<A>]> {
    let endpoint = |backend: &BackendPlan<A>| (backend.address, backend.port);
    if backends.is_sorted_by(|a, b| endpoint(a) < endpoint(b)) {
        return Cow::Borrowed(backends);
    }
    let mut backends = backends.to_vec();
    backends.sort_by_key(endpoint);
    backends.dedup_by_key(|backend| endpoint(backend));
    Cow::Owned(backends)
}

pub(super) fn key_of<A: Addr>(frontend: &FrontendPlan<A>, protocol: Protocol) -> FrontendKey<A> {
    if frontend.flags.kind() == FrontendKind::Echo {
        return FrontendKey::echo(frontend.address);
    }
    FrontendKey::new(frontend.address, frontend.port, protocol)
}

pub(super) fn diff<A: Addr>(
    current: &Current<A>,
    wanted: &FamilyPlan<A>,
    protocol: Protocol,
    affinity_timeout: u32,
) -> Delta<A> {
    let mut delta = Delta {
        backends: Vec::with_capacity(wanted.backends.len()),
        changed_sets: Vec::new(),
        gone_backends: Vec::new(),
        new_frontends: Vec::new(),
        gone_frontends: Vec::new(),
    };

    let mut old = current.backends.iter().peekable();
    for backend in ordered(&wanted.backends).iter() {
        let endpoint = (backend.address, backend.port);
        while let Some((id, _)) = old.next_if(|(_, old)| (old.address, old.port) < endpoint) {
            delta.gone_backends.push(*id);
        }
        let kept = old.next_if(|(_, old)| (old.address, old.port) == endpoint);
        if let Some((id, old)) = kept
            && old.sets != backend.sets
        {
            delta.changed_sets.push((*id, backend.sets));
        }
        delta.backends.push((kept.map(|(id, _)| *id), *backend));
    }
    delta.gone_backends.extend(old.map(|(id, _)| *id));

    let frontends = current.frontends.iter();
    let mut unclaimed: HashMap<_, _> = frontends.clone().map(|old| (old.key, old)).collect();
    let mut claimed = HashSet::new();
    for frontend in &wanted.frontends {
        let old = unclaimed.remove(&key_of(frontend, protocol));
        claimed.extend(old.map(|old| old.record));
        match old {
            Some(old)
                if old.reachable
                    && old.flags == frontend.flags
                    && old.affinity_timeout == affinity_timeout => {}
            old => delta
                .new_frontends
                .push((*frontend, old.map(|old| old.record))),
        }
    }
    // If two records have the same key, the key can lead to only one of them; the other record is
    // gone.
    let gone = frontends.map(|old| old.record);
    delta.gone_frontends = gone.filter(|old| !claimed.contains(old)).collect();
    delta
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proxy_common::{Port, V4};

    /// Applies a difference to a model of the maps; `next` is the last id that was handed out.
    fn apply(current: &mut Current<V4>, next: &mut u32, delta: &Delta<V4>, timeout: u32) {
        let mut id = || {
            *next += 1;
            *next
        };
        for (id, sets) in &delta.changed_sets {
            let backend = current.backends.iter_mut().find(|b| b.0 == *id);
            backend.expect("a changed backend exists").1.sets = *sets;
        }
        let mut backends = Vec::new();
        for (kept, plan) in &delta.backends {
            let kept = kept.map(|kept| {
                let found = current.backends.iter().find(|b| b.0 == kept);
                *found.expect("a kept backend exists")
            });
            backends.push(kept.unwrap_or_else(|| (BackendId(id()), *plan)));
        }
        for (id, _) in &current.backends {
            let kept = backends.iter().any(|b| b.0 == *id);
            assert_ne!(kept, delta.gone_backends.contains(id));
        }
        current.backends = backends;
        let frontends = &mut current.frontends;
        for (plan, replaced) in &delta.new_frontends {
            frontends.retain(|f| Some(f.record) != *replaced);
            frontends.push(CurrentFrontend {
                record: RecordId(id()),
                key: key_of(plan, Protocol::TCP),
                flags: plan.flags,
                affinity_timeout: timeout,
                reachable: true,
            });
        }
        frontends.retain(|f| !delta.gone_frontends.contains(&f.record));
    }

    /// Returns the plan that the model has.
    fn plan_of(current: &Current<V4>) -> FamilyPlan<V4> {
        let frontends = current.frontends.iter().map(|f| FrontendPlan {
            address: f.key.address,
            port: f.key.port,
            flags: f.flags,
        });
        let mut frontends: Vec<_> = frontends.collect();
        frontends.sort_by_key(|f| (f.address, f.port));
        FamilyPlan {
            frontends,
            backends: current.backends.iter().map(|b| b.1).collect(),
        }
    }

    fn address(n: u8) -> V4 {
        V4 {
            octets: [10, 0, 0, n],
        }
    }

    fn plans() -> impl Strategy<Value = FamilyPlan<V4>> {
        let backends = prop::collection::btree_map(0..12u8, 0..4u16, 0..10);
        let frontends = prop::collection::btree_map(0..6u8, (0..4u32, any::<bool>()), 0..5);
        let backend = |(n, sets)| BackendPlan {
            address: address(n),
            port: Port::from_host(8080),
            sets: EndpointSet(sets),
            weight: 1,
            local_weight: None,
        };
        let frontend = |(n, (kind, endpoints))| FrontendPlan {
            address: address(n),
            port: Port::from_host(80),
            flags: ServiceFlags(kind).with(ServiceFlags::HAS_ENDPOINTS, endpoints),
        };
        (backends, frontends).prop_map(move |(backends, frontends)| FamilyPlan {
            backends: backends.into_iter().map(backend).collect(),
            frontends: frontends.into_iter().map(frontend).collect(),
        })
    }

    proptest! {
        #[test]
        fn applying_a_diff_gives_the_plan_and_a_key_that_was_taken_over_is_published_anew(
            sequence in prop::collection::vec((plans(), 0..2u32), 1..5)
        ) {
            let mut model = Current { frontends: Vec::new(), backends: Vec::new() };
            let mut next = 0;
            for (plan, timeout) in sequence {
                let delta = diff(&model, &plan, Protocol::TCP, timeout);
                apply(&mut model, &mut next, &delta, timeout);
                prop_assert_eq!(plan_of(&model), plan.clone());
                let again = diff(&model, &plan, Protocol::TCP, timeout);
                prop_assert!(again.changed_sets.is_empty() && again.gone_backends.is_empty());
                prop_assert!(again.new_frontends.is_empty() && again.gone_frontends.is_empty());
                prop_assert!(again.backends.iter().all(|(id, _)| id.is_some()));
                // Another service has taken over the first key.
                let mut taken = model.clone();
                let lost: Vec<_> = taken.frontends.iter().take(1).map(|it| Some(it.record)).collect();
                taken.frontends.iter_mut().take(1).for_each(|it| it.reachable = false);
                let anew = diff(&taken, &plan, Protocol::TCP, timeout).new_frontends;
                prop_assert_eq!(anew.into_iter().map(|(_, old)| old).collect::<Vec<_>>(), lost);
            }
        }
    }
}
