// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every reason for which a packet or a call is dropped, rejected or refused: the test provokes it
//! with real packets on a real node, and every source that an operator can ask must name it.
//! `cases` has a case for each reason.

mod cases;
mod packets;
mod scene;

use std::collections::{BTreeMap, BTreeSet};

use config::runbooks::of_outcome;
use nix::sys::signal::Signal;
use proxy_common::Counter;

use crate::{agent::eventually, trace::Tracing, world::World};
use cases::{CASES, Case};
use scene::Scene;

/// The only reason that a trace does not show: the socket has no entry that would tell what its
/// process has asked for.
const UNTRACED: Counter = Counter::SocketTableFull;

/// Counts by the name of their outcome.
type Counts = BTreeMap<String, u64>;

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
    let trace = Tracing::start(&world, &["--rate", "0"]);
    for case in CASES {
        provoke(case, &scene, &trace);
    }
    assert_eq!(counted(&scene).len(), Counter::ALL.len());
    let of_reasons = |mut counts: Counts| {
        let names: Vec<_> = reasons().iter().map(|reason| reason.name()).collect();
        counts.retain(|name, count| names.contains(&name.as_str()) && *count > 0);
        counts
    };
    for (what, counts) in [
        ("the metrics say the same", metrics as fn(&Scene<'_>) -> _),
        ("top counts what the counters count", topped),
    ] {
        eventually(what, &agent, || {
            of_reasons(counts(&scene)) == of_reasons(counted(&scene))
        });
    }
    let (status, said) = trace.end(Signal::SIGINT);
    assert!(status.success(), "{said}");
}

/// Runs one case: the counters count its reason and no other, and the trace shows it.
fn provoke(case: &Case, scene: &Scene<'_>, trace: &Tracing) {
    let name = case.reason.name();
    println!("{name}");
    if let Some(prepare) = case.prepare {
        prepare(scene);
    }
    let before = counted(scene);
    (case.provoke)(scene);
    eventually(name, scene.agent, || counted(scene)[name] > before[name]);
    let after = counted(scene);
    for other in reasons() {
        let expected = other == case.reason || case.beside.contains(&other);
        let counts = [&before, &after].map(|counts| counts[other.name()]);
        assert!(
            expected || counts[0] == counts[1],
            "{name} counts {}: {counts:?}",
            other.name()
        );
    }
    if case.reason != UNTRACED {
        let line = trace.wait(name, |line| line["outcome"] == name);
        assert!(line["before"].is_object(), "{line}");
        assert_eq!(line["reason"], case.reason.help().trim());
        assert_eq!(line["page"].as_str(), of_outcome(case.reason));
    }
    if let Some(undo) = case.undo {
        undo(scene);
    }
}

/// The counts that `portolan counters` prints.
fn counted(scene: &Scene<'_>) -> Counts {
    let rows = scene.world.json(&["counters"]);
    let rows = rows.as_array().into_iter().flatten().map(|row| {
        let name = row["name"].as_str().expect("a name");
        (name.to_owned(), row["count"].as_u64().expect("a count"))
    });
    rows.collect()
}

fn metrics(scene: &Scene<'_>) -> Counts {
    let text = scene.agent.metrics("/metrics");
    let rows = text.lines().filter_map(|line| {
        let line = line.strip_prefix("portolan_packets_total{outcome=\"")?;
        let (name, count) = line.split_once("\"} ")?;
        Some((name.to_owned(), count.parse().expect("a count")))
    });
    rows.collect()
}

/// The count of each reason in `portolan top --reasons`: the sum over all service ports and over
/// packets to no service.
fn topped(scene: &Scene<'_>) -> Counts {
    let mut counts = Counts::new();
    let rows = scene.world.json(&["top", "--reasons"]);
    for row in rows.as_array().into_iter().flatten() {
        let name = row["reason"].as_str().expect("a name");
        let counter = reasons().into_iter().find(|reason| reason.name() == name);
        let counter = counter.unwrap_or_else(|| panic!("no reason: {row}"));
        assert_eq!(row["help"], counter.help().trim());
        assert_eq!(row["page"].as_str(), of_outcome(counter));
        *counts.entry(name.to_owned()).or_default() += row["count"].as_u64().expect("a count");
    }
    counts
}

#[test]
fn every_drop_or_reject_reason_has_exactly_one_case() {
    let provoked: BTreeSet<_> = CASES.iter().map(|case| case.reason).collect();
    assert_eq!(CASES.len(), provoked.len(), "each once");
    assert_eq!(provoked, reasons());
}
