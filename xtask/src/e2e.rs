// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask e2e`: runs Kubernetes' own e2e tests in the cluster that `cluster up` has built,
//! and prints a table of their results with each proxy.

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
/// How many tests of network policies run at once: each starts nine pods, and probes from all to
/// all.
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
    /// Leave out those whose names match this one
    #[arg(long, default_value = SKIP)]
    skip: String,
    /// How many tests run at once
    #[arg(long, default_value_t = 8)]
    procs: u32,
    /// Run the tests of network policies instead. The cluster needs a pod network that enforces
    /// them: `cargo xtask cluster up --cni kube-router`
    #[arg(long, conflicts_with_all = ["focus", "skip", "procs"])]
    policies: bool,
    /// Run no test; print the table of all earlier runs
    #[arg(long)]
    table: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let folder = cargo::root().join("target/e2e");
    if arguments.table {
        print!("{}", table(&kept(&folder)?));
        return Ok(());
    }
    fs::create_dir_all(&folder)?;
    let programs = cluster::e2e_programs()?;
    let (mut command, mut proxy) = cluster::for_tests(&programs.join("ginkgo"))?;
    let (mut focus, mut skip) = (arguments.focus.as_str(), arguments.skip.as_str());
    let mut procs = arguments.procs;
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
    let passed = results.values().filter(|result| result.passed).count();
    for (name, result) in results.iter().filter(|(_, result)| !result.passed) {
        let failure = result.failure.replace('\n', "\n    ");
        println!("FAILED {name}\n    {failure}");
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

/// The result of one e2e test.
#[derive(Clone, PartialEq, Debug)]
struct Outcome {
    passed: bool,
    seconds: f64,
    /// The failure's message; empty if the test passed.
    failure: String,
}

type Results = BTreeMap<String, Outcome>;

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
            let outcome = Outcome {
                passed: spec["State"] == "passed",
                seconds: spec["RunTime"].as_f64().unwrap_or_default() / 1e9,
                failure: failure.unwrap_or_default().to_owned(),
            };
            (name.join(" "), outcome)
        })
        .collect()
}

/// Reads the reports of all earlier runs. Key: the proxy.
fn kept(folder: &Path) -> Result<BTreeMap<String, Results>> {
    let mut runs = BTreeMap::new();
    for path in fs::children(folder)? {
        if path.extension().is_some_and(|kind| kind == "json")
            && let Some(proxy) = path.file_stem()
        {
            runs.insert(proxy.display().to_string(), read(&path)?);
        }
    }
    Ok(runs)
}

/// Returns a Markdown table: a row for each test, a column for each run, with the duration.
fn table(runs: &BTreeMap<String, Results>) -> String {
    let names: Vec<_> = runs.keys().map(String::as_str).collect();
    let mut text = format!("| test | {} |\n", names.join(" | "));
    text += &format!("| --- |{}\n", " ---: |".repeat(runs.len()));
    let mut tests: Vec<_> = runs.values().flat_map(BTreeMap::keys).collect();
    tests.sort_unstable();
    tests.dedup();
    for test in tests {
        let shown = test
            .trim_start_matches("[sig-network] ")
            .replace('|', "\\|");
        text += &format!("| {shown} |");
        for results in runs.values() {
            text += &match results.get(test) {
                Some(result) if result.passed => format!(" {:.0} s |", result.seconds),
                Some(_) => " FAILED |".to_owned(),
                None => " not run |".to_owned(),
            };
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(state: &str) -> Results {
        results(&json!([{"SpecReports": [
            {"LeafNodeType": "It", "State": state, "RunTime": 2_400_000_000_u64, "LeafNodeText": "should serve",
             "ContainerHierarchyTexts": ["[sig-network] Services"], "Failure": {"Message": "timed out"}},
            {"LeafNodeType": "It", "State": "skipped", "LeafNodeText": "other"},
            {"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
        ]}]))
    }

    #[test]
    fn an_e2e_report_gives_the_tests_that_ran_with_their_outcome() {
        let results = report("failed");
        let (name, outcome) = results.first_key_value().expect("one test");
        assert_eq!(
            (results.len(), name.as_str()),
            (1, "[sig-network] Services should serve")
        );
        assert!(!outcome.passed);
        assert_eq!(outcome.failure, "timed out");
    }

    #[test]
    fn the_e2e_table_has_a_column_for_each_run() {
        let runs = BTreeMap::from([
            ("a".to_owned(), report("passed")),
            ("b".to_owned(), report("panicked")),
            ("c".to_owned(), Results::new()),
        ]);
        let table = table(&runs);
        assert_eq!(
            table.lines().last(),
            Some("| Services should serve | 2 s | FAILED | not run |")
        );
    }
}
