// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests syncs with maps that only remember plans.

use std::collections::BTreeMap;

use super::*;
use crate::{
    model::{Kind, ObjectKey},
    testing::{NODE, endpoint, full, name, objects, service, slice},
};

/// Remembers plans as the maps would; refuses new services while it is full.
#[derive(Default)]
struct Maps {
    plans: BTreeMap<String, ServicePlan>,
    full: bool,
    applied: Vec<String>,
}

impl Kernel for Maps {
    fn apply(&mut self, changes: &[(ObjectName, ServicePlan)]) -> ApplyResult {
        let mut result = ApplyResult::default();
        for (name, plan) in changes {
            self.applied.push(name.to_string());
            if plan.ports.is_empty() {
                result.written += usize::from(self.plans.remove(&name.to_string()).is_some());
            } else if self.full && !self.plans.contains_key(&name.to_string()) {
                result.failures.push(full(name));
            } else {
                self.plans.insert(name.to_string(), plan.clone());
                result.written += 1;
            }
        }
        result
    }
    fn prune(&mut self, known: &HashSet<ObjectName>) -> ApplyResult {
        let known: HashSet<_> = known.iter().map(ToString::to_string).collect();
        let before = self.plans.len();
        self.plans.retain(|name, _| known.contains(name));
        ApplyResult {
            written: before - self.plans.len(),
            ..ApplyResult::default()
        }
    }
}

/// A node's syncer, its maps and its warnings.
#[derive(Default)]
struct Node {
    syncer: Syncer,
    maps: Maps,
    warnings: Warnings,
}

impl Node {
    fn new() -> Self {
        let warnings = Warnings::default();
        Self {
            syncer: Syncer::new(NODE, warnings.clone()),
            warnings,
            ..Self::default()
        }
    }
    fn fold(&mut self, yaml: &str, complete: bool) {
        let changes = objects(yaml).0.into_iter().map(Change::Upsert).collect();
        self.take(changes, complete);
    }
    fn take(&mut self, changes: Vec<Change>, complete: bool) {
        self.syncer.fold(Batch {
            changes,
            complete,
            ..Batch::default()
        });
    }
    fn sync(&mut self) -> Synced {
        self.syncer.sync(&mut self.maps)
    }
    fn apply(&mut self, yaml: &str) -> Synced {
        self.fold(yaml, true);
        self.sync()
    }
    fn delete_service(&mut self, text: &str) {
        let (kind, name) = (Kind::Service, name(text));
        self.take(vec![Change::Delete(ObjectKey { kind, name })], true);
    }
    /// Puts a service of an earlier agent into the maps.
    fn stale(&mut self, name: &str) {
        let plans = &mut self.maps.plans;
        plans.insert(format!("shop/{name}"), ServicePlan::default());
    }
    /// Returns the names of the services in the maps.
    fn served(&self) -> Vec<&str> {
        self.maps.plans.keys().map(String::as_str).collect()
    }
}

#[test]
fn only_changed_services_are_planned_and_applied() {
    let mut node = Node::new();
    let services = (1..50).map(|n| service(&format!("s{n:02}"), &format!("172.30.0.{n}"), ""));
    assert_eq!(node.apply(&services.collect::<String>()).planned, 49);
    node.maps.applied.clear();
    let changed = slice("x", "s07", &[endpoint(1, NODE, "")]);
    assert_eq!(node.apply(&changed).planned, 1);
    assert_eq!(node.maps.applied, ["shop/s07"]);
    assert_eq!(node.maps.plans["shop/s07"].ports[0].v4.backends.len(), 1);
    assert_eq!(node.sync().planned, 0);
}

#[test]
fn into_larger_maps_come_first_services_served_before_and_then_those_with_a_refused_change() {
    let mut node = Node::new();
    node.maps.full = true;
    node.apply(&service("b", "172.30.0.2", ""));
    let others = ["a", "c", "d"].map(|name| service(name, "172.30.0.1", ""));
    node.fold(&others.concat(), true);
    let (held, others) = node.syncer.names(&["shop/b", "shop/d"].map(name).into());
    assert_eq!(held, ["shop/d", "shop/b"].map(name));
    assert_eq!(others, ["shop/a", "shop/c"].map(name));
}

#[test]
fn stale_services_are_pruned_once_when_the_list_is_complete() {
    let mut node = Node::new();
    node.stale("old");
    node.fold(&service("new", "172.30.0.1", ""), false);
    node.sync();
    assert_eq!(node.served(), ["shop/new", "shop/old"]);
    assert_eq!(node.apply("").written, 1);
    assert_eq!(node.served(), ["shop/new"]);
    node.stale("foreign");
    node.apply("");
    assert_eq!(node.served(), ["shop/foreign", "shop/new"]);
}

#[test]
fn a_plan_that_did_not_fit_gives_a_warning_and_is_retried() {
    let mut node = Node::new();
    assert!(!node.apply(&service("a", "172.30.0.1", "")).failures_changed);
    assert_eq!(node.syncer.retry_at(), None);
    node.maps.full = true;
    assert!(node.apply(&service("b", "172.30.0.2", "")).failures_changed);
    let first = node.syncer.retry_at().expect("soon");
    // A change of another service neither puts it off nor ends the warning.
    node.apply(&slice("x", "a", &[endpoint(1, NODE, "")]));
    assert_eq!(node.syncer.retry_at(), Some(first));
    assert_eq!(node.syncer.failures.len(), 1);
    assert_eq!(node.warnings.all().len(), 1);
    node.syncer.retry();
    node.sync();
    assert!(node.syncer.retry_at().expect("later") > first);
    node.maps.full = false;
    node.delete_service("shop/a");
    assert!(node.sync().failures_changed);
    assert_eq!(node.syncer.retry_at(), None);
    assert_eq!(node.served(), ["shop/b"]);
    assert_eq!(node.warnings.all(), []);
}

#[test]
fn a_plans_warning_is_removed_when_its_cause_is_gone() {
    let mut node = Node::new();
    node.apply(&(service("a", "172.30.0.1", "") + &service("b", "172.30.0.1", "")));
    assert_eq!(node.warnings.all().len(), 1);
    node.delete_service("shop/a");
    node.sync();
    assert_eq!(node.warnings.all(), []);
    assert_eq!(node.maps.plans["shop/b"].ports[0].v4.frontends.len(), 1);
}

#[test]
fn a_sync_returns_health_checks_that_were_added_changed_or_removed() {
    let mut node = Node::new();
    let mut counts = |yaml: &str| -> Vec<_> {
        let plans = node.apply(yaml).health.into_iter().map(|(_, plan)| plan);
        plans.map(|plan| Some(plan?.local_endpoints)).collect()
    };
    let rest = ", type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 31000";
    assert_eq!(counts(&service("a", "172.30.0.1", rest)), [Some(0)]);
    let local = slice("x", "a", &[endpoint(1, NODE, "")]);
    assert_eq!(counts(&local), [Some(1)]);
    assert_eq!(counts(&service("a", "172.30.0.1", "")), [None]);
    assert_eq!(counts(&slice("x", "a", &[])), []);
}

#[test]
fn of_many_services_essential_ones_come_first_and_new_changes_do_not_wait() {
    let mut node = Node::new();
    let many = turns::LENGTH + 100;
    let address = |n: usize| format!("172.30.{}.{}", n / 250, n % 250);
    let services = (0..many).map(|n| service(&format!("s{n:03}"), &address(n), ""));
    let dns = service("zz", "172.30.9.9", "").replace("shop", "kube-system");
    node.stale("old");
    let synced = node.apply(&(services.collect::<String>() + &dns));
    assert_eq!(synced.planned, turns::LENGTH);
    assert_eq!(node.maps.applied[..2], ["kube-system/zz", "shop/s000"]);
    assert!(node.syncer.is_waiting() && node.served().contains(&"shop/old"));
    let recheck = node.syncer.recheck(&mut node.maps, &name("shop/s001"));
    assert_eq!(recheck, 0);

    node.maps.applied.clear();
    let last = format!("s{:03}", many - 1);
    let new = service("new", "172.30.9.1", "") + &slice("x", &last, &[endpoint(1, NODE, "")]);
    let synced = node.apply(&new);
    assert!(node.maps.applied.contains(&"shop/new".to_owned()));
    assert_eq!(synced.planned, many - turns::LENGTH + 2);
    assert!(!node.syncer.is_waiting() && !node.syncer.has_changes());
    assert_eq!(node.maps.plans.len(), many + 2);
    assert!(!node.served().contains(&"shop/old"));
    assert_eq!(node.sync().planned, 0);

    // A service that changes twice while it waits is applied once.
    node.syncer.resync();
    node.sync();
    node.maps.applied.clear();
    node.delete_service(&format!("shop/{last}"));
    while node.syncer.has_changes() {
        node.sync();
    }
    let applied = node.maps.applied.iter();
    assert_eq!(applied.filter(|name| name.ends_with(&last)).count(), 1);
    assert!(!node.maps.plans.contains_key(&format!("shop/{last}")));
}
