// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decides whether the agent is healthy and alive, from the facts that `health` has and the time.
//! Pure.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// How long a change may wait to be applied until the node is unhealthy. KUBE: twice kube-proxy's
/// sync period.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// How long a fault may last until it makes the node unhealthy. KUBE: kube-proxy's sync period,
/// after which it repeats a failed sync.
pub(super) const GRACE: Duration = Duration::from_secs(30);
/// How long one turn of the agent's loop may take until the loop counts as hanging: the longest
/// known turn, the first sync of 100 000 services, takes a tenth of it.
pub(super) const STILL: Duration = Duration::from_secs(60);

/// The parts of the agent whose objects can have faults.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Area {
    Services,
    /// Settings in the maps that all services share.
    Shared,
    Interfaces,
    Hooks,
    /// The node's settings and addresses.
    Node,
    /// Damage to what is in the kernel that could not be repaired.
    Repairs,
}

/// Why an object is not served as it should be, and since when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Fault {
    pub(super) reason: String,
    pub(super) since: Instant,
}

/// The present faults: for each area, by the name of the object.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults(BTreeMap<Area, BTreeMap<String, Fault>>);

impl Faults {
    /// Replaces the faults of an area. `faults`: pairs of object and reason. An object that already
    /// had a fault keeps its `since`.
    pub(super) fn replace(
        &mut self,
        area: Area,
        faults: impl IntoIterator<Item = (String, String)>,
        now: Instant,
    ) {
        let before = self.0.remove(&area).unwrap_or_default();
        let faults: BTreeMap<_, _> = faults
            .into_iter()
            .map(|(object, reason)| {
                let since = before.get(&object).map_or(now, |fault| fault.since);
                (object, Fault { reason, since })
            })
            .collect();
        if !faults.is_empty() {
            self.0.insert(area, faults);
        }
    }
    /// Returns the area and the object of each fault that has lasted longer than [`GRACE`].
    fn lasting(&self, now: Instant) -> impl Iterator<Item = (Area, &str)> {
        self.all()
            .filter(move |(.., fault)| now.saturating_duration_since(fault.since) > GRACE)
            .map(|(area, object, _)| (area, object))
    }
    fn all(&self) -> impl Iterator<Item = (Area, &str, &Fault)> {
        self.0.iter().flat_map(|(area, faults)| {
            let faults = faults.iter();
            faults.map(|(object, fault)| (*area, object.as_str(), fault))
        })
    }
    pub(super) fn count(&self) -> usize {
        self.0.values().map(BTreeMap::len).sum()
    }
    /// Returns `most` faults, each with its object: the node's before those of services, the oldest
    /// first.
    pub(super) fn first(&self, most: usize) -> Vec<(&str, &Fault)> {
        let mut all: Vec<_> = self.all().collect();
        all.sort_by_key(|(area, object, fault)| (*area == Area::Services, fault.since, *object));
        all.truncate(most);
        all.into_iter()
            .map(|(_, object, fault)| (object, fault))
            .collect()
    }
}

/// What the decisions here depend on.
#[derive(Debug)]
pub(super) struct Facts {
    /// True once the first lists of Kubernetes objects have been applied.
    pub(super) is_listed: bool,
    /// Since when the oldest change waits to be applied; `None` if all changes are applied.
    pub(super) pending: Option<Instant>,
    /// When the agent's loop last began a turn (the handling of one event).
    pub(super) turned: Instant,
    pub(super) faults: Faults,
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            is_listed: false,
            pending: None,
            turned: Instant::now(),
            faults: Faults::default(),
        }
    }
}

/// Why the node is unhealthy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ill {
    /// The agent's loop has been in the same turn for [`STILL`] or longer.
    Still,
    NotListed,
    /// Changes have waited for longer than [`PATIENCE`].
    Behind,
    /// A fault of the node has lasted longer than [`GRACE`].
    Faulty,
}

impl Ill {
    /// Returns the reason as a text for an operator.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Still => "the agent's loop hangs",
            Self::NotListed => {
                "the lists of objects have not arrived yet; services are served as the maps hold them"
            }
            Self::Behind => "changes have waited for more than a minute",
            Self::Faulty => "the node has faults that have lasted for more than 30 seconds",
        }
    }
}

/// True if the agent's loop does not hang: its present turn began less than [`STILL`] ago.
pub(super) fn is_alive(turned: Instant, now: Instant) -> bool {
    now.saturating_duration_since(turned) < STILL
}

/// Returns why the node is unhealthy; `None` if it is healthy. Faults of services do not count,
/// but for those of `service`: every node has them, and load balancers would lose all nodes.
pub(super) fn illness(facts: &Facts, now: Instant, service: Option<&str>) -> Option<Ill> {
    let behind = |since| now.saturating_duration_since(since) > PATIENCE;
    if !is_alive(facts.turned, now) {
        return Some(Ill::Still);
    }
    if !facts.is_listed {
        return Some(Ill::NotListed);
    }
    if facts.pending.is_some_and(behind) {
        return Some(Ill::Behind);
    }
    let mut lasting = facts.faults.lasting(now);
    let is_faulty = lasting.any(|(area, object)| area != Area::Services || Some(object) == service);
    is_faulty.then_some(Ill::Faulty)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn faults(area: Area, objects: &[&str], now: Instant) -> Faults {
        let mut faults = Faults::default();
        faults.replace(area, named(objects), now);
        faults
    }
    fn named(objects: &[&str]) -> Vec<(String, String)> {
        let named = objects.iter();
        named
            .map(|object| ((*object).to_owned(), "full".to_owned()))
            .collect()
    }
    fn facts(faults: &Faults, now: Instant) -> Facts {
        Facts {
            is_listed: true,
            pending: None,
            turned: now,
            faults: faults.clone(),
        }
    }
    fn ill(facts: &Facts, now: Instant) -> Option<Ill> {
        illness(facts, now, None)
    }

    #[test]
    fn a_fault_makes_a_node_unhealthy_after_a_grace_time_whatever_its_reason() {
        let start = Instant::now();
        let mut faults = faults(Area::Interfaces, &["interface eth0"], start);
        assert_eq!(ill(&facts(&faults, start + GRACE), start + GRACE), None);
        let other = [("interface eth0".to_owned(), "busy".to_owned())];
        faults.replace(Area::Interfaces, other, start + GRACE);
        let later = start + GRACE + SECOND;
        assert_eq!(ill(&facts(&faults, later), later), Some(Ill::Faulty));
        assert_eq!(faults.first(9)[0].1.reason, "busy");
        faults.replace(Area::Interfaces, [], later);
        assert_eq!(ill(&facts(&faults, later), later), None);
        faults.replace(Area::Interfaces, named(&["interface eth0"]), later);
        assert_eq!(ill(&facts(&faults, later), later), None, "a new one");
    }

    #[test]
    fn an_area_keeps_its_faults_while_another_is_replaced() {
        let start = Instant::now();
        let mut faults = faults(Area::Services, &["Service shop/a", "Service shop/b"], start);
        faults.replace(Area::Hooks, named(&["socket hooks"]), start + SECOND);
        faults.replace(Area::Interfaces, [], start + SECOND);
        assert_eq!(faults.count(), 3);
        let first = faults.first(2);
        assert_eq!((first[0].0, first[1].0), ("socket hooks", "Service shop/a"));
    }

    #[test]
    fn a_service_that_is_not_served_makes_only_its_own_answer_unhealthy() {
        let start = Instant::now();
        let mut faults = faults(Area::Services, &["Service shop/a", "Service shop/b"], start);
        let later = start + GRACE + SECOND;
        for (service, expected) in [
            (None, None),
            (Some("Service shop/a"), Some(Ill::Faulty)),
            (Some("Service shop/cart"), None),
        ] {
            assert_eq!(illness(&facts(&faults, later), later, service), expected);
        }
        faults.replace(Area::Shared, named(&["Settings"]), start);
        let cart = illness(&facts(&faults, later), later, Some("Service shop/cart"));
        assert_eq!(cart, Some(Ill::Faulty), "it concerns every service");
        assert_eq!(ill(&facts(&faults, later), later), Some(Ill::Faulty));
    }

    #[test]
    fn a_node_without_lists_or_with_late_changes_is_unhealthy_but_alive() {
        let (none, start) = (Faults::default(), Instant::now());
        let mut facts = facts(&none, start);
        facts.is_listed = false;
        assert_eq!(ill(&facts, start), Some(Ill::NotListed));
        facts.is_listed = true;
        facts.pending = Some(start);
        facts.turned = start + PATIENCE;
        assert_eq!(ill(&facts, start + PATIENCE), None);
        let late = start + PATIENCE + SECOND;
        assert_eq!(ill(&facts, late), Some(Ill::Behind));
        assert!(is_alive(facts.turned, late));
        let still = facts.turned + STILL;
        assert!(!is_alive(facts.turned, still));
        assert_eq!(ill(&facts, still), Some(Ill::Still));
    }
}
