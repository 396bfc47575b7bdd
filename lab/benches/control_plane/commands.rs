// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures how long portolan's commands take that people wait for, on a node whose agent has all
//! services.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use lab::{
    load::{objects::Objects, records},
    node::agent::Agent,
};
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike,
};

/// How often each command is run.
const RUNS: usize = 10;
const CLIENT: &str = "10.40.1.10";

/// Runs each command several times, and prints a row of its times in milliseconds.
pub(crate) fn measure(agent: &Agent<'_>, objects: &Objects<'_>, binary: &Path) -> Result<()> {
    let last = objects.count() - 1;
    let address = records::address_of(last).to_string();
    let name = records::name_of(last);
    let commands: [&[&str]; 6] = [
        &["explain", "--from", CLIENT, "--to", &address],
        &["services", &name],
        &["services"],
        &["flows"],
        &["top", "--once"],
        &["status"],
    ];
    println!(
        "\n{:>8}  {:<14} {:>8} {:>8} {:>10}",
        "services", "command", "least", "median", "processor"
    );
    for words in commands {
        let (mut times, mut busy) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            let (before, begun) = (spent()?, Instant::now());
            run(agent, binary, words)?;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
            busy.push(spent()? - before);
        }
        times.sort_by(f64::total_cmp);
        busy.sort_by(f64::total_cmp);
        let label = match words {
            ["services", _] => "services NAME".to_owned(),
            ["top", ..] => words.join(" "),
            _ => words[0].to_owned(),
        };
        println!(
            "{:>8}  {label:<14} {:>8.1} {:>8.1} {:>10.1}",
            objects.count(),
            times[0],
            times[RUNS / 2],
            busy[RUNS / 2]
        );
    }
    println!();
    Ok(())
}

fn run(agent: &Agent<'_>, binary: &Path, words: &[&str]) -> Result<()> {
    let mut command = Command::new(binary);
    command
        .args(words)
        .arg("--pin-dir")
        .arg(agent.pin_dir())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let output = agent.namespace().enter(|| command.output())?;
    let output = output.with_context(|| format!("run portolan {}", words.join(" ")))?;
    // Status 1 means that a command found a difference or a problem. It worked.
    let is_good = matches!(output.status.code(), Some(0 | 1));
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(is_good, "portolan {}: {said}", words.join(" "));
    Ok(())
}

/// Returns the processor time of all child processes that have ended, in milliseconds.
fn spent() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("read the times of children")?;
    let microseconds =
        usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(microseconds as f64 / 1e3)
}
