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
    command, conformance,
    deploy::{self, Tools},
    fuzz, host, kernels, lab, lint,
    setup::{self, Needs, control_plane},
    summary::{Stage, Tally, failed_test, summary, timed_test},
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
    /// Every conformance case in seven settings: pods bridged and routed, socketBalancing all and
    /// host, forwarding stack and auto, XDP native at the uplink, objects from manifests and
    /// from a real API server (root)
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
    /// cases all in one setting, and in the other six the share of the day
    All,
}

/// Test programs that need root, with the suite of each; all others belong to the unit tests.
const PRIVILEGED: [(Suite, &str); 7] = [
    (Suite::Packet, "packet"),
    (Suite::Fuzz, fuzz::TARGET),
    (Suite::Maps, "maps"),
    (Suite::Node, "node"),
    (Suite::Node, "attacks"),
    (Suite::Node, "sockets"),
    (Suite::Node, "harness"),
];

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let suite = arguments.suite;
    let is_all = suite == Some(Suite::All);
    let is_one = suite.is_some() && !is_all;
    let privileged = !matches!(suite, Some(Suite::Quick | Suite::Unit | Suite::Deploy));
    if privileged {
        host::require_root(
            "this test",
            "; `cargo xtask test quick`, `unit` and `deploy` run without",
        )?;
    }
    ensure!(
        is_one || arguments.rest.is_empty(),
        "arguments for the test programs need the name of one suite: cargo xtask test packet -- NAME"
    );
    if !matches!(suite, Some(Suite::Quick | Suite::Deploy)) {
        setup::run(if privileged { Needs::All } else { Needs::Build })?;
    }
    if privileged {
        host::ensure_bpffs()?;
    }

    let workspace = Workspace::read()?;
    let wanted = |candidate| !is_one || suite == Some(candidate);
    let mut stages = Vec::new();
    if !is_one {
        stages.push(lints());
    }
    // The stage `unit` includes the tests of `quick`.
    if suite == Some(Suite::Quick) {
        stages.push(quick(&arguments.rest));
    }
    if wanted(Suite::Unit) {
        stages.push(unit(&workspace, &arguments.rest));
    }
    for (candidate, target) in PRIVILEGED {
        if wanted(candidate) {
            let mut rest = arguments.rest.clone();
            if target == fuzz::SOCKETS {
                // The socket sequences are run in a stage of their own, `fuzz sockets`.
                rest.extend(["--skip", fuzz::SOCKETS_MODULE].map(str::to_owned));
            }
            stages.push(program(&workspace, target, target, &rest));
        }
    }
    if wanted(Suite::Fuzz) {
        let mut rest = arguments.rest.clone();
        if rest.is_empty() {
            rest.push(fuzz::SOCKETS_MODULE.to_owned());
        }
        rest.push("--show-output".to_owned());
        stages.push(program(&workspace, "fuzz sockets", fuzz::SOCKETS, &rest));
    }
    if wanted(Suite::Conformance) {
        let settings = if suite.is_none() { 1 } else { usize::MAX };
        let stages_of = conformance::STAGES.into_iter().enumerate();
        for (number, stage) in stages_of.take(settings) {
            let mut rest = conformance::stage_arguments(stage);
            if is_all {
                rest.extend(conformance::share_arguments(number));
            }
            rest.extend(arguments.rest.iter().cloned());
            let name = format!("conformance {}", stage.join(" "));
            stages.push(program(&workspace, &name, conformance::TARGET, &rest));
        }
    }

    if wanted(Suite::Soak) {
        stages.push(soaked(&arguments.rest, suite.is_some()));
    }
    if wanted(Suite::Deploy) {
        // Only the suite `deploy` by itself builds tools that take minutes.
        let tools = if is_one {
            Tools::Built
        } else {
            Tools::AsTheyAre
        };
        stages.push(deployed(&arguments.rest, tools));
    }
    if wanted(Suite::Kernels) {
        stages.push(on_kernels(suite.is_none()));
    }
    if is_all || suite == Some(Suite::Lab) {
        stages.push(quick_lab("quick lab", lab::COMPARE, &arguments.rest));
        stages.push(quick_lab("quick fleet", lab::FLEET, &[]));
    }

    println!("\n{}", summary(&stages));
    if stages.iter().any(|stage| stage.counted().failed > 0) {
        std::process::exit(1);
    }
    Ok(())
}

fn lints() -> Stage {
    timed("lint", |_| lint::check_all())
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
    let is_privileged = |target: &str| {
        target == conformance::TARGET || PRIVILEGED.iter().any(|(_, name)| *name == target)
    };
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

/// Runs a test program that needs root, and its failed tests once more: they can fail because other
/// processes use the machine's processors and network at the same time.
fn program(workspace: &Workspace, name: &str, target: &str, rest: &[String]) -> Stage {
    let first = once(workspace, name, target, rest);
    if first.failures.is_empty() || first.failures.len() > RUN_AGAIN {
        return first;
    }
    let again = if target == conformance::TARGET {
        conformance::only_cases(rest, &first.failures)
    } else {
        let mut rest = vec!["--exact".to_owned(), "--test-threads=1".to_owned()];
        rest.extend(first.failures.iter().cloned());
        rest
    };
    let again = once(workspace, &format!("{name}, again"), target, &again);
    first.after(again)
}

/// How many failed tests of a program are run again at most. More of them are no accident.
const RUN_AGAIN: usize = 3;

/// Runs a test program that needs root. The tests of `node` mostly wait, so twice as many of them
/// run in parallel as there are processors.
fn once(workspace: &Workspace, name: &str, target: &str, rest: &[String]) -> Stage {
    timed(name, |seen| {
        let mut command = workspace.command("test", "test", target)?;
        if target != conformance::TARGET {
            report_times(&mut command);
        }
        command.args(rest);
        if target == fuzz::TARGET {
            // Shows the seed and the counts of the sequences, also if the tests pass.
            command.arg("--show-output");
        }
        if target == "node" || rest.iter().any(|word| word == conformance::API) {
            control_plane::offer(&mut command)?;
        }
        if target == "node" {
            command.env("KUBE_PROXY", lab::kube_proxy()?);
            if !rest.iter().any(|word| word.starts_with("--test-threads")) {
                let processors = thread::available_parallelism().map_or(2, usize::from);
                command.arg(format!("--test-threads={}", 2 * processors));
            }
        }
        follow(&mut command, seen)?;
        ensure!(
            seen.tally != Tally::default() || !rest.is_empty(),
            "the test program printed no count of its tests"
        );
        Ok(())
    })
}

/// Lets Rust's test harness print how long each test took. The harness of a stable compiler does so
/// only with this variable, which is the runner's: cargo would build everything anew.
fn report_times(command: &mut Command) {
    let machine = ARCH.to_uppercase();
    let runner = format!("CARGO_TARGET_{machine}_UNKNOWN_LINUX_GNU_RUNNER");
    command.env(runner, "env RUSTC_BOOTSTRAP=1");
    command.args(["-Zunstable-options", "--report-time"]);
}

/// Tests what is in `deploy/`; `tools` says whether missing tools are built.
fn deployed(filter: &[String], tools: Tools) -> Stage {
    timed("deploy", |seen| {
        deploy::check(filter, tools, |name, result| match result {
            None => seen.tally.not_run += 1,
            Some(Ok(())) => seen.tally.passed += 1,
            Some(Err(_)) => {
                seen.tally.failed += 1;
                seen.failures.push(name.to_owned());
            }
        })?;
        ensure!(seen.failures.is_empty(), "deploy/ is not as it should be");
        Ok(())
    })
}

/// Runs tests on Debian's kernels in qemu, or on the oldest of them. Where these are not available
/// (no Debian, no mirror), prints a message, and one test counts as not run.
fn on_kernels(only_oldest: bool) -> Stage {
    timed("kernels", |seen| {
        let kernels = match kernels::tested_kernels(only_oldest) {
            Ok(kernels) => kernels,
            Err(error) => {
                println!("NO KERNEL WAS TESTED but this machine's own: {error:#}");
                seen.tally.not_run += 1;
                return Ok(());
            }
        };
        kernels::test(&kernels, seen)?;
        ensure!(seen.failures.is_empty(), "not all is well on every kernel");
        Ok(())
    })
}

/// Runs ordinary traffic for a minute with pods bridged, and for a minute with pods routed; with
/// `is_disturbed`, also for one in which the agent is disturbed, which needs another build.
fn soaked(rest: &[String], is_disturbed: bool) -> Stage {
    timed("soak", |seen| {
        let mut run = |disturbed, more: &[&str]| {
            let mut command = lab::prepare_soak("test", disturbed)?;
            command.args(["--minutes", "1", "--proxies", "portolan"]);
            follow(command.args(more).args(rest), seen)
        };
        run(false, &[])?;
        if is_disturbed {
            run(true, &["--plumbing", "bridge", "--disturb"])?;
        }
        ensure!(seen.tally != Tally::default(), "the soak printed no count");
        Ok(())
    })
}

/// Runs a benchmark of the lab with few services and rounds.
fn quick_lab(name: &str, target: &str, rest: &[String]) -> Stage {
    timed(name, |seen| {
        let mut command = lab::prepare("test", target)?;
        follow(command.arg("--quick").args(rest), seen)?;
        ensure!(seen.tally != Tally::default(), "the lab printed no count");
        Ok(())
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
    let mut child = command
        .env("PORTOLAN_STARTS", starts.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {}", command.get_program().to_string_lossy()))?;
    let output = child
        .stdout
        .take()
        .context("read the test program's output")?;
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
