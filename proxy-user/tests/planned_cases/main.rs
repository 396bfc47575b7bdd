// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every conformance case checked by its plans alone: the objects of each step through model,
//! tracker and planner, then `decide` for each flow. No packet is sent; the conformance runner
//! checks what depends on earlier flows. Changes that are followed step by step lead to the same
//! plans as objects that are read at once.

mod cluster;

use std::{collections::BTreeSet, fs, path::PathBuf};

use anyhow::{Context, ensure};
use lab::cases::{
    cluster::ClusterState,
    format::{Case, Expect, Flow, Health},
    parse::files_in,
};

use cluster::{Cluster, Fate, Planned};

fn cases() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/cases").into()
}

/// Whether the plans lead to what the flow expects.
fn check(cluster: &Cluster<'_>, flow: &Flow) -> anyhow::Result<()> {
    if let Some(health) = flow.expect_health {
        return check_health(cluster, health);
    }
    let to = flow.to.context("no address is named")?;
    let expect = flow.expect.as_ref().context("nothing is expected")?;
    let fate = cluster.fate(flow.from, to, flow.protocol);
    let holds = match (expect, &fate) {
        (Expect::Untouched, Fate::Untouched)
        | (Expect::Reject, Fate::Reject)
        | (Expect::Drop, Fate::Drop) => true,
        // The node itself refuses connections to its ports where nobody listens.
        (Expect::Reject, Fate::Untouched) => cluster.node.ips.contains(&to.ip()),
        // A pod's own address leads to the pod without any service.
        (Expect::Backends(expected), Fate::Untouched) => expected.backends == [to],
        (
            Expect::Backends(expected),
            Fate::Forward {
                backends: planned,
                masquerade,
                sticky,
            },
        ) => {
            let backends: BTreeSet<_> = expected.backends.iter().copied().collect();
            // The plans do not say which backend an earlier flow has chosen.
            let may_have_past = expected.sticky || flow.source_ports.is_some();
            (backends == *planned || (may_have_past && backends.is_subset(planned)))
                && expected.masquerade.is_none_or(|one| one == *masquerade)
                && (!expected.sticky || *sticky)
        }
        _ => false,
    };
    ensure!(holds, "by the plans: {fate:?}");
    Ok(())
}

fn check_health(cluster: &Cluster<'_>, health: Health) -> anyhow::Result<()> {
    let plans = cluster.planned.plans.values();
    let plans = plans.filter_map(|plan| plan.health_check);
    let mut plans = plans.filter(|plan| plan.port == health.port);
    let plan = plans.next().context("no service is asked on this port")?;
    let status = if plan.local_endpoints > 0 { 200 } else { 503 };
    ensure!(status == health.status, "health status is {status}");
    Ok(())
}

/// Checks one case; returns how many flows it has.
fn run(case: Case) -> anyhow::Result<usize> {
    let (mut objects, mut checked) = (ClusterState::default(), 0);
    let mut followed = Planned::new(&case.node);
    followed.change(&[], &objects.render(&case.node, 0))?;
    for (number, step) in (1..).zip(&case.steps) {
        for deleted in &step.delete {
            objects.delete(deleted)?;
        }
        if let Some(text) = &step.apply {
            objects.apply(text)?;
        }
        let manifests = objects.render(&case.node, number);
        let cluster = Cluster::new(&case.node, &case.config, &manifests)?;
        followed.change(&step.delete, step.apply.as_deref().unwrap_or_default())?;
        ensure!(followed.plans == cluster.planned.plans, "step {number}");
        for flow in &step.flows {
            let found = check(&cluster, flow);
            found.with_context(|| format!("step {number}, {flow:?}"))?;
            checked += 1;
        }
    }
    Ok(checked)
}

#[test]
fn the_planned_results_of_every_conformance_case_are_as_expected() {
    let files = files_in(&cases()).expect("the cases are there");
    let (mut flows, mut failures) = (0, Vec::new());
    for path in &files {
        match Case::read(path).and_then(run) {
            Ok(checked) => flows += checked,
            Err(error) => failures.push(format!("{}: {error:#}", path.display())),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let cases = files.len();
    assert!(cases >= 60 && flows >= 300, "{cases} cases, {flows} flows");
}

#[test]
fn a_conformance_case_with_a_wrong_expectation_fails() {
    let path = cases().join("cluster-ip-tcp.yaml");
    let text = fs::read_to_string(path).expect("the case is there");
    let masquerade = ("masquerade: false", "masquerade: true");
    for (from, to) in [masquerade, ("ready: true", "ready: false")] {
        let wrong = Case::parse(&text.replace(from, to)).expect("a case");
        run(wrong).expect_err("it must not hold");
    }
}
