// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Boots a kernel in qemu and reads its serial console, line by line. qemu emulates the processor
//! in software (TCG), and only one: with two, kernels crash there. Used by `kernels`.

use std::{
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use crate::{
    command,
    cross::Arch,
    summary::{Stage, failed_test},
};

/// Returns the name of qemu's program for an architecture, and the Debian package that contains it.
pub(super) const fn qemu(arch: Arch) -> (&'static str, &'static str) {
    match arch {
        Arch::Amd64 => ("qemu-system-x86_64", "qemu-system-x86"),
        Arch::Arm64 => ("qemu-system-aarch64", "qemu-system-arm"),
    }
}

/// Returns qemu's options for the machine, and the device of its serial console. By model `max`,
/// qemu would compute arm64's pointer authentication at every return: most of the time.
const fn machine(arch: Arch) -> (&'static str, &'static str) {
    match arch {
        Arch::Amd64 => ("-machine pc -cpu max", "ttyS0"),
        Arch::Arm64 => ("-machine virt -cpu cortex-a72", "ttyAMA0"),
    }
}

/// Options of every virtual machine: one processor, and memory for maps of default sizes.
const OPTIONS: &str =
    "-accel tcg -smp 1 -m 3072 -nodefaults -no-reboot -display none -serial stdio";
const COMMAND_LINE: &str = "quiet panic=-1 mitigations=off nokaslr tsc=nowatchdog";

/// The results of all stages in one kernel, as read from the console.
#[derive(Default)]
pub(super) struct Run {
    pub(super) stages: Vec<Stage>,
    /// The version of Debian's kernel package, which contains the version of kernel.org's release.
    pub(super) version: Option<String>,
    /// Console lines with the size and load time of each kernel program; `report` reads them.
    pub(super) figures: Vec<String>,
    /// How kernel programs are attached to interfaces in this kernel, e.g. by tcx.
    pub(super) attached: Option<String>,
    /// Whether all stages were run and the virtual machine powered itself off.
    pub(super) finished: bool,
    pub(super) time: Duration,
}

/// Returns a line about a stage, and one for each test that failed.
pub(super) fn describe(stage: &Stage) -> String {
    let (name, seconds, tally) = (&stage.name, stage.time.as_secs(), stage.tally);
    let end = stage.failure.as_deref().unwrap_or("ended well");
    let (passed, failed) = (tally.passed, tally.failed);
    let text = format!("{name}: {passed} passed, {failed} failed, {end}, {seconds} s");
    [&[text], &stage.failures[..]].concat().join("\n    ")
}

impl Run {
    /// Returns a text for each failed stage and for a run without an end; empty if all passed.
    pub(super) fn complaints(&self) -> Vec<String> {
        let failed = self.stages.iter().filter(|stage| stage.has_failed());
        let end = (!self.finished).then(|| "it did not come to its end".to_owned());
        failed.map(describe).chain(end).collect()
    }

    /// Puts the results of a second run of failed stages beside those of the first.
    pub(super) fn after(mut self, again: Self) -> Self {
        let mut second = again.stages.into_iter().peekable();
        let merged = self.stages.into_iter().map(|stage| {
            match second.next_if(|second| second.name == stage.name) {
                Some(again) => stage.after(again),
                None => stage,
            }
        });
        self.stages = merged.collect();
        self.finished = again.finished;
        self
    }

    /// Updates the results from a line of the console.
    pub(super) fn read(&mut self, line: &str) {
        let words: Vec<_> = line.split_whitespace().collect();
        match (&words[..], self.stages.last_mut()) {
            (["@@", "begin", name], _) => self.stages.push(Stage {
                name: (*name).to_owned(),
                failure: Some("not finished".to_owned()),
                ..Stage::default()
            }),
            (["@@", "end", _, status, seconds], Some(stage)) => {
                stage.time = Duration::from_secs(seconds.parse().unwrap_or_default());
                stage.failure = match (*status, stage.tally.passed) {
                    ("0", 0) => Some("no test was run".to_owned()),
                    ("0", _) => None,
                    (status, _) => Some(format!("exit status {status}")),
                };
            }
            (["@@", "off"], _) => self.finished = true,
            (["@@", "version", version], _) => self.version = Some((*version).to_owned()),
            (["@@", "attached", "by", how], _) => self.attached = Some((*how).to_owned()),
            (["@@", "figure", ..], _) => self.figures.push(line.trim().to_owned()),
            (_, Some(stage)) => {
                stage.tally.read(line);
                stage.failures.extend(failed_test(line));
            }
            _ => {}
        }
    }
}

/// Boots a kernel, passes its console's lines to `say`, and waits until it is off, up to `limit`.
pub(super) fn boot(
    arch: Arch,
    image: &Path,
    initramfs: &Path,
    limit: Duration,
    mut say: impl FnMut(&str),
) -> Result<Run> {
    let start = Instant::now();
    let (program, _) = qemu(arch);
    let (machine, console) = machine(arch);
    let limit = limit.as_secs();
    let words = format!("--foreground --signal=KILL {limit} {program} {machine} {OPTIONS}");
    let mut child = command::of("timeout", &words)
        .arg("-kernel")
        .arg(image)
        .arg("-initrd")
        .arg(initramfs)
        .args(["-append", &format!("console={console} {COMMAND_LINE}")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {program}"))?;
    let mut run = Run::default();
    command::each_line(child.stdout.take().context("read the console")?, |line| {
        run.read(line.trim_end());
        say(line.trim_end());
    })?;
    child.wait().context("wait for qemu")?;
    run.time = start.elapsed();
    Ok(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_passes_only_if_it_ended_and_a_test_passed() {
        let mut run = Run::default();
        let lines = "@@ begin packet\ntest result: ok. 3 passed; 0 failed; 0 ignored\n@@ end packet 0 7\n\
            @@ begin none\n@@ end none 0 1\n@@ begin maps\ntest a::b ... FAILED\n";
        lines.lines().for_each(|line| run.read(line));
        let found: Vec<_> = run.stages.iter().map(describe).collect();
        let wanted = [
            "packet: 3 passed, 0 failed, ended well, 7 s",
            "none: 0 passed, 0 failed, no test was run, 1 s",
            "maps: 0 passed, 0 failed, not finished, 0 s\n    a::b",
        ];
        assert_eq!(found, wanted);
        let end = "it did not come to its end";
        assert_eq!(run.complaints(), [wanted[1], wanted[2], end]);
    }
}
