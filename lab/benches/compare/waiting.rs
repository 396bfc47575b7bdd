// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures how long portolan's commands take that people wait for, and what its agent does while
//! nothing changes.

use std::{
    path::Path,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use lab::{
    load::{objects::Objects, process::processor_time, records},
    node::agent::Agent,
};

/// How often each command is run.
const RUNS: usize = 10;

/// Returns the agent's processor time while nothing changes, in percent of one processor.
pub(crate) fn idle(agent: &Agent<'_>, length: Duration) -> Result<f64> {
    sleep(length / 10);
    let before = processor_time(agent.pid())?;
    sleep(length);
    Ok((processor_time(agent.pid())? - before) / length.as_secs_f64() * 100.0)
}

/// Runs each command several times. Returns its least and its median time in milliseconds.
pub(crate) fn commands(
    agent: &Agent<'_>,
    objects: &Objects<'_>,
    binary: &Path,
) -> Result<Vec<(String, [f64; 2])>> {
    let last = objects.count() - 1;
    let (address, name) = (
        records::address_of(last).to_string(),
        records::name_of(last),
    );
    let commands: [&[&str]; 6] = [
        &["explain", "--from", "10.40.1.10", "--to", &address],
        &["services", &name],
        &["services"],
        &["flows"],
        &["top"],
        &["status"],
    ];
    let timed = |words: &&[&str]| {
        let mut times = Vec::new();
        for _ in 0..RUNS {
            let begun = Instant::now();
            run(agent, binary, words)?;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        Ok((
            words[..words.len().min(2)].join(" "),
            [times[0], times[RUNS / 2]],
        ))
    };
    commands.iter().map(timed).collect()
}

fn run(agent: &Agent<'_>, binary: &Path, words: &[&str]) -> Result<()> {
    let mut command = Command::new(binary);
    command
        .args(words)
        .arg("--pin-dir")
        .arg(agent.pin_dir())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let output = agent.namespace().enter(|| command.output())?;
    let output = output.with_context(|| format!("run portolan {}", words.join(" ")))?;
    // Up to 4 a command has worked, and found something to tell.
    let is_good = output.status.code().is_some_and(|code| code != 2);
    ensure!(is_good, "portolan {}: {output:?}", words.join(" "));
    Ok(())
}
