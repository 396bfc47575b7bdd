// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests for the contents of the maps after applies and restarts.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
};

use control::{
    apply::Affected,
    plan::{BackendPlan, ServicePlan},
};
use proptest::{prelude::*, test_runner::TestRunner};
use proxy_common::{
    Backend, EndpointSet, FrontendKey, FrontendKind, Port, Protocol, Record, ServiceFlags,
    Settings, V4, maps,
};

use crate::support::{
    PinDir, SMALL, apply, backend, cart, expected, frontend, name, picture, plan, port, publish,
    v4, v6,
};

fn record_id(pins: &PinDir, address: V4) -> u32 {
    let key = FrontendKey::new(address, Port::from_host(80), Protocol::TCP);
    let table = pins.table::<FrontendKey<V4>, u32>(maps::FRONTENDS_V4);
    let id = table.lookup(&key).expect("readable");
    id.expect("published")
}

#[test]
fn a_restarted_agent_restores_the_address_ranges_of_all_frontends() {
    let pins = PinDir::new();
    let mut datapath = pins.open();
    let mut port = port(v4(10, 96, 0, 1), &[1]);
    let external = [
        (v4(203, 0, 113, 5), FrontendKind::LoadBalancer),
        (v4(198, 51, 100, 7), FrontendKind::ExternalIp),
    ];
    let frontends = external.map(|(address, kind)| frontend(address, kind));
    port.v4.frontends.extend(frontends);
    let plan = ServicePlan {
        ports: vec![port],
        ..ServicePlan::default()
    };
    apply(&mut datapath, &[(name("cart"), plan)]);
    let table = pins.table::<u32, Settings>(maps::SETTINGS);
    let stored = || table.lookup(&0).expect("readable").expect("stored");
    let before = stored();
    drop(datapath);
    let datapath = pins.open();
    assert_eq!(stored(), before);
    drop(datapath);
    // The ranges are restored even if the element was changed.
    table.update(&0, &Settings::EMPTY).expect("an element");
    let mut datapath = pins.open();
    for (address, _) in external {
        assert!(stored().external_v4.contains(address));
    }
    assert!(stored().services_v4.contains(v4(10, 96, 0, 1)));
    assert!(!stored().services_v4.contains(v4(203, 0, 113, 5)));
    assert!(!stored().external_v4.contains(v4(10, 96, 0, 1)));
    // Settings from the agent do not change the ranges. Which ranges cover the addresses depends on
    // the order in which the addresses were found.
    let found = stored();
    datapath.set_settings(&Settings::EMPTY).expect("settings");
    let ranges = |settings: Settings| (settings.external_v4, settings.services_v4);
    assert_eq!(ranges(stored()), ranges(found));
}

#[test]
fn changed_endpoints_keep_the_record_but_changed_flags_replace_it() {
    let pins = PinDir::new();
    let mut datapath = pins.open();
    let address = v4(10, 96, 0, 1);
    publish(&mut datapath, &pins, &cart(plan(address, &[1, 2])));
    let before = record_id(&pins, address);
    let services = cart(plan(address, &[2, 3, 4]));
    publish(&mut datapath, &pins, &services);
    assert_eq!(record_id(&pins, address), before);

    let mut changed = plan(address, &[2, 3, 4]);
    changed.ports[0].affinity_timeout = 60;
    changed.ports[0].v4.frontends[0].flags.0 |= ServiceFlags::AFFINITY;
    let services = cart(changed);
    publish(&mut datapath, &pins, &services);
    assert_ne!(record_id(&pins, address), before);
}

#[test]
fn a_backends_generation_never_decreases_and_changes_on_removal() {
    let pins = PinDir::new();
    let mut datapath = pins.open();
    let address = v4(10, 96, 0, 1);
    let generations = || -> Vec<u32> {
        let backends = pins.array::<Backend<V4>>(maps::BACKENDS_V4);
        let all = 1..backends.capacity();
        all.map(|id| backends.load(id).generation).collect()
    };
    let mut seen = generations();
    for round in 0..40 {
        let cart = plan(address, &[round, round + 1]);
        apply(&mut datapath, &[(name("cart"), cart)]);
        // Only the backend's sets change, so the generation must stay.
        let mut unselected = plan(address, &[round, round + 1]);
        unselected.ports[0].v4.backends[0].sets = EndpointSet::NONE;
        let before = generations();
        apply(&mut datapath, &[(name("cart"), unselected)]);
        assert_eq!(generations(), before);
        let now = generations();
        assert!(now.iter().zip(&seen).all(|(now, seen)| now >= seen));
        seen = now;
    }
    assert!(seen.iter().sum::<u32>() >= 39, "one went each round");
}

#[test]
fn a_full_map_of_source_ranges_fails_only_the_new_service() {
    let pins = PinDir::new();
    let mut datapath = pins.open_with(|options| options.capacities.source_ranges = 4);
    let service = |n: u8, endpoints: &[u8]| {
        let mut plan = plan(v4(10, 96, 0, n), endpoints);
        plan.ports[0].source_ranges = vec![format!("192.0.{n}.0/24").parse().expect("range")];
        (name(&format!("s{n}")), plan)
    };
    let mut services: BTreeMap<_, _> = (1..=4).map(|n| service(n, &[n, n + 100])).collect();
    publish(&mut datapath, &pins, &services);
    let (fifth, first) = (service(5, &[5]), service(1, &[1]));
    services.extend([first.clone()]);
    let result = datapath.apply(&[fifth.clone(), first]);
    let [failure] = &result.failures[..] else {
        panic!("{:?}", result.failures)
    };
    assert_eq!(failure.affected, Affected::Service(name("s5")));
    let reason = failure.reason.to_string();
    for part in ["sources_v4", "maps.sourceRanges"] {
        assert!(reason.contains(part), "{reason}");
    }
    // The maps have nothing of the fifth service, nor the first service's removed endpoint.
    assert_eq!(picture(&pins), expected(&services));
    services.insert(name("s2"), ServicePlan::default());
    publish(&mut datapath, &pins, &services);
    services.extend([fifth]);
    publish(&mut datapath, &pins, &services);
}

#[test]
fn removed_endpoints_go_even_if_a_full_map_refuses_new_ones() {
    let pins = PinDir::new();
    let mut datapath = pins.open_with(|options| options.capacities.backends = 4);
    let address = v4(10, 96, 0, 1);
    publish(&mut datapath, &pins, &cart(plan(address, &[1, 2, 3])));
    // Two endpoints are removed and three are added, but only two would fit. No new endpoint is
    // published, but the old ones are removed.
    let result = datapath.apply(&[(name("cart"), plan(address, &[3, 4, 5, 6]))]);
    assert_eq!(result.failures.len(), 1);
    assert_eq!(picture(&pins), expected(&cart(plan(address, &[3]))));
}

#[test]
fn dangling_frontends_and_overlapping_blocks_are_not_adopted() {
    let pins = PinDir::new();
    let mut datapath = pins.open();
    let plans = [("a", 1), ("b", 2)].map(|(who, n)| (name(who), plan(v4(10, 96, 0, n), &[n])));
    let services = BTreeMap::from(plans);
    publish(&mut datapath, &pins, &services);
    drop(datapath);

    let frontends = pins.table::<FrontendKey<V4>, u32>(maps::FRONTENDS_V4);
    let key = |n| FrontendKey::new(v4(10, 96, 0, n), Port::from_host(80), Protocol::TCP);
    let record = record_id(&pins, v4(10, 96, 0, 1));
    for (n, id) in [(7, SMALL.records + 5), (8, 99), (9, record)] {
        frontends.update(&key(n), &id).expect("stored");
    }
    // This block overlaps with another service's.
    let records = pins.array::<Record<V4>>(maps::RECORDS_V4);
    let other = records.load(record_id(&pins, v4(10, 96, 0, 2))).internal;
    records.store_u64(record, std::mem::offset_of!(Record<V4>, internal), other.0);
    drop(records);

    let mut datapath = pins.open();
    assert_eq!(frontends.lookup(&key(7)).expect("readable"), None);
    publish(&mut datapath, &pins, &services);
}

#[test]
fn after_any_plans_and_restarts_the_maps_hold_the_last_plans() {
    let weight = prop::sample::select(vec![0u32, 1, 1, 1, 3, 256, 1_000_000]);
    let local_weight = prop::option::weighted(0.2, 0..3u32);
    let port_plan = (
        prop::collection::btree_set(1..30u8, 0..5),
        prop::collection::btree_map(1..30u8, (0..4u16, weight, local_weight), 0..5),
        prop::collection::btree_set(0..6u8, 0..2),
        0..3u32,
        any::<bool>(),
        prop::bool::weighted(0.3),
    );
    let service_plan = prop::collection::vec(port_plan, 0..3);
    let plans = prop::collection::btree_map(0..4u8, service_plan, 1..4);
    let step = (plans, prop::bool::weighted(0.2));
    let config = ProptestConfig {
        cases: 12,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let strategy = prop::collection::vec(step, 1..8);
    let pins = PinDir::new();
    // Enough for the Maglev tables of every port and set, twice.
    let open = || Some(pins.open_with(|options| options.capacities.slots = 131_072));
    // All in the same maps, one after the other: opening them loads every program.
    let kept = RefCell::new(open());
    TestRunner::new(config)
        .run(&strategy, |steps| {
            let mut kept = kept.borrow_mut();
            let none = (0..4).map(|n| (name(&format!("s{n}")), ServicePlan::default()));
            let mut services: BTreeMap<_, _> = none.collect();
            publish(kept.as_mut().expect("open"), &pins, &services);
            for (changes, restarts) in steps {
                let changes: Vec<_> = changes
                    .into_iter()
                    .map(|(service, ports)| {
                        let plan = arbitrary_plan(service, &ports);
                        (name(&format!("s{service}")), plan)
                    })
                    .collect();
                apply(kept.as_mut().expect("open"), &changes);
                services.extend(changes);
                prop_assert_eq!(picture(&pins), expected(&services));
                if restarts {
                    drop(kept.take());
                    *kept = open();
                }
                let datapath = kept.as_mut().expect("open");
                prop_assert_eq!(publish(datapath, &pins, &services), 0);
            }
            Ok(())
        })
        .expect("holds");
}

type ArbitraryPort = (
    BTreeSet<u8>,
    BTreeMap<u8, (u16, u32, Option<u32>)>,
    BTreeSet<u8>,
    u32,
    bool,
    bool,
);

fn arbitrary_plan(service: u8, ports: &[ArbitraryPort]) -> ServicePlan {
    let ports: Vec<_> = ports
        .iter()
        .enumerate()
        .map(|(n, of_port)| {
            let (v6_backends, v4_backends, sources, timeout, local, is_maglev) = of_port;
            let cluster_ip = v4(10, 96, service, n as u8);
            let mut port = port(cluster_ip, &[]);
            port.name = ["", "web", "admin"][n].into();
            port.affinity_timeout = *timeout;
            port.v4.backends = v4_backends
                .iter()
                .map(|(n, (sets, weight, local_weight))| BackendPlan {
                    weight: *weight,
                    local_weight: *local_weight,
                    ..backend(v4(10, 1, 0, *n), EndpointSet(*sets))
                })
                .collect();
            let address = v6(&format!("fd00:96::{service}:{n}"));
            port.v6.frontends = vec![frontend(address, FrontendKind::ClusterIp)];
            port.v6.backends = v6_backends
                .iter()
                .map(|n| {
                    let address = v6(&format!("fd00:1::{n:x}"));
                    backend(address, EndpointSet::CLUSTER)
                })
                .collect();
            if *local {
                let mut balancer = frontend(v4(203, 0, service, n as u8), FrontendKind::ExternalIp);
                balancer.flags.0 |= ServiceFlags::EXTERNAL_BLOCK_LOCAL;
                port.v4.frontends.push(balancer);
            }
            for frontend in &mut port.v4.frontends {
                frontend.flags = frontend.flags.with(ServiceFlags::MAGLEV, *is_maglev);
            }
            // At most eight ranges, because the map is no larger.
            port.source_ranges = sources
                .iter()
                .filter(|_| service < 2)
                .map(|n| format!("192.0.{n}.0/24").parse().expect("a range"))
                .collect();
            port
        })
        .collect();
    ServicePlan {
        guarded_v4: ports.iter().map(|p| p.v4.frontends[0].address).collect(),
        ports,
        ..ServicePlan::default()
    }
}
