// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask e2e`: runs Kubernetes' own e2e tests in the cluster that `cluster up` has built,
//! and prints their results.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{cargo, cluster, command, fs};

/// Matches the e2e tests of what a service proxy is responsible for.
const FOCUS: &str = r"\[sig-network\] (Services|Conntrack|Networking Granular Checks|EndpointSlice|EndpointSliceMirroring|Traffic Distribution|LoadBalancers|SCTP)";
/// Matches tests that stop parts of the cluster, and tests of features that not every cluster has.
const SKIP: &str = r"\[Disruptive\]|\[Feature:";

/// Matches the e2e tests of network policies, which the pod network enforces, and those of them
/// that not every pod network passes.
const POLICIES: [&str; 2] = [
    r"\[sig-network\] Netpol",
    r"\[Disruptive\]|SCTPConnectivity",
];
/// How many tests run at once. One of network policies starts nine pods, and probes from all to
/// all.
const PROCS: u32 = 8;
const POLICY_PROCS: u32 = 3;

/// Tests that cannot run in this cluster: part of the name, and the reason.
const LEFT_OUT: [(&str, &str); 2] = [
    (
        "should be rejected for evicted pods",
        "the kubelets of this cluster do not count the use of local storage, so they evict no pod",
    ),
    (
        "DNS configMap nameserver",
        "this cluster's DNS server is not a pod with a ConfigMap",
    ),
];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Run the tests whose names match this regular expression
    #[arg(default_value = FOCUS)]
    focus: String,
    /// Run the tests of network policies instead. The cluster needs a pod network that enforces
    /// them: `cargo xtask cluster up --cni kube-router`
    #[arg(long, conflicts_with = "focus")]
    policies: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let folder = cargo::root().join("target/e2e");
    fs::create_dir_all(&folder)?;
    let programs = cluster::e2e_programs()?;
    let (mut command, mut proxy) = cluster::for_tests(&programs.join("ginkgo"))?;
    let (mut focus, mut skip, mut procs) = (arguments.focus.as_str(), SKIP, PROCS);
    if arguments.policies {
        [focus, skip] = POLICIES;
        procs = POLICY_PROCS;
        proxy += "-policies";
    }
    let report = folder.join(format!("{proxy}.json"));
    let left_out = LEFT_OUT.map(|(name, _)| name).join("|");
    command
        .arg(format!("--procs={procs}"))
        .arg(format!("--focus={focus}"))
        .arg(format!("--skip={skip}|{left_out}"))
        .args(["--timeout=90m", "--no-color", "--silence-skips"])
        .arg(format!("--output-dir={}", folder.display()))
        .arg(format!("--json-report={proxy}.json"))
        .arg(programs.join("e2e.test"))
        .args(["--", "--provider=skeleton"])
        .args(cluster::test_flags(&programs));
    _ = fs::remove_file(&report);
    let log = folder.join(format!("{proxy}.log"));
    eprintln!(
        "e2e: {proxy}, {procs} tests at once (usually 10 min); output in {}",
        log.display()
    );
    let status = command::log_to(&mut command, &log)?.status();
    let status = status.context("start ginkgo")?;
    let results = read(&report)
        .with_context(|| format!("the tests ended with {status} and wrote no report"))?;
    let passed = results.values().filter(|failure| failure.is_none()).count();
    for (name, failure) in &results {
        if let Some(failure) = failure {
            println!("FAILED {name}\n    {}", failure.replace('\n', "\n    "));
        }
    }
    println!("{proxy}: {passed} of {} passed", results.len());
    for (name, reason) in LEFT_OUT {
        println!("left out: {name}: {reason}");
    }
    ensure!(
        passed == results.len() && passed > 0,
        "a test has failed, or none has run; see {}",
        log.display()
    );
    Ok(())
}

/// The message of each e2e test's failure; None if it passed.
type Results = BTreeMap<String, Option<String>>;

fn read(report: &Path) -> Result<Results> {
    let suites: Value = serde_json::from_slice(&fs::read(report)?)
        .with_context(|| format!("{} is not a report of ginkgo", report.display()))?;
    Ok(results(&suites))
}

fn results(suites: &Value) -> Results {
    let suites = suites.as_array().into_iter().flatten();
    let specs = suites.flat_map(|suite| suite["SpecReports"].as_array().into_iter().flatten());
    specs
        .filter(|spec| spec["LeafNodeType"] == "It" && spec["State"] != "skipped")
        .map(|spec| {
            let parts = spec["ContainerHierarchyTexts"]
                .as_array()
                .into_iter()
                .flatten();
            let parts = parts.chain([&spec["LeafNodeText"]]);
            let name: Vec<_> = parts.filter_map(Value::as_str).collect();
            let failure = spec["Failure"]["Message"].as_str();
            let has_failed = spec["State"] != "passed";
            let failure = has_failed.then(|| failure.unwrap_or_default().to_owned());
            (name.join(" "), failure)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_e2e_report_gives_the_tests_that_ran_with_their_outcome() {
        let test = |name: &str, state: &str| {
            json!({"LeafNodeType": "It", "State": state, "LeafNodeText": name,
                "ContainerHierarchyTexts": ["Services"], "Failure": {"Message": "timed out"}})
        };
        let tests = [
            test("a", "failed"),
            test("b", "skipped"),
            test("c", "passed"),
        ];
        let suite = json!({"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"});
        let results = results(&json!([{"SpecReports": tests}, {"SpecReports": [suite]}]));
        let failed = ("Services a".to_owned(), Some("timed out".to_owned()));
        assert_eq!(results, [failed, ("Services c".to_owned(), None)].into());
    }
}
