// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests for blocks in which backends have slots by their weights, and blocks that are Maglev
//! tables, when they do not fit. `publish` has how they are written, changed and adopted.

use std::collections::BTreeMap;

use control::plan::ServicePlan;
use datapath::Datapath;
use proxy_common::{Block, EndpointSet, Record, ServiceFlags, V4, maps};
use rstest::rstest;

use crate::support::{PinDir, apply, backend, expected, name, picture, plan, v4};

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

/// Writes a plan, and compares the maps with it.
fn publish(datapath: &mut Datapath, pins: &PinDir, plan: ServicePlan) {
    apply(datapath, &[(name("cart"), plan.clone())]);
    let wanted = BTreeMap::from([(name("cart"), plan)]);
    assert_eq!(picture(pins), expected(&wanted));
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
    slots
        .ensure(block.first(), block.count())
        .expect("in the map");
    (block.first()..block.first() + block.count())
        .map(|at| slots.load(at))
        .collect()
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
    publish(&mut datapath, &pins, first);
    let result = datapath.apply(&[(name("cart"), other.clone())]);
    let [failure] = &result.failures[..] else {
        panic!("{:?}", result.failures)
    };
    let reason = failure.reason.to_string();
    assert!(reason.contains(needed), "{reason}");
    assert_eq!(slots(&pins).len(), 2);
    // After the previous slots have been freed, the new ones fit.
    publish(&mut datapath, &pins, other);
}

#[test]
fn a_block_by_weight_is_not_taken_for_a_list_of_as_many_endpoints() {
    let pins = PinDir::new();
    let mut datapath = with_slots(&pins, 5);
    publish(&mut datapath, &pins, service(&[(1, 2), (2, 1)], false));
    assert_eq!(slots(&pins).len(), 3);
    let list = service(&[(1, 1), (2, 1), (3, 1)], false);
    let result = datapath.apply(&[(name("cart"), list.clone())]);
    assert_eq!(result.failures.len(), 1, "{:?}", result.failures);
    publish(&mut datapath, &pins, list);
}
