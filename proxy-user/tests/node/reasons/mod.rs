// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every reason for which a packet or a call is dropped, rejected or refused: the test provokes it
//! with real packets on a real node, and every source that an operator can ask must name it.
//! `cases` has a case for each reason, `witnesses` a type for each source.

mod cases;
mod packets;
mod scene;
mod witnesses;

use std::collections::BTreeSet;

use config::runbooks::of_outcome;
use proxy_common::Counter;

use crate::world::World;
use cases::{CASES, Case};
use scene::Scene;
use witnesses::{Counters, Explained, Metrics, Topped, Traced, Witness};

/// Reasons that cannot be provoked here, each with a sentence that says why.
const NOT_PROVOKED: [(Counter, &str); 0] = [];

/// The reasons: every outcome that harms a client, so that it has a runbook.
fn reasons() -> BTreeSet<Counter> {
    let all = Counter::ALL.iter().copied();
    all.filter(|counter| of_outcome(*counter).is_some())
        .collect()
}

#[test]
fn every_drop_or_reject_reason_is_named_by_counters_metrics_and_commands() {
    let world = World::serving();
    scene::write_objects(&world);
    let agent = world.start_configured(7, scene::CONFIG);
    let scene = Scene::new(&world, &agent);
    let mut witnesses: [Box<dyn Witness>; 5] = [
        Box::new(Counters::default()),
        Box::new(Explained),
        Box::new(Topped::default()),
        Box::new(Metrics::new(&scene)),
        Box::new(Traced::new(&scene)),
    ];
    for case in CASES {
        provoke(case, &scene, &mut witnesses);
    }
    for witness in &mut witnesses {
        witness.at_the_end(&scene);
    }
    drop(scene);
    assert!(agent.stop().success());
}

/// Runs one case while all witnesses watch.
fn provoke(case: &Case, scene: &Scene<'_>, witnesses: &mut [Box<dyn Witness>]) {
    println!("{}", case.reason.name());
    if let Some(prepare) = case.prepare {
        prepare(scene);
    }
    for witness in &mut *witnesses {
        witness.before(scene, case);
    }
    (case.provoke)(scene);
    for witness in &mut *witnesses {
        witness.after(scene, case);
    }
    if let Some(undo) = case.undo {
        undo(scene);
    }
}

#[test]
fn every_drop_or_reject_reason_has_exactly_one_case() {
    let cases = CASES.iter().map(|case| case.reason);
    let mut named: Vec<_> = cases.collect();
    for (counter, why) in NOT_PROVOKED {
        assert!(why.ends_with('.'), "a sentence: {why}");
        named.push(counter);
    }
    let provoked: BTreeSet<_> = named.iter().copied().collect();
    assert_eq!(named.len(), provoked.len(), "each once: {named:?}");
    assert_eq!(provoked, reasons());
}
