// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask test`: runs lints and all tests, stage by stage, with one summary at the end.

use std::{
    env::consts::ARCH,
    process::{Command, Stdio},
    thread,
    time::Instant,
};

use anyhow::{Context, Result, ensure};

use crate::{
    cargo::{self, HOST_PACKAGES, Workspace},
    command, deploy, fs, host, kernels,
    lab::{self, API, CONFORMANCE, FUZZ, SOCKETS},
    lint,
    setup::{self, Needs, go},
    summary::{Stage, Tally, failed_test, page, summary, timed_test},
};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// What to run; without it, what a contributor and CI run: the lints and all suites but `lab`,
    /// one setting of the conformance cases, and the oldest kernel
    #[arg(value_enum)]
    suite: Option<Suite>,
    /// Passed on to the test programs: part of a test's name, --nocapture, ... (not with `all`)
    #[arg(last = true)]
    rest: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Suite {
    /// The tests of the crates that need no kernel program: no privilege, and nothing to set up
    Quick,
    /// Host tests: no privilege, no kernel
    Unit,
    /// The kernel programs, packet by packet (root)
    Packet,
    /// The kernel programs against models, by packets and by sockets: kept sequences, and new ones
    /// for half a minute (root)
    Fuzz,
    /// Plan and apply against real maps (root)
    Maps,
    /// The agent among network namespaces with real sockets and a real API server (root)
    Node,
    /// Every conformance case in eight settings: pods bridged and routed, socketBalancing all and
    /// host, forwarding stack and auto, XDP native at the uplink, objects from manifests and
    /// from real API servers (root)
    Conformance,
    /// deploy/: the chart and the manifests, also against a real API server
    Deploy,
    /// The programs, packet tests and an agent, on Debian's kernels in qemu (root)
    Kernels,
    /// Ordinary life on a node: a minute with pods bridged, one with pods routed, and (not without
    /// a suite's name) one in which the agent is disturbed (root)
    Soak,
    /// The comparison of proxies in the lab, and a fleet, quickly: whether every measurement works
    /// (root)
    Lab,
    /// All of these, and the lints: every kernel of Debian's stable releases; of the conformance
    /// cases all in one setting, and in the other seven the share of the day; the agent with the
    /// oldest and the newest API server
    All,
}

/// Test programs that need root, with the suite of each; all others belong to the unit tests.
const PRIVILEGED: [(Suite, &str); 7] = [
    (Suite::Packet, "packet"),
    (Suite::Fuzz, FUZZ),
    (Suite::Maps, "maps"),
    (Suite::Node, "node"),
    (Suite::Node, "attacks"),
    (Suite::Node, SOCKETS),
    (Suite::Node, "harness"),
];

/// Plumbing, balancing, forwarding, XDP and source of every stage of conformance cases. Balancing
/// `all` has one stage for each forwarding, because the forwarding changes only TCP between two
/// pods of the node there. XDP has one stage, because XDP takes only packets between outside and
/// other nodes, which are the same in every setting. Source `api` has one stage, because the agent
/// handles an object the same from any source, and an API server for every case takes a minute
/// more; and one with the newest server.
const SETTINGS: [&str; 8] = [
    "bridge all auto off api",
    "bridge host stack off manifests",
    "bridge host auto off manifests",
    "routed all stack off manifests",
    "routed host stack off manifests",
    "routed host auto off manifests",
    "bridge host auto native manifests",
    "bridge all auto off api 1.37",
];
const FLAGS: &str = "--plumbing --socket-balancing --forwarding --xdp --source";

/// Tests of `node` that take minutes: `cargo xtask test` leaves them to `all`. One builds an agent
/// with another layout of its maps; tests/maps and the units of datapath test the copying itself.
const LONG: [&str; 2] = ["handover::draining_upgrades", "servers::"];

/// The oldest and the newest version of Kubernetes whose API servers `all` runs, as docs/support.md
/// has them, each built from the module `kubernetes-VERSION`, and the tests of `node` that have a
/// server. A stage that has a version in its name runs with that one.
const VERSIONS: [&str; 2] = ["1.30", "1.37"];
const WITH_SERVER: [&str; 2] = ["cluster::", "gateways::"];

/// The page with the results of the last `cargo xtask test all`.
const RESULTS: &str = "docs/dev/results.md";

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let (suite, rest) = (arguments.suite, &arguments.rest[..]);
    let is_all = suite == Some(Suite::All);
    let is_one = suite.is_some() && !is_all;
    let privileged = !matches!(suite, Some(Suite::Quick | Suite::Unit | Suite::Deploy));
    if privileged {
        let instead = "; `cargo xtask test quick`, `unit` and `deploy` run without";
        host::require_root("this test", instead)?;
    }
    ensure!(
        is_one || rest.is_empty(),
        "arguments for the test programs need the name of one suite: cargo xtask test packet -- NAME"
    );
    if !matches!(suite, Some(Suite::Quick | Suite::Deploy)) {
        setup::run(if privileged { Needs::All } else { Needs::Build })?;
    }
    if privileged {
        host::ensure_bpffs()?;
    }

    let workspace = Workspace::read()?;
    let facts = is_all.then(facts).transpose()?;
    let wanted = |candidate| !is_one || suite == Some(candidate);
    let mut stages = Vec::new();
    if !is_one {
        stages.push(timed("lint", |_| lint::check_all()));
    }
    // The stage `unit` includes the tests of `quick`.
    if suite == Some(Suite::Quick) {
        stages.push(quick(rest));
    }
    if wanted(Suite::Unit) {
        stages.push(unit(&workspace, rest));
    }
    for (_, target) in PRIVILEGED.iter().filter(|(suite, _)| wanted(*suite)) {
        let skipped: &[&str] = match *target {
            // Run in a stage of their own, `fuzz sockets`.
            SOCKETS => &[lab::SOCKETS_MODULE],
            "node" if suite.is_none() => &LONG,
            _ => &[],
        };
        let skipped = skipped.iter().flat_map(|name| ["--skip", *name]);
        let skipped: Vec<_> = skipped.map(str::to_owned).collect();
        stages.push(program(target, target, &[rest, &skipped].concat()));
    }
    for version in VERSIONS.iter().filter(|_| is_all) {
        let names = WITH_SERVER.map(str::to_owned);
        stages.push(program(&format!("node {version}"), "node", &names));
    }
    if wanted(Suite::Fuzz) {
        let all = [lab::SOCKETS_MODULE.to_owned()];
        let rest = if rest.is_empty() { &all[..] } else { rest };
        let rest = [rest, &["--show-output".to_owned()]].concat();
        stages.push(program("fuzz sockets", SOCKETS, &rest));
    }
    if wanted(Suite::Conformance) {
        let count = if suite.is_none() { 1 } else { SETTINGS.len() };
        for (number, setting) in SETTINGS.iter().enumerate().take(count) {
            let pairs = FLAGS.split(' ').zip(setting.split(' '));
            let mut words: Vec<_> = pairs.flat_map(|(flag, value)| [flag, value]).collect();
            // Of all tests, the first setting runs every case, the others an equal share each.
            let share = format!("{number}/{}", SETTINGS.len() - 1);
            if is_all && number > 0 {
                words.extend(["--share", &share]);
            }
            words.extend(rest.iter().map(String::as_str));
            let words: Vec<_> = words.into_iter().map(str::to_owned).collect();
            let name = format!("{CONFORMANCE} {setting}");
            stages.push(program(&name, CONFORMANCE, &words));
        }
    }
    if wanted(Suite::Soak) {
        stages.push(soaked(rest, suite.is_some()));
    }
    if wanted(Suite::Deploy) {
        // Only the suite `deploy` by itself builds tools that take minutes.
        stages.push(timed("deploy", |seen| deploy::check(rest, is_one, seen)));
    }
    if wanted(Suite::Kernels) {
        let only_oldest = suite.is_none();
        stages.push(timed("kernels", |seen| kernels::test(only_oldest, seen)));
    }
    if is_all || suite == Some(Suite::Lab) {
        stages.push(quick_lab("quick lab", lab::COMPARE, rest));
        stages.push(quick_lab("quick fleet", lab::FLEET, &[]));
    }

    // Words for a test program may ask for more than the budget is for.
    if rest.is_empty() {
        for stage in &mut stages {
            stage.judge(workspace.stage_budget(&stage.name));
        }
    }
    if let Some(facts) = facts {
        fs::write(cargo::root().join(RESULTS), page(&facts, &stages))?;
    }
    println!("\n{}", summary(&stages));
    if stages.iter().any(Stage::has_failed) {
        std::process::exit(1);
    }
    Ok(())
}

/// Returns lines about the commit, the date and the machine.
fn facts() -> Result<String> {
    let git = |words| cargo::git(words).unwrap_or_else(|_| "unknown".into());
    let commit = git("rev-parse --short=12 HEAD");
    let tree = match git("status --porcelain").is_empty() {
        true => "clean",
        false => "changed",
    };
    let mut date = command::of("date", "--utc +%Y-%m-%d,%H:%M");
    let date = command::output(&mut date, "ask for the date")?.replace(',', " at ");
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let processors = fs::read_to_string("/proc/cpuinfo")?;
    let mut lines = processors.lines();
    let model = lines.find_map(|line| line.strip_prefix("model name\t: "));
    let model = model.unwrap_or(ARCH);
    let count = thread::available_parallelism().map_or(1, usize::from);
    let (date, kernel) = (date.trim(), kernel.trim());
    Ok(format!(
        "- commit {commit}, its tree {tree}\n- begun {date} UTC\n- Linux {kernel}, {count} processors: {model}\n"
    ))
}

/// Runs the unit tests of the crates that can be built without the kernel programs.
fn quick(rest: &[String]) -> Stage {
    timed("quick", |seen| {
        let mut command = cargo::cargo("test");
        command.args(["--locked", "--no-fail-fast", "--lib"]);
        for package in "proxy-common portolan-control portolan-linux portolan-source".split(' ') {
            command.args(["--package", package]);
        }
        follow(command.arg("--").args(rest), seen)
    })
}

/// Runs unit tests, documentation tests, and the integration tests that need no root.
fn unit(workspace: &Workspace, rest: &[String]) -> Stage {
    let is_privileged =
        |target: &str| target == CONFORMANCE || PRIVILEGED.iter().any(|(_, name)| *name == target);
    timed("unit", |seen| {
        let mut command = cargo::cargo("test");
        command
            .args(["--locked", "--no-fail-fast"])
            .args(HOST_PACKAGES)
            .args(["--lib", "--bins"]);
        let targets = workspace.test_targets();
        for target in targets.iter().filter(|target| !is_privileged(target)) {
            command.args(["--test", target]);
        }
        report_times(command.arg("--"));
        let tests = follow(command.args(rest), seen);
        let mut command = cargo::cargo("test");
        command.args(["--locked", "--doc"]).args(HOST_PACKAGES);
        let documentation = follow(command.arg("--").args(rest), seen);
        tests.and(documentation)
    })
}

/// How many failed tests of a program are run again at most. More of them are no accident.
const RUN_AGAIN: usize = 3;

/// Runs a test program that needs root, and its failed tests once more: they can fail because other
/// processes use the machine's processors and network at the same time.
fn program(name: &str, target: &str, rest: &[String]) -> Stage {
    let first = once(name, target, rest);
    if first.failures.is_empty() || first.failures.len() > RUN_AGAIN {
        return first;
    }
    let mut again: Vec<String>;
    if target == CONFORMANCE {
        again = rest.to_vec();
        if let Some(share) = rest.iter().position(|word| word == "--share") {
            again.drain(share..share + 2);
        }
        // A failure begins with the name of the case.
        let cases = first.failures.iter();
        let cases = cases.filter_map(|failure| failure.split(' ').next());
        again.extend(cases.flat_map(|case| ["--case", case].map(str::to_owned)));
    } else {
        again = ["--exact", "--test-threads=1"].map(str::to_owned).into();
        again.extend(first.failures.iter().cloned());
    }
    let again = once(&format!("{name}, again"), target, &again);
    first.after(again)
}

/// Runs a test program that needs root. The tests of `node` mostly wait, so twice as many of them
/// run in parallel as there are processors.
fn once(name: &str, target: &str, rest: &[String]) -> Stage {
    timed(name, |seen| {
        let mut command = cargo::program("test", "--test", target);
        let has = |start| rest.iter().any(|word| word.starts_with(start));
        if target != CONFORMANCE {
            report_times(&mut command);
        }
        command.args(rest);
        if target == FUZZ {
            // Shows the seed and the counts of the sequences, also if the tests pass.
            command.arg("--show-output");
        }
        if target == "node" || has(API) {
            go::offer_control_plane(&mut command)?;
            if let Some(version) = VERSIONS.iter().find(|version| name.contains(**version)) {
                let module = format!("kubernetes-{version}");
                command.env("KUBE_APISERVER", go::program(&module, "kube-apiserver")?);
            }
        }
        if target == "node" {
            command.env("KUBE_PROXY", go::program("kubernetes", "kube-proxy")?);
            if !has("--test-threads") {
                let processors = thread::available_parallelism().map_or(2, usize::from);
                command.arg(format!("--test-threads={}", 2 * processors));
            }
        }
        follow(&mut command, seen)?;
        must_count(seen, !rest.is_empty())
    })
}

/// Fails if the programs of a stage have printed no count of their tests.
fn must_count(seen: &Stage, may_be_none: bool) -> Result<()> {
    let has_counts = seen.tally != Tally::default() || may_be_none;
    ensure!(has_counts, "the test program printed no count of its tests");
    Ok(())
}

/// Lets Rust's test harness print how long each test took. The harness of a stable compiler does so
/// only with this variable, which is the runner's: cargo would build everything anew.
fn report_times(command: &mut Command) {
    let machine = ARCH.to_uppercase();
    let runner = format!("CARGO_TARGET_{machine}_UNKNOWN_LINUX_GNU_RUNNER");
    command.env(runner, "env RUSTC_BOOTSTRAP=1");
    command.args(["-Zunstable-options", "--report-time"]);
}

/// Runs ordinary traffic for a minute with pods bridged, and for a minute with pods routed; with
/// `is_disturbed`, also for one in which the agent is disturbed, which needs another build.
fn soaked(rest: &[String], is_disturbed: bool) -> Stage {
    timed("soak", |seen| {
        let mut run = |disturbed, more: &str| {
            let mut command = lab::prepare_soak("test", disturbed)?;
            command.args(["--minutes", "1", "--proxies", "portolan"]);
            follow(command.args(more.split_whitespace()).args(rest), seen)
        };
        run(false, "")?;
        if is_disturbed {
            run(true, "--plumbing bridge --disturb")?;
        }
        must_count(seen, false)
    })
}

/// Runs a benchmark of the lab with few services and rounds.
fn quick_lab(name: &str, target: &str, rest: &[String]) -> Stage {
    timed(name, |seen| {
        let mut command = lab::prepare("test", target)?;
        follow(command.arg("--quick").args(rest), seen)?;
        must_count(seen, false)
    })
}

/// Runs a stage; it adds its results to the row of the summary.
fn timed(name: &str, run: impl FnOnce(&mut Stage) -> Result<()>) -> Stage {
    println!("\n=== {name}");
    let start = Instant::now();
    let mut stage = Stage {
        name: name.to_owned(),
        ..Stage::default()
    };
    stage.failure = run(&mut stage).err().map(|error| format!("{error:#}"));
    if let Some(failure) = &stage.failure {
        println!("{name}: {failure}");
    }
    stage.time = start.elapsed();
    stage
}

/// Runs a test program, prints its output and adds its results to `seen`.
fn follow(command: &mut Command, seen: &mut Stage) -> Result<()> {
    // Each agent that a test starts adds a byte to this file: `lab::node::process::count_start`.
    let starts = tempfile::NamedTempFile::new().context("make a file")?;
    let command = command.env("PORTOLAN_STARTS", starts.path());
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = child.context("start the test program")?;
    let output = child.stdout.take().context("read its output")?;
    command::each_line(output, |line| {
        println!("{line}");
        seen.tally.read(line);
        seen.failures.extend(failed_test(line));
        seen.tests.extend(timed_test(line));
    })?;
    let status = child.wait().context("wait for the test program")?;
    seen.agents += starts.as_file().metadata().map_or(0, |file| file.len());
    ensure!(status.success(), "{status}");
    Ok(())
}
