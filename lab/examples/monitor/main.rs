// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks the dashboard and the alerts in deploy/chart: evaluates each of their expressions in a
//! real Prometheus that scrapes a real agent with a real API server. Each expression must be valid,
//! and each series that it selects must exist. After that, an outage of the API server and the end
//! of the agent must trigger their alerts. Started by `cargo xtask monitor`.

mod expressions;
mod picture;
mod prometheus;
mod world;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use lab::node::{binary, bpffs, netns::check_privilege};
use serde_json::Value;

use expressions::Expression;
use prometheus::Prometheus;
use world::World;

#[derive(Parser)]
struct Arguments {
    /// The folder with prometheus and promtool.
    #[arg(long)]
    programs: PathBuf,
    /// The agent's binary; default: the one beside this program.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Draw the dashboard into this file, after a minute of load.
    #[arg(long)]
    picture: Option<PathBuf>,
}

/// How many seconds the picture of the dashboard shows.
const DRAWN_SECONDS: u64 = 60;

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("monitor: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    check_privilege()?;
    bpffs::prepare()?;
    let clone = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let rules = rules(&clone)?;
    let folder = tempfile::tempdir().context("make a folder")?;
    let file = folder.path().join("rules.yaml");
    fs::write(&file, rules.to_string()).context("write the rules")?;
    check_rules(&arguments.programs, &clone, &file, &rules)?;

    let binary = binary::find(arguments.binary.as_deref())?;
    let mut expressions = expressions::of_rules(&rules)?;
    let panels = expressions::panels(&clone)?;
    expressions.extend(expressions::of_panels(&panels));
    let node = World::node()?;
    let mut world = World::build(&node, &binary)?;
    let prometheus = Prometheus::start(
        &node,
        &arguments.programs.join("prometheus"),
        &file,
        folder.path(),
    )?;
    // The API server does not run now.
    prometheus.wait_for_alert("PortolanSourceOutage", true)?;
    world.serve()?;
    prometheus.wait_for_alert("PortolanSourceOutage", false)?;
    // A rate needs two scrapes after the last series has appeared: wait for them.
    prometheus.scrape_times(3)?;
    run_all(&prometheus, &expressions)?;
    prometheus.check_rules_health(alerts(&rules).count())?;
    if let Some(file) = &arguments.picture {
        // Twelve seconds more, because rates look back some seconds.
        world.have_load(Duration::from_secs(DRAWN_SECONDS + 12))?;
        picture::draw(&prometheus, &panels, DRAWN_SECONDS, file)?;
        println!("{} panels are drawn", panels.len());
    }
    world.end_agent();
    prometheus.wait_for_alert("PortolanAgentDown", true)?;
    println!("an outage of the API server and the end of the agent have reached their alerts");
    Ok(())
}

/// Returns the alerting rules as Prometheus reads them: without the Kubernetes object around them.
fn rules(clone: &Path) -> Result<Value> {
    let file = clone.join("deploy/chart/alerts/alerts.yaml");
    let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let object: Value = serde_saphyr::from_str(&text).context("read the alerts")?;
    Ok(object["spec"].clone())
}

fn alerts(rules: &Value) -> impl Iterator<Item = &Value> {
    let groups = rules["groups"].as_array().into_iter().flatten();
    groups.flat_map(|group| group["rules"].as_array().into_iter().flatten())
}

/// Checks the rules by promtool, and runs the rules' own tests. Each alert must fire in one of the
/// tests, and be quiet in another.
fn check_rules(programs: &Path, clone: &Path, file: &Path, rules: &Value) -> Result<()> {
    let promtool = programs.join("promtool");
    let run = |arguments: &[&Path]| -> Result<()> {
        let output = Command::new(&promtool).args(arguments).output();
        let output = output.context("start promtool")?;
        ensure!(
            output.status.success(),
            "promtool: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    };
    run(&["check".as_ref(), "rules".as_ref(), file])?;
    let tests = fs::read_to_string(clone.join("xtask/monitor/tests.yaml"))
        .context("read the alerts' tests")?;
    let place = tempfile::tempdir().context("make a folder")?;
    let at = |name: &str| place.path().join(name);
    fs::write(at("rules.yaml"), with_summaries_only(rules).to_string())
        .context("write the rules")?;
    fs::write(at("tests.yaml"), &tests).context("write the alerts' tests")?;
    run(&["test".as_ref(), "rules".as_ref(), &at("tests.yaml")])?;
    let tests: Value = serde_saphyr::from_str(&tests).context("read the alerts' tests")?;
    let [mut firing, mut quiet] = [(); 2].map(|()| BTreeSet::new());
    for test in tests["tests"].as_array().into_iter().flatten() {
        for case in test["alert_rule_test"].as_array().into_iter().flatten() {
            let name = case["alertname"].as_str().unwrap_or_default();
            let is_quiet = case["exp_alerts"].as_array().is_none_or(Vec::is_empty);
            if is_quiet { &mut quiet } else { &mut firing }.insert(name);
        }
    }
    for alert in alerts(rules) {
        let name = alert["alert"].as_str().context("a rule without a name")?;
        for (cases, which) in [(&firing, "fires"), (&quiet, "is quiet")] {
            ensure!(cases.contains(name), "no test in which {name} {which}");
        }
    }
    println!(
        "{} alerts: promtool takes them, their tests pass",
        firing.len()
    );
    Ok(())
}

/// Returns the rules with only the annotation `summary`: the tests compare no other annotation.
fn with_summaries_only(rules: &Value) -> Value {
    let mut rules = rules.clone();
    let groups = rules["groups"].as_array_mut().into_iter().flatten();
    for group in groups {
        for rule in group["rules"].as_array_mut().into_iter().flatten() {
            if let Some(annotations) = rule["annotations"].as_object_mut() {
                annotations.retain(|name, _| name == "summary");
            }
        }
    }
    rules
}

/// Evaluates all expressions. Fails with those that are invalid or select a series that does not
/// exist.
fn run_all(prometheus: &Prometheus<'_>, expressions: &[Expression]) -> Result<()> {
    let mut wrong = Vec::new();
    let mut selectors = BTreeSet::new();
    for Expression { place, text } in expressions {
        match prometheus.run(text) {
            Ok(of_it) => selectors.extend(of_it),
            Err(error) => wrong.push(format!("{place}: {error:#}\n  {text}")),
        }
    }
    if !wrong.is_empty() {
        bail!("{} expressions:\n{}", wrong.len(), wrong.join("\n"));
    }
    println!(
        "{} expressions with {} selectors: all valid, all series there",
        expressions.len(),
        selectors.len()
    );
    Ok(())
}
