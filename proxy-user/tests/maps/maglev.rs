// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests for blocks that are Maglev tables: how they are written, kept, replaced and adopted, and
//! what happens when they do not fit into the slots.

use std::collections::BTreeMap;

use control::plan::ServicePlan;
use datapath::Datapath;
use proxy_common::{Block, Record, ServiceFlags, V4, maps, select::maglev};

use crate::support::{PinDir, apply, expected, name, picture, plan, v4};

fn with_slots(pins: &PinDir, slots: u32) -> Datapath {
    pins.open_with(|options| options.capacities.slots = slots)
}

fn service(endpoints: &[u8], is_maglev: bool) -> ServicePlan {
    let mut plan = plan(v4(10, 96, 0, 1), endpoints);
    let flags = &mut plan.ports[0].v4.frontends[0].flags;
    *flags = flags.with(ServiceFlags::MAGLEV, is_maglev);
    plan
}

#[test]
fn a_maglev_table_is_written_again_only_when_endpoints_change() {
    let pins = PinDir::new();
    let mut datapath = with_slots(&pins, 16_384);
    let mut publish = |endpoints: &[u8], is_maglev| {
        let plan = service(endpoints, is_maglev);
        let written = apply(&mut datapath, &[(name("cart"), plan.clone())]);
        let wanted = BTreeMap::from([(name("cart"), plan)]);
        assert_eq!(picture(&pins), expected(&wanted));
        written
    };
    assert!(publish(&[1, 2, 3], true) > maglev::size(3));
    assert_eq!(publish(&[1, 2, 3], true), 0);
    assert!(publish(&[1, 3, 4, 5, 6], true) > maglev::size(5));
    assert!(publish(&[1, 3, 4, 5, 6], false) < 20, "a list");
    assert!(publish(&[1, 3], true) > maglev::size(2));
    drop(datapath);

    let mut datapath = with_slots(&pins, 16_384);
    let again = datapath.apply(&[(name("cart"), service(&[1, 3], true))]);
    assert_eq!(again.written, 0, "adopted");
    apply(&mut datapath, &[(name("cart"), service(&[], true))]);
}

#[test]
fn a_maglev_table_that_does_not_fit_leaves_the_remaining_endpoints() {
    let pins = PinDir::new();
    // The slots suffice for one table, but not for a second one at the same time.
    let mut datapath = with_slots(&pins, 1500);
    apply(&mut datapath, &[(name("cart"), service(&[1, 2, 3], true))]);
    let result = datapath.apply(&[(name("cart"), service(&[2, 3, 4], true))]);
    let [failure] = &result.failures[..] else {
        panic!("{:?}", result.failures)
    };
    let reason = failure.reason.to_string();
    let needed = "1031 in a row are needed, 469 are free";
    assert!(reason.contains(needed), "{reason}");
    // There are no slots for a table, so each remaining endpoint has one slot, and removed
    // endpoints have no slots.
    let records = pins.array::<Record<V4>>(maps::RECORDS_V4);
    let blocks = (1..records.capacity()).map(|id| records.load(id).internal);
    let blocks: Vec<_> = blocks.filter(|block| *block != Block::EMPTY).collect();
    assert_eq!(blocks.len(), 1);
    assert_eq!(blocks[0].count(), 2);

    // After the previous table has been removed, the new one fits.
    apply(&mut datapath, &[(name("cart"), service(&[2, 3, 4], true))]);
    let wanted = BTreeMap::from([(name("cart"), service(&[2, 3, 4], true))]);
    assert_eq!(picture(&pins), expected(&wanted));
}
