// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts a command of a documentation page that does not end by itself (`portolan shadow` on a
//! node), waits until it works and, after the next steps, ends it.

use std::{
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use super::run::Rehearsal;
use crate::{cluster::daemon::run as output, command, fs};

/// The folder in which the command `portolan shadow` pins its maps.
const SHADOW: &str = "/sys/fs/bpf/portolan-shadow";

impl Rehearsal<'_> {
    /// Starts the command on a node, and waits until `portolan services` can read its maps.
    pub(super) fn start_beside(&mut self, page: &str, section: &str, part: &str) -> Result<()> {
        let lines = self.lines(page, section, part)?;
        let [(line, true)] = &lines[..] else {
            bail!("{lines:?} is not one command for a node");
        };
        let line = self.filled(line)?;
        let log = self.folder.join("beside.log");
        let mut command = self.shell(&format!("exec {line}"), true)?;
        let child = command::log_to(&mut command, &log)?.spawn();
        let child = child.with_context(|| line.clone())?;
        eprintln!("  $ {line} &");
        self.beside = Some((child, log));
        let deadline = Instant::now() + Duration::from_secs(30);
        let reads = format!("portolan services --pin-dir {SHADOW} | grep -q load-server");
        while !self.shell(&reads, true)?.status()?.success() {
            ensure!(Instant::now() < deadline, "{line}: it serves no command");
            sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    /// Ends the command with SIGTERM; fails if it reports an error or has left its pinned maps.
    pub(super) fn end_beside(&mut self) -> Result<()> {
        let (mut child, log) = self.beside.take().context("nothing runs beside")?;
        output(Command::new("kill").args(["-TERM", &child.id().to_string()]))?;
        let status = child.wait().context("wait for its end")?;
        let log = fs::read_to_string(&log).unwrap_or_default();
        ensure!(status.success(), "it ended with {status}:\n{log}");
        let left = format!("test ! -e {SHADOW}");
        let gone = self.shell(&left, true)?.status()?.success();
        ensure!(gone, "{SHADOW} is left on the node");
        Ok(())
    }
}
