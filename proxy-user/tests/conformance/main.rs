// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the conformance cases of a folder (conformance/FORMAT.md) with the real agent on simulated
//! nodes and real packets. `cargo xtask conformance` calls it.

mod explained;
mod run;

use std::{
    fmt::Write as _,
    path::PathBuf,
    process::ExitCode,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use anyhow::{Result, bail};
use clap::Parser;
use lab::{
    cases::{format::Case, parse::files_in, share::Share},
    interrupt::{self, INTERRUPTED},
    node::{
        bpffs, netns,
        settings::{Forwarding, SocketBalancing, Xdp},
        topology::Plumbing,
    },
    random,
};

use run::{CaseResult, Group, ObjectSource, Settings};

/// Runs conformance cases with real packets against the real agent.
#[derive(Parser)]
#[command(name = "conformance")]
struct Arguments {
    /// Folder of cases.
    #[arg(default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/cases"))]
    folder: PathBuf,
    /// How pods are joined to the node; both unless given.
    #[arg(long, value_enum, default_values_t = [Plumbing::Bridge, Plumbing::Routed])]
    plumbing: Vec<Plumbing>,
    /// Whose connections are translated at their sockets; both settings unless given.
    #[arg(long, value_enum, default_values_t = [SocketBalancing::All, SocketBalancing::Host])]
    socket_balancing: Vec<SocketBalancing>,
    /// How translated packets leave the node; by its stack, and past it where pods' connections are
    /// translated per packet, unless given.
    #[arg(long)]
    forwarding: Option<Forwarding>,
    /// Whether XDP takes packets of known flows at the uplink.
    #[arg(long, value_enum, default_value = "off")]
    xdp: Xdp,
    /// Where the agent's objects come from.
    #[arg(long, value_enum, default_value = "manifests")]
    source: ObjectSource,
    /// Only this case; may be given more than once.
    #[arg(long, value_name = "NAME")]
    case: Vec<String>,
    /// Only one of so many parts of the cases, such as 2/6: the next day the next cases.
    #[arg(long)]
    share: Option<Share>,
    /// Cases run side by side.
    #[arg(long, default_value_t = 4)]
    jobs: usize,
    /// The agent.
    #[arg(long, default_value = env!("CARGO_BIN_EXE_portolan"))]
    binary: PathBuf,
}

fn main() -> ExitCode {
    match run_all(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("conformance: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs all cases in all settings; returns true if every case passed.
fn run_all(arguments: &Arguments) -> Result<bool> {
    netns::check_privilege()?;
    let cases = read_cases(arguments)?;
    bpffs::prepare()?;
    interrupt::catch()?;
    let mut settings = Vec::new();
    for plumbing in &arguments.plumbing {
        for balancing in &arguments.socket_balancing {
            let forwardings = match (arguments.forwarding, balancing) {
                (Some(forwarding), _) => vec![forwarding],
                (None, SocketBalancing::Host) => vec![Forwarding::Stack, Forwarding::Auto],
                // Connections that are translated at their sockets have no packets to translate, so
                // the agent's forwarding makes no difference.
                (None, SocketBalancing::All) => vec![Forwarding::Stack],
            };
            settings.extend(forwardings.into_iter().map(|forwarding| Settings {
                binary: arguments.binary.clone(),
                plumbing: *plumbing,
                balancing: *balancing,
                forwarding,
                xdp: arguments.xdp,
                source: arguments.source,
            }));
        }
    }
    let mut groups = Vec::new();
    for settings in &settings {
        groups.extend(Group::of(&cases, settings)?);
    }
    let [failed, passed] = [(); 2].map(|()| AtomicUsize::new(0));
    let report = |case: &Case, settings: &Settings, result: &CaseResult| {
        let is_passed = result.failures.is_empty();
        let outcome = if is_passed { &passed } else { &failed };
        outcome.fetch_add(1, Ordering::Relaxed);
        print!("{}", render(&case.case, settings, result));
    };
    thread::scope(|scope| {
        for _ in 0..arguments.jobs.max(1) {
            scope.spawn(|| groups.iter().for_each(|group| group.work(report)));
        }
    });
    if INTERRUPTED.load(Ordering::Relaxed) {
        println!("interrupted: the rest was not run");
    }
    let (passed, failed) = (passed.into_inner(), failed.into_inner());
    println!("{passed} passed, {failed} failed");
    Ok(failed == 0 && passed == cases.len() * settings.len())
}

fn read_cases(arguments: &Arguments) -> Result<Vec<Case>> {
    let stem = |file: &PathBuf| Some(file.file_stem()?.to_string_lossy().into_owned());
    let mut files = files_in(&arguments.folder)?;
    for wanted in &arguments.case {
        if !files.iter().any(|file| stem(file).as_ref() == Some(wanted)) {
            bail!("no case {wanted} in {}", arguments.folder.display());
        }
    }
    if !arguments.case.is_empty() {
        files.retain(|file| stem(file).is_some_and(|stem| arguments.case.contains(&stem)));
    }
    if let Some(share) = arguments.share {
        let day = random::of_today();
        files = share.of(files, day);
        println!("the share of day {day}: {} cases", files.len());
    }
    files.iter().map(|file| Case::read(file)).collect()
}

fn render(case: &str, settings: &Settings, result: &CaseResult) -> String {
    let xdp = match settings.xdp {
        Xdp::Off => String::new(),
        xdp => format!(", xdp {}", xdp.name()),
    };
    let name = format!(
        "{case} [{}, {}, {}{xdp}]",
        settings.plumbing.name(),
        settings.balancing.name(),
        settings.forwarding.name()
    );
    let Some((first, others)) = result.failures.split_first() else {
        let taken = match result.taken {
            0 => String::new(),
            taken => format!(", {taken} packets by XDP"),
        };
        return format!("ok   {name}  {} flows{taken}\n", result.flows);
    };
    let mut text = format!("FAIL {name} {first}\n");
    for failure in others {
        let _ = writeln!(text, "     also {failure}");
    }
    for line in &result.log {
        let _ = writeln!(text, "     | {line}");
    }
    text
}
