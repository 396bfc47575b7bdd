// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests for full maps: which services still get entries, and which slots a service has whose
//! blocks do not fit. `publish` has how those are written, changed and adopted.

use control::{apply::Affected, object::ObjectName, plan::ServicePlan};
use datapath::{Capacities, Datapath};
use proxy_common::{Block, EndpointSet, Record, ServiceFlags, V4, maps};
use rstest::rstest;

use crate::support::{
    PinDir, SMALL, Services, backend, cart, expected, name, picture, plan, publish, v4,
};

/// The capacity of the full map. The reserve of 1/32 is four entries.
const CAPACITY: u32 = 128;

/// Applies new services until one is refused, and returns those before it.
fn fill(datapath: &mut Datapath) -> Services {
    let mut services = Services::new();
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
    type Full = fn(&mut Capacities) -> &mut u32;
    let cases: [(&str, &str, Full); 4] = [
        (maps::FRONTENDS_V4, "maps.frontends", |c| &mut c.frontends),
        (maps::RECORDS_V4, "maps.records", |c| &mut c.records),
        (maps::SLOTS, "maps.slots", |c| &mut c.slots),
        (maps::BACKENDS_V4, "maps.backends", |c| &mut c.backends),
    ];
    for (map, key, full) in cases {
        let pins = PinDir::new();
        let mut options = pins.options();
        options.capacities = Capacities {
            frontends: 4 * CAPACITY,
            records: 4 * CAPACITY,
            slots: 4 * CAPACITY,
            backends: 4 * CAPACITY,
            ..SMALL
        };
        *full(&mut options.capacities) = CAPACITY;
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

/// Returns a service whose endpoints, by the last octet, have these weights.
fn service(weights: &[(u8, u32)], is_maglev: bool) -> ServicePlan {
    let mut plan = plan(v4(10, 96, 0, 1), &[]);
    let [port] = &mut plan.ports[..] else {
        panic!("one port")
    };
    port.v4.backends = weights
        .iter()
        .map(|(octet, weight)| {
            let mut backend = backend(v4(10, 1, 0, *octet), EndpointSet::CLUSTER);
            backend.weight = *weight;
            backend
        })
        .collect();
    for frontend in &mut port.v4.frontends {
        frontend.flags = frontend.flags.with(ServiceFlags::MAGLEV, is_maglev);
    }
    plan
}

fn with_slots(pins: &PinDir, slots: u32) -> Datapath {
    pins.open_with(|options| options.capacities.slots = slots)
}

/// Returns the backends' ids in the only block of slots.
fn slots(pins: &PinDir) -> Vec<u32> {
    let records = pins.array::<Record<V4>>(maps::RECORDS_V4);
    let blocks = (1..records.capacity()).map(|id| records.load(id).internal);
    let blocks: Vec<_> = blocks.filter(|block| *block != Block::EMPTY).collect();
    let [block] = blocks[..] else {
        panic!("{blocks:?}")
    };
    let slots = pins.array::<u32>(maps::SLOTS);
    let places = block.first()..block.first() + block.count();
    places.map(|at| slots.load(at)).collect()
}

/// The slots suffice for one block, but not for a second one at the same time.
#[rstest]
#[case::random(
    700,
    service(&[(1, 256), (2, 255)], false),
    service(&[(1, 255), (2, 256)], false),
    "511 in a row are needed, 189 are free"
)]
#[case::maglev(
    1500,
    service(&[(1, 1), (2, 1), (3, 1)], true),
    service(&[(2, 1), (3, 1), (4, 1)], true),
    "1031 in a row are needed, 469 are free"
)]
fn slots_that_do_not_fit_leave_one_for_each_remaining_endpoint(
    #[case] slots_at_all: u32,
    #[case] first: ServicePlan,
    #[case] other: ServicePlan,
    #[case] needed: &str,
) {
    let pins = PinDir::new();
    let mut datapath = with_slots(&pins, slots_at_all);
    publish(&mut datapath, &pins, &cart(first));
    let result = datapath.apply(&[(name("cart"), other.clone())]);
    let [failure] = &result.failures[..] else {
        panic!("{:?}", result.failures)
    };
    let reason = failure.reason.to_string();
    assert!(reason.contains(needed), "{reason}");
    assert_eq!(slots(&pins).len(), 2);
    // After the previous slots have been freed, the new ones fit.
    publish(&mut datapath, &pins, &cart(other));
}

#[test]
fn a_block_by_weight_is_not_taken_for_a_list_of_as_many_endpoints() {
    let pins = PinDir::new();
    let mut datapath = with_slots(&pins, 5);
    let weighted = cart(service(&[(1, 2), (2, 1)], false));
    publish(&mut datapath, &pins, &weighted);
    assert_eq!(slots(&pins).len(), 3);
    let list = service(&[(1, 1), (2, 1), (3, 1)], false);
    let result = datapath.apply(&[(name("cart"), list.clone())]);
    assert_eq!(result.failures.len(), 1, "{:?}", result.failures);
    publish(&mut datapath, &pins, &cart(list));
}
