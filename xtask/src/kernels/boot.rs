// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Boots a kernel in qemu and reads its serial console, line by line. qemu emulates the processor
//! in software (TCG), and only one: with two, kernels crash there. Used by `kernels`.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    arch::Arch,
    command,
    summary::{Tally, failed_test},
};

/// Returns the name of qemu's program for an architecture, and the Debian package that contains it.
pub(super) const fn qemu(arch: Arch) -> (&'static str, &'static str) {
    match arch {
        Arch::Amd64 => ("qemu-system-x86_64", "qemu-system-x86"),
        Arch::Arm64 => ("qemu-system-aarch64", "qemu-system-arm"),
    }
}

/// Returns qemu's options for the machine, and the device of its serial console.
const fn machine(arch: Arch) -> ([&'static str; 4], &'static str) {
    match arch {
        Arch::Amd64 => (["-machine", "pc", "-cpu", "max"], "ttyS0"),
        // With the processor model `max`, qemu would compute the pointer authentication at every
        // return, which would take most of the time.
        Arch::Arm64 => (["-machine", "virt", "-cpu", "cortex-a72"], "ttyAMA0"),
    }
}

/// Memory of the virtual machine in MiB: enough for test programs and maps of default sizes.
const MEMORY: &str = "3072";
const COMMAND_LINE: &str = "quiet panic=-1 mitigations=off nokaslr tsc=nowatchdog";

/// The results of all stages in one kernel, as read from the console.
#[derive(Default, Debug)]
pub(super) struct Run {
    pub(super) stages: Vec<StageRun>,
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

/// The result of one stage in a kernel.
#[derive(Default, Debug)]
pub(super) struct StageRun {
    pub(super) name: String,
    pub(super) tally: Tally,
    pub(super) failures: Vec<String>,
    /// The exit status of the stage's command; None if the stage did not end.
    pub(super) status: Option<i32>,
    pub(super) seconds: u64,
}

impl StageRun {
    pub(super) fn passed(&self) -> bool {
        self.status == Some(0) && self.tally.failed == 0 && self.tally.passed > 0
    }

    pub(super) fn describe(&self) -> String {
        let Tally { passed, failed, .. } = self.tally;
        let status = match self.status {
            Some(status) => format!("exit status {status}"),
            None => "not finished".to_owned(),
        };
        let (name, seconds) = (&self.name, self.seconds);
        let text = format!("{name}: {passed} passed, {failed} failed, {status}, {seconds} s");
        let failures = self
            .failures
            .iter()
            .map(|failure| format!("\n    {failure}"));
        text + &failures.collect::<String>()
    }
}

impl Run {
    /// Returns a text for each failed stage and for a run without an end; empty if all passed.
    pub(super) fn complaints(&self) -> Vec<String> {
        let failed = self.stages.iter().filter(|stage| !stage.passed());
        let mut found: Vec<_> = failed.map(StageRun::describe).collect();
        if !self.finished {
            found.push("it did not come to its end".to_owned());
        }
        found
    }

    /// Puts the stages of a second run of the failed ones in their place; returns the tests that
    /// failed first, of the stages that passed now.
    pub(super) fn after(&mut self, again: Self) -> Vec<String> {
        let mut unsteady = Vec::new();
        self.finished = again.finished;
        for second in again.stages {
            let mut stages = self.stages.iter_mut();
            if let Some(first) = stages.find(|first| first.name == second.name) {
                if second.passed() {
                    unsteady.append(&mut first.failures);
                }
                *first = second;
            }
        }
        unsteady
    }

    /// Updates the results from a line of the console.
    pub(super) fn read(&mut self, line: &str) {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            ["@@", "begin", name] => self.stages.push(StageRun {
                name: name.to_owned(),
                ..StageRun::default()
            }),
            ["@@", "end", _, status, seconds] => {
                if let Some(stage) = self.stages.last_mut() {
                    stage.status = status.parse().ok();
                    stage.seconds = seconds.parse().unwrap_or_default();
                }
            }
            ["@@", "off"] => self.finished = true,
            ["@@", "version", version] => self.version = Some(version.to_owned()),
            ["@@", "attached", "by", way] => self.attached = Some(way.to_owned()),
            ["@@", "figure", ..] => self.figures.push(line.trim().to_owned()),
            _ => {
                if let Some(stage) = self.stages.last_mut() {
                    stage.tally.read(line);
                    stage.failures.extend(failed_test(line));
                }
            }
        }
    }
}

/// Boots a kernel, passes each line of its console to `say`, and waits until the virtual machine is
/// off. Kills it after `limit`.
pub(super) fn boot(
    arch: Arch,
    image: &Path,
    initramfs: &Path,
    limit: Duration,
    say: impl Fn(&str),
) -> Result<Run> {
    let start = Instant::now();
    let (program, _) = qemu(arch);
    let (machine, console) = machine(arch);
    let mut child = Command::new(program)
        .args(machine)
        .args(["-accel", "tcg", "-smp", "1", "-m", MEMORY])
        .args(["-nodefaults", "-no-reboot", "-display", "none"])
        .args(["-serial", "stdio", "-kernel"])
        .arg(image)
        .arg("-initrd")
        .arg(initramfs)
        .args(["-append", &format!("console={console} {COMMAND_LINE}")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {program}"))?;
    let output = child.stdout.take().context("read the console")?;
    let process = Pid::from_raw(child.id().cast_signed());
    let (ended, end) = mpsc::channel::<()>();
    let watchdog = thread::spawn(move || {
        if end.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            // qemu may have ended by itself; then there is nothing to kill.
            _ = kill(process, Signal::SIGKILL);
        }
    });
    let mut run = Run::default();
    command::each_line(output, |line| {
        run.read(line.trim_end());
        say(line.trim_end());
    })?;
    child.wait().context("wait for qemu")?;
    drop(ended);
    _ = watchdog.join();
    run.time = start.elapsed();
    Ok(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_passes_only_if_it_ended_and_a_test_passed() {
        let mut run = Run::default();
        let lines = [
            "@@ begin packet",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
            "@@ end packet 0 7",
            "@@ begin maps",
            "test a::b ... FAILED",
        ];
        lines.iter().for_each(|line| run.read(line));
        assert!(run.stages[0].passed());
        assert_eq!(run.stages[0].seconds, 7);
        assert!(!run.stages[1].passed());
        assert_eq!(run.stages[1].failures, ["a::b"]);
        assert!(!run.finished, "it did not power off by itself");
        run.read("@@ begin none");
        run.read("@@ end none 0 1");
        assert!(!run.stages[2].passed(), "no test was run");
    }
}
