// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures how long portolan's commands take, and what its agent does while nothing changes.

use std::{
    path::Path,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use lab::{
    load::{objects::Objects, process::processor_time, records, statistics::quantiles},
    node::agent::Agent,
};

use crate::results::Measured;

/// How often each command is run.
const RUNS: usize = 10;

/// Measures the agent's processor time while nothing changes.
pub(crate) fn idle(agent: &Agent<'_>, length: Duration, measured: &mut Measured) -> Result<()> {
    sleep(length / 10);
    let before = processor_time(agent.pid())?;
    sleep(length);
    let used = (processor_time(agent.pid())? - before) / length.as_secs_f64() * 100.0;
    let heading = "Processor time while nothing changes, % of one";
    measured.add(heading, used, format!("{used:.2}"));
    Ok(())
}

/// Runs each command several times. Shows its least and its median time in milliseconds.
pub(crate) fn commands(
    agent: &Agent<'_>,
    objects: &Objects<'_>,
    binary: &Path,
    measured: &mut Measured,
) -> Result<()> {
    let last = objects.count() - 1;
    let address = records::address_of(last).to_string();
    let name = records::name_of(last);
    let commands: [&[&str]; 6] = [
        &["explain", "--from", "10.40.1.10", "--to", &address],
        &["services", &name],
        &["services"],
        &["flows"],
        &["top"],
        &["status"],
    ];
    let (mut shown, mut sum) = (Vec::new(), 0.0);
    for words in commands {
        let mut times = Vec::new();
        for _ in 0..RUNS {
            let begun = Instant::now();
            run(agent, binary, words)?;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        let [least, median] = quantiles(times, [0.0, 0.5]);
        let name = words[..words.len().min(2)].join(" ");
        shown.push(format!("`{name}` {least:.0} {median:.0}"));
        sum += median;
    }
    let shown = shown.join(", ");
    measured.add("Commands, ms: the least and the median time", sum, shown);
    Ok(())
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
