// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests for full maps: which services still get entries.

use std::collections::BTreeMap;

use control::{apply::Affected, object::ObjectName, plan::ServicePlan};
use datapath::{Capacities, Datapath};
use proxy_common::maps;

use crate::support::{PinDir, SMALL, expected, name, picture, plan, v4};

/// The capacity of the full map. The reserve of 1/32 is four entries.
const CAPACITY: u32 = 128;

/// Applies new services until one is refused, and returns those before it.
fn fill(datapath: &mut Datapath) -> BTreeMap<ObjectName, ServicePlan> {
    let mut services = BTreeMap::new();
    for n in 0..CAPACITY as u8 {
        let (name, plan) = (name(&format!("s{n}")), plan(v4(10, 96, 1, n), &[n]));
        let result = datapath.apply(&[(name.clone(), plan.clone())]);
        if let [failure] = &result.failures[..] {
            assert_eq!(failure.affected, Affected::Service(name));
            return services;
        }
        services.insert(name, plan);
    }
    panic!("nothing was refused");
}

#[test]
fn new_services_leave_a_reserve_to_those_that_exist_and_to_essential_ones() {
    type Shrink = fn(&mut Capacities);
    let cases: [(&str, &str, Shrink); 4] = [
        (maps::FRONTENDS_V4, "maps.frontends", |c| {
            c.frontends = CAPACITY;
        }),
        (maps::RECORDS_V4, "maps.records", |c| c.records = CAPACITY),
        (maps::SLOTS, "maps.slots", |c| c.slots = CAPACITY),
        (maps::BACKENDS_V4, "maps.backends", |c| {
            c.backends = CAPACITY;
        }),
    ];
    for (map, key, shrink) in cases {
        let pins = PinDir::new();
        let mut options = pins.options();
        options.capacities = Capacities {
            frontends: 4 * CAPACITY,
            records: 4 * CAPACITY,
            slots: 4 * CAPACITY,
            backends: 4 * CAPACITY,
            ..SMALL
        };
        shrink(&mut options.capacities);
        let mut datapath = Datapath::open(&options).expect("opens");
        let mut services = fill(&mut datapath);
        let count = services.len() as u32;
        assert!(count < CAPACITY - CAPACITY / 32 + 1, "{map}: {count}");

        let more = plan(v4(10, 96, 1, 0), &[0, 77]);
        let dns = plan(v4(10, 96, 0, 10), &[200]);
        let server = plan(v4(10, 96, 0, 1), &[201]);
        for (name, plan) in [
            (name("s0"), more),
            (ObjectName::new("kube-system", "kube-dns"), dns),
            (ObjectName::new("default", "kubernetes"), server),
        ] {
            let result = datapath.apply(&[(name.clone(), plan.clone())]);
            let failures = result.failures;
            assert!(failures.is_empty(), "{map}, {name}: {failures:?}");
            services.insert(name, plan);
        }
        let late = plan(v4(10, 96, 2, 1), &[9]);
        let result = datapath.apply(&[(ObjectName::new("default", "shop"), late)]);
        let [failure] = &result.failures[..] else {
            panic!("{map}: {:?}", result.failures)
        };
        let reason = failure.reason.to_string();
        // Each frontend has a name, whose map is of the same size.
        assert!(reason.contains(key), "{map}: {reason}");
        assert_eq!(picture(&pins), expected(&services), "{map}");

        // Maps of the same sizes hold all of them, in whatever order they are restored.
        let pins = PinDir::new();
        options.pin_dir = pins.options().pin_dir;
        let mut datapath = Datapath::open(&options).expect("opens");
        for (name, plan) in services.iter().rev() {
            let result = datapath.restore(&[(name.clone(), plan.clone())]);
            assert!(result.failures.is_empty(), "{map}, {name}");
        }
        assert_eq!(picture(&pins), expected(&services), "{map}");
    }
}
