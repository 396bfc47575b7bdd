// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts and ends programs so that none lives longer than the program that started it.

use std::{
    env,
    fs::{File, OpenOptions},
    io::Write,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use nix::{
    sys::{
        prctl,
        signal::{Signal, kill},
    },
    unistd::Pid,
};

use super::netns::NetNs;

/// Time for a program to end after SIGTERM. Longer than any program needs.
const TO_END: Duration = Duration::from_secs(5);

/// Makes the kernel send `signal` to the command's process when the thread that starts it ends.
pub fn end_with_us(command: &mut Command, signal: Signal) {
    // SAFETY: prctl is async-signal-safe and touches nothing of this process.
    unsafe {
        command.pre_exec(move || prctl::set_pdeathsig(signal).map_err(Into::into));
    }
}

/// Starts a program on a node and appends its output to a file.
pub(super) fn spawn_logged(node: &NetNs, command: &mut Command, log: &Path) -> Result<Child> {
    let attempt = |log: &Path| format!("open {}", log.display());
    let file = File::options().create(true).append(true).open(log);
    let file = file.with_context(|| attempt(log))?;
    command
        .stdin(Stdio::null())
        .stdout(file.try_clone().with_context(|| attempt(log))?)
        .stderr(file);
    let child = node.enter(|| command.spawn())?;
    child.with_context(|| format!("start {}", command.get_program().display()))
}

/// A process; dropping this kills it.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Counts an agent that a test has started, in the file that `cargo xtask test` names.
pub fn count_start() {
    let starts = env::var_os("PORTOLAN_STARTS").and_then(|path| {
        let file = OpenOptions::new().append(true).open(path);
        file.ok()
    });
    if let Some(mut starts) = starts {
        _ = starts.write_all(b".");
    }
}

/// Ends a process by SIGTERM, and kills it if it does not end in time.
pub(super) fn end(child: &mut Child) {
    let deadline = Instant::now() + TO_END;
    if let Ok(pid) = i32::try_from(child.id()) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    while Instant::now() < deadline {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
    let id = child.id();
    eprintln!("process {id}: still there {TO_END:?} after SIGTERM, killed");
    let _ = child.kill();
    let _ = child.wait();
}
