// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Many services in maps that are too small at first. `PORTOLAN_SCALE_SERVICES` sets a larger
//! number of services, with the default sizes of maps.

use std::{collections::BTreeMap, env, time::Duration};

use datapath::maps::pins::generations;
use k8s_openapi::api::discovery::v1::Endpoint;

use crate::{
    agent::{Agent, within},
    attachments::CART,
    objects::{Service, endpoint},
    world::World,
};

const ENDPOINTS: u32 = 10;
/// The number of services in one manifest file.
const FILE: u32 = 500;
const LIMIT: Duration = Duration::from_secs(900);

fn cluster_ip(number: u32) -> String {
    let [_, a, b, c] = (number + 1).to_be_bytes();
    format!("172.{}.{b}.{c}", 16 + a)
}

/// A service with ten endpoints: the pod that answers, and nine that are on another node.
fn service(number: u32) -> Service {
    let others = (1..ENDPOINTS).map(|other| {
        let [_, a, b, c] = (number * ENDPOINTS + other).to_be_bytes();
        Endpoint {
            node_name: Some("node-b".to_owned()),
            ..endpoint(&format!("11.{a}.{b}.{c}"))
        }
    });
    let answering = endpoint("10.40.1.20");
    Service::new(&format!("s{number}"), &cluster_ip(number))
        .ports(&[("", "TCP", 80, None)])
        .endpoints([answering].into_iter().chain(others).collect())
}

fn write(world: &World, services: std::ops::Range<u32>) {
    for first in services.clone().step_by(FILE as usize) {
        let all = first..services.end.min(first + FILE);
        let all: Vec<_> = all.map(|number| service(number).to_string()).collect();
        world.write(&format!("many-{first:06}.yaml"), all.join("---\n"));
    }
}

/// For each kind of turn: the number of turns, their seconds in total, and an upper bound for the
/// seconds of the longest turn.
pub(crate) fn turns(agent: &Agent) -> BTreeMap<String, (u64, f64, f64)> {
    let text = agent.metrics("/metrics");
    let mut turns = BTreeMap::new();
    let lines = text.lines();
    for line in lines.filter_map(|line| line.strip_prefix("portolan_turn_duration_seconds_")) {
        let (labels, value) = line.rsplit_once("} ").expect("a sample");
        let label = |name: &str| {
            let (_, rest) = labels.split_once(&format!("{name}=\""))?;
            rest.split_once('"').map(|(value, _)| value)
        };
        let turn = turns
            .entry(label("kind").expect("a kind").to_owned())
            .or_insert((0, 0.0, f64::INFINITY));
        let value: f64 = value.parse().expect("a number");
        match line.split_once('{').expect("labels").0 {
            "count" => turn.0 = value as u64,
            "sum" => turn.1 = value,
            // The first bucket that counts all turns bounds the longest.
            _ if turn.2.is_infinite() && value as u64 == turn.0 => {
                turn.2 = label("le")
                    .and_then(|bound| bound.parse().ok())
                    .unwrap_or(f64::INFINITY);
            }
            _ => {}
        }
    }
    turns
}

#[test]
fn maps_grow_at_once_to_what_many_services_need_and_changes_go_on_meanwhile() {
    let given = env::var("PORTOLAN_SCALE_SERVICES").ok();
    let services = given
        .as_ref()
        .map_or(3000, |text| text.parse().expect("a number"));
    let world = World::serving();
    write(&world, 0..200);
    let sizes = if given.is_some() {
        String::new()
    } else {
        "portolan: {maps: {frontends: 1024, records: 1024, slots: 4096, backends: 4096}}\n".into()
    };
    let agent = world.start_configured(7, &sizes);
    assert!(world.connect(CART).is_ok());
    write(&world, 200..services);
    let served = || agent.metric("portolan_services") == Some(u64::from(services) + 1);
    within(LIMIT, "known", &agent, served);
    within(LIMIT, "none failed, no others being made", &agent, || {
        assert!(world.connect(CART).is_ok(), "{}", agent.log());
        let failed = agent.metric("portolan_services_failed");
        failed == Some(0) && generations(world.pins()).expect("pins").len() == 1
    });
    // A second growth is possible: the need is estimated from the services that are already stored.
    let growths = agent
        .metric("portolan_map_growths_total")
        .expect("a metric");
    assert!((1..=2).contains(&growths), "{growths}");
    let turns = turns(&agent);
    for (kind, (count, sum, longest)) in &turns {
        println!("{count:>6} turns of {kind}: {sum:.3} s, each within {longest} s");
    }
    // One turn with all these services would take ten times as long. On a busy machine some
    // services arrive only after the larger maps are made.
    let (count, _, longest) = turns["more-to-fill"];
    assert!(count > u64::from(services) / 600, "{count}");
    assert!(longest < 0.5, "{longest}");
    assert!(world.connect(CART).is_ok());
    assert_eq!(agent.health().0, 200);
}
