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

fn batch(yaml: &str, complete: bool) -> Batch {
    let changes = objects(yaml).0.into_iter().map(Change::Upsert).collect();
    Batch {
        changes,
        complete,
        ..Batch::default()
    }
}
fn delete(kind: Kind, text: &str) -> Batch {
    let name = name(text);
    Batch {
        changes: vec![Change::Delete(ObjectKey { kind, name })],
        complete: true,
        ..Batch::default()
    }
}

#[test]
fn only_changed_services_are_planned_and_applied() {
    let (mut syncer, mut maps) = (Syncer::new(NODE, Warnings::default()), Maps::default());
    let services: String = (1..50)
        .map(|n| service(&format!("s{n:02}"), &format!("172.30.0.{n}"), ""))
        .collect();
    syncer.fold(batch(&services, true));
    assert_eq!(syncer.sync(&mut maps).planned, 49);
    maps.applied.clear();
    syncer.fold(batch(&slice("x", "s07", &[endpoint(1, NODE, "")]), true));
    assert_eq!(syncer.sync(&mut maps).planned, 1);
    assert_eq!(maps.applied, ["shop/s07"]);
    assert_eq!(maps.plans["shop/s07"].ports[0].v4.backends.len(), 1);
    assert_eq!(syncer.sync(&mut maps).planned, 0);
}

#[test]
fn services_served_before_come_first_into_larger_maps() {
    let mut syncer = Syncer::new(NODE, Warnings::default());
    let names = ["a", "b", "c", "d"];
    let services = names.map(|name| service(name, &format!("172.30.0.{}", name.as_bytes()[0]), ""));
    syncer.fold(batch(&services.concat(), true));
    let (held, others) = syncer.names(&["shop/b", "shop/d"].map(name).into());
    assert_eq!(held, ["shop/b", "shop/d"].map(name));
    assert_eq!(others, ["shop/a", "shop/c"].map(name));
}

#[test]
fn services_with_a_refused_change_come_last_of_those_served_before() {
    let (mut syncer, mut maps) = (Syncer::new(NODE, Warnings::default()), Maps::default());
    maps.full = true;
    syncer.fold(batch(&service("a", "172.30.0.1", ""), true));
    syncer.sync(&mut maps);
    syncer.fold(batch(&service("b", "172.30.0.2", ""), true));
    let (held, _) = syncer.names(&["shop/a", "shop/b"].map(name).into());
    assert_eq!(held, ["shop/b", "shop/a"].map(name));
}

#[test]
fn stale_services_are_pruned_once_when_the_list_is_complete() {
    let (mut syncer, mut maps) = (Syncer::new(NODE, Warnings::default()), Maps::default());
    maps.plans.insert("shop/old".into(), ServicePlan::default());
    syncer.fold(batch(&service("new", "172.30.0.1", ""), false));
    syncer.sync(&mut maps);
    assert!(maps.plans.contains_key("shop/old"));
    syncer.fold(batch("", true));
    assert_eq!(syncer.sync(&mut maps).written, 1);
    assert_eq!(maps.plans.keys().collect::<Vec<_>>(), ["shop/new"]);
    maps.plans
        .insert("shop/foreign".into(), ServicePlan::default());
    syncer.fold(batch("", true));
    syncer.sync(&mut maps);
    assert!(maps.plans.contains_key("shop/foreign"));
}

#[test]
fn a_plan_that_did_not_fit_gives_a_warning_and_is_retried() {
    let warnings = Warnings::default();
    let (mut syncer, mut maps) = (Syncer::new(NODE, warnings.clone()), Maps::default());
    syncer.fold(batch(&service("a", "172.30.0.1", ""), true));
    assert!(!syncer.sync(&mut maps).failures_changed);
    assert_eq!(syncer.retry_at(), None);
    maps.full = true;
    syncer.fold(batch(&service("b", "172.30.0.2", ""), true));
    assert!(syncer.sync(&mut maps).failures_changed);
    let first = syncer.retry_at().expect("soon");
    assert_eq!(syncer.failures.len(), 1);
    assert_eq!(warnings.all().len(), 1);
    syncer.retry();
    syncer.sync(&mut maps);
    assert!(syncer.retry_at().expect("later") > first);
    maps.full = false;
    syncer.fold(delete(Kind::Service, "shop/a"));
    assert!(syncer.sync(&mut maps).failures_changed);
    assert_eq!(syncer.retry_at(), None);
    assert_eq!(maps.plans.keys().collect::<Vec<_>>(), ["shop/b"]);
    assert_eq!(warnings.all(), []);
}

#[test]
fn a_failed_services_warning_and_retry_stay_while_others_are_applied() {
    let warnings = Warnings::default();
    let (mut syncer, mut maps) = (Syncer::new(NODE, warnings.clone()), Maps::default());
    syncer.fold(batch(&service("a", "172.30.0.1", ""), true));
    syncer.sync(&mut maps);
    maps.full = true;
    syncer.fold(batch(&service("b", "172.30.0.2", ""), true));
    syncer.sync(&mut maps);
    let due = syncer.retry_at();
    assert!(due.is_some());
    syncer.fold(batch(&slice("x", "a", &[endpoint(1, NODE, "")]), true));
    syncer.sync(&mut maps);
    assert_eq!(
        syncer.retry_at(),
        due,
        "changes of others do not put it off"
    );
    assert_eq!(warnings.all().len(), 1);
}

#[test]
fn a_plans_warning_is_removed_when_its_cause_is_gone() {
    let warnings = Warnings::default();
    let (mut syncer, mut maps) = (Syncer::new(NODE, warnings.clone()), Maps::default());
    let twice = service("a", "172.30.0.1", "") + &service("b", "172.30.0.1", "");
    syncer.fold(batch(&twice, true));
    syncer.sync(&mut maps);
    assert_eq!(warnings.all().len(), 1);
    syncer.fold(delete(Kind::Service, "shop/a"));
    syncer.sync(&mut maps);
    assert_eq!(warnings.all(), []);
    assert_eq!(maps.plans["shop/b"].ports[0].v4.frontends.len(), 1);
}

#[test]
fn a_sync_returns_health_checks_that_were_added_changed_or_removed() {
    let (mut syncer, mut maps) = (Syncer::new(NODE, Warnings::default()), Maps::default());
    let rest = ", type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 31000";
    syncer.fold(batch(&service("a", "172.30.0.1", rest), true));
    let counts = |synced: Synced| -> Vec<_> {
        let plans = synced.health.into_iter().map(|(_, plan)| plan);
        plans
            .map(|plan| plan.map(|plan| plan.local_endpoints))
            .collect()
    };
    assert_eq!(counts(syncer.sync(&mut maps)), [Some(0)]);
    syncer.fold(batch(&slice("x", "a", &[endpoint(1, NODE, "")]), true));
    assert_eq!(counts(syncer.sync(&mut maps)), [Some(1)]);
    syncer.fold(batch(&service("a", "172.30.0.1", ""), true));
    assert_eq!(counts(syncer.sync(&mut maps)), [None]);
    syncer.fold(batch(&slice("x", "a", &[]), true));
    assert_eq!(counts(syncer.sync(&mut maps)), []);
}

#[test]
fn of_many_services_essential_ones_come_first_and_new_changes_do_not_wait() {
    let (mut syncer, mut maps) = (Syncer::new(NODE, Warnings::default()), Maps::default());
    let many = turns::LENGTH + 100;
    let services: String = (0..many)
        .map(|n| {
            service(
                &format!("s{n:03}"),
                &format!("172.30.{}.{}", n / 250, n % 250),
                "",
            )
        })
        .collect();
    let dns = service("zz", "172.30.9.9", "").replace("shop", "kube-system");
    syncer.fold(batch(&(services + &dns), true));
    maps.plans.insert("shop/old".into(), ServicePlan::default());
    assert_eq!(syncer.sync(&mut maps).planned, turns::LENGTH);
    assert_eq!(maps.applied[..2], ["kube-system/zz", "shop/s000"]);
    assert!(syncer.is_waiting() && maps.plans.contains_key("shop/old"));
    assert_eq!(syncer.recheck(&mut maps, &name("shop/s001")), 0);

    maps.applied.clear();
    let last = format!("s{:03}", many - 1);
    let new = service("new", "172.30.9.1", "") + &slice("x", &last, &[endpoint(1, NODE, "")]);
    syncer.fold(batch(&new, true));
    let synced = syncer.sync(&mut maps);
    assert!(maps.applied.contains(&"shop/new".to_owned()));
    assert_eq!(synced.planned, many - turns::LENGTH + 2);
    assert!(!syncer.is_waiting() && !syncer.has_changes());
    assert_eq!(maps.plans.len(), many + 2);
    assert!(!maps.plans.contains_key("shop/old"));
    assert_eq!(syncer.sync(&mut maps).planned, 0);

    // A service that changes twice while it waits is applied once.
    syncer.resync();
    syncer.sync(&mut maps);
    maps.applied.clear();
    syncer.fold(delete(Kind::Service, &format!("shop/{last}")));
    while syncer.has_changes() {
        syncer.sync(&mut maps);
    }
    let of_last = maps.applied.iter().filter(|name| name.ends_with(&last));
    assert_eq!(of_last.count(), 1);
    assert!(!maps.plans.contains_key(&format!("shop/{last}")));
}
