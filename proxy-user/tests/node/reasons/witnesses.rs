// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sources that name a reason: one type for each. Each is asked before a case, after it, and at
//! the end of all cases.

use std::collections::BTreeMap;

use config::runbooks::of_outcome;
use nix::sys::signal::Signal;
use proxy_common::Counter;

use super::{
    cases::{Case, Explain},
    reasons,
    scene::Scene,
};
use crate::{agent::eventually, explain::explain, trace::Tracing};

/// A source that watches every case and panics if it does not name the reason.
pub(super) trait Witness {
    fn before(&mut self, scene: &Scene<'_>, case: &Case);
    fn after(&mut self, scene: &Scene<'_>, case: &Case);
    fn at_the_end(&mut self, scene: &Scene<'_>);
}

/// The count of every outcome.
type Counts = BTreeMap<String, u64>;

/// The counts that `portolan counters` prints.
fn counted(scene: &Scene<'_>) -> Counts {
    let rows = scene.world.json(&["counters"]);
    let rows = rows.as_array().into_iter().flatten().map(|row| {
        let name = row["name"].as_str().expect("a name");
        (name.to_owned(), row["count"].as_u64().expect("a count"))
    });
    rows.collect()
}

/// `portolan counters`: it has counted the reason, and no other.
#[derive(Default)]
pub(super) struct Counters(Counts);

impl Witness for Counters {
    fn before(&mut self, scene: &Scene<'_>, _: &Case) {
        self.0 = counted(scene);
    }
    fn after(&mut self, scene: &Scene<'_>, case: &Case) {
        let before = &self.0;
        eventually(case.reason.name(), scene.agent, || {
            counted(scene)[case.reason.name()] > before[case.reason.name()]
        });
        let after = counted(scene);
        for other in reasons() {
            let expected = other == case.reason || case.beside.contains(&other);
            let counts = [&before, &&after].map(|counts| counts[other.name()]);
            assert!(
                expected || counts[0] == counts[1],
                "{} counts {}: {counts:?}",
                case.reason.name(),
                other.name()
            );
        }
    }
    fn at_the_end(&mut self, scene: &Scene<'_>) {
        let all = counted(scene);
        let names: Vec<_> = Counter::ALL.iter().map(|counter| counter.name()).collect();
        assert_eq!(all.len(), names.len(), "{all:?}");
    }
}

/// `portolan explain`: asked about a flow before its packets.
pub(super) struct Explained;

impl Witness for Explained {
    fn before(&mut self, scene: &Scene<'_>, case: &Case) {
        match case.explain {
            Explain::Outcome(from, to) => {
                let said = explain(scene.world, from, to, &[]);
                assert_eq!(said.outcome(), case.reason.name(), "{:#}", said.report);
                assert_eq!(said.status, 3, "{:#}", said.report);
            }
            Explain::Policy(from, to, policy) => {
                let said = explain(scene.world, from, to, &[]);
                assert_eq!(said.outcome(), policy.name(), "{:#}", said.report);
                assert_eq!(said.status, 3, "{:#}", said.report);
            }
            Explain::CannotBeAsked(why) => assert!(why.ends_with('.'), "a sentence: {why}"),
        }
    }
    fn after(&mut self, _: &Scene<'_>, _: &Case) {}
    fn at_the_end(&mut self, _: &Scene<'_>) {}
}

/// `/metrics`: the count of every reason rises as in the map, which the agent reads once a second.
pub(super) struct Metrics(Counts);

impl Metrics {
    pub(super) fn new(scene: &Scene<'_>) -> Self {
        Self(metrics(scene))
    }
}

fn metrics(scene: &Scene<'_>) -> Counts {
    let text = scene.agent.metrics("/metrics");
    let lines = text.lines();
    let rows = lines.filter_map(|line| {
        let line = line.strip_prefix("portolan_packets_total{outcome=\"")?;
        let (name, count) = line.split_once("\"} ")?;
        Some((name.to_owned(), count.parse().expect("a count")))
    });
    rows.collect()
}

impl Witness for Metrics {
    fn before(&mut self, _: &Scene<'_>, _: &Case) {}
    fn after(&mut self, _: &Scene<'_>, _: &Case) {}
    fn at_the_end(&mut self, scene: &Scene<'_>) {
        let of_reasons = |counts: &Counts| -> Vec<(&str, u64)> {
            let all = reasons().into_iter();
            all.map(|reason| {
                (
                    reason.name(),
                    counts.get(reason.name()).copied().unwrap_or(0),
                )
            })
            .collect()
        };
        eventually("the metrics say the same", scene.agent, || {
            of_reasons(&metrics(scene)) == of_reasons(&counted(scene))
        });
        let now = metrics(scene);
        for (name, count) in of_reasons(&now) {
            let before = self.0.get(name).copied().unwrap_or(0);
            assert!(count > before, "{name}: {count}");
        }
    }
}

/// `portolan top`: the row of the reason counts it, and no other row counts more.
#[derive(Default)]
pub(super) struct Topped(Counts);

/// The count of each reason: the sum over all service ports and over packets to no service.
fn topped(scene: &Scene<'_>) -> Counts {
    let said = scene.world.json(&["top", "--reasons"]);
    let mut counts = Counts::new();
    for row in said.as_array().into_iter().flatten() {
        let name = row["reason"].as_str().expect("a name");
        let counter = reasons().into_iter().find(|reason| reason.name() == name);
        let counter = counter.unwrap_or_else(|| panic!("no reason: {row}"));
        assert_eq!(row["help"], counter.help().trim());
        assert_eq!(row["page"].as_str(), of_outcome(counter));
        *counts.entry(name.to_owned()).or_default() += row["count"].as_u64().expect("a count");
    }
    counts
}

impl Witness for Topped {
    fn before(&mut self, scene: &Scene<'_>, _: &Case) {
        self.0 = topped(scene);
    }
    fn after(&mut self, scene: &Scene<'_>, case: &Case) {
        let of = |counts: &Counts, reason: Counter| {
            counts.get(reason.name()).copied().unwrap_or_default()
        };
        let mut now = Counts::new();
        eventually(case.reason.name(), scene.agent, || {
            now = topped(scene);
            of(&now, case.reason) > of(&self.0, case.reason)
        });
        for other in reasons() {
            let expected = other == case.reason || case.beside.contains(&other);
            let counts = [&self.0, &now].map(|counts| of(counts, other));
            assert!(
                expected || counts[0] == counts[1],
                "{}: {} {counts:?}",
                case.reason.name(),
                other.name()
            );
        }
        let table = scene.world.told(&["top", "--reasons"]);
        assert!(table.contains(case.reason.name()), "{table}");
    }
    fn at_the_end(&mut self, scene: &Scene<'_>) {
        eventually("top counts what the counters count", scene.agent, || {
            let counted = counted(scene);
            let of_reasons = reasons()
                .into_iter()
                .map(|reason| (reason.name().to_owned(), counted[reason.name()]));
            topped(scene) == of_reasons.filter(|(_, count)| *count > 0).collect()
        });
    }
}

/// `portolan trace`: it shows each reason when it happens.
pub(super) struct Traced(Option<Tracing>);

/// Reasons that the trace does not show, each with a sentence that says why.
const NOT_TRACED: [(Counter, &str); 1] = [(
    Counter::SocketTableFull,
    "The socket has no entry that would tell what its process has asked for.",
)];

impl Traced {
    pub(super) fn new(scene: &Scene<'_>) -> Self {
        Self(Some(Tracing::start(scene.world, &["--rate", "0"])))
    }
}

impl Witness for Traced {
    fn before(&mut self, _: &Scene<'_>, _: &Case) {}
    fn after(&mut self, _: &Scene<'_>, case: &Case) {
        if NOT_TRACED
            .iter()
            .any(|(counter, _)| *counter == case.reason)
        {
            return;
        }
        let trace = self.0.as_ref().expect("until the end");
        let name = case.reason.name();
        let line = trace.wait(name, |line| line["outcome"] == name);
        assert!(line["before"].is_object(), "{line}");
        assert_eq!(line["reason"], case.reason.help().trim());
        assert_eq!(line["page"].as_str(), of_outcome(case.reason));
    }
    fn at_the_end(&mut self, _: &Scene<'_>) {
        for (_, why) in NOT_TRACED {
            assert!(why.ends_with('.'), "a sentence: {why}");
        }
        let trace = self.0.take().expect("until the end");
        let (status, said) = trace.end(Signal::SIGINT);
        assert!(status.success(), "{said}");
    }
}
