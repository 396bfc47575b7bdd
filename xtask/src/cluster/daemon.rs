// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts the cluster's long-running programs, each in the namespaces and cgroup of a node or of
//! the control plane, with a log and a pid file. Used by the other modules of `cluster`.

use std::{
    ffi::OsStr,
    path::PathBuf,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::layout::Namespace;
use crate::{command, fs};

/// A shell script that joins the cgroup $0, then executes its arguments as another program.
const JOIN: &str = "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"";

/// Starts a program (its path and arguments are `words`) on a node or in the control plane, if it
/// does not run, until `cluster down`. It has a log and a pid file.
pub(super) fn start(
    place: &Namespace,
    name: &str,
    words: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Result<()> {
    if is_running(place, name)? {
        return Ok(());
    }
    fs::create_dir_all(place.folder())?;
    let mut command = inside(place)?;
    command::log_to(&mut command, &log_file(place, name))?;
    // No wait for the child: it outlives xtask.
    let child = command.args(words).spawn();
    let mut child = child.with_context(|| format!("start {name}"))?;
    fs::write(pid_file(place, name), child.id().to_string())?;
    // Until it has joined the cgroup, it would count as ended.
    while child.try_wait()?.is_none() && !is_running(place, name)? {
        sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Returns a command that runs in the cgroup and network of `place` (a node or the control plane)
/// and with a node's mounts and host name. The program to run and its arguments are to be added; it
/// gets the process id of the command.
pub(super) fn inside(place: &Namespace) -> Result<Command> {
    let mut namespaces = vec![format!("--net=/run/netns/{}", place.netns())];
    if let Some(holder) = pid(place, HOLDER)? {
        namespaces.extend([
            format!("--mount=/proc/{holder}/ns/mnt"),
            format!("--uts=/proc/{holder}/ns/uts"),
            format!("--cgroup=/proc/{holder}/ns/cgroup"),
        ]);
    }
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", JOIN])
        .arg(place.cgroup()?)
        .args(["setsid", "nsenter"])
        .args(namespaces)
        .arg("--");
    Ok(command)
}

/// The name of the process that keeps a node's namespaces of mounts and host name alive.
pub(super) const HOLDER: &str = "holder";

fn pid_file(place: &Namespace, name: &str) -> PathBuf {
    place.folder().join(format!("{name}.pid"))
}

fn log_file(place: &Namespace, name: &str) -> PathBuf {
    place.folder().join(format!("{name}.log"))
}

/// Returns the process id of the program `name`, None if it does not run. The id from the pid file
/// counts only if the cgroup contains it, because another process may have this id by now.
pub(super) fn pid(place: &Namespace, name: &str) -> Result<Option<u32>> {
    let text = fs::read_to_string(pid_file(place, name)).unwrap_or_default();
    let members = place.cgroup()?.join("cgroup.procs");
    let members = fs::read_to_string(members).unwrap_or_default();
    let found = members.lines().any(|member| member == text.trim());
    Ok(text.trim().parse().ok().filter(|_| found))
}

fn is_running(place: &Namespace, name: &str) -> Result<bool> {
    Ok(pid(place, name)?.is_some())
}

/// Waits until `ready` returns true. The error contains the end of the log of `name`.
pub(super) fn wait(
    what: &str,
    limit: Duration,
    place: &Namespace,
    name: &str,
    mut ready: impl FnMut() -> bool,
) -> Result<()> {
    let deadline = Instant::now() + limit;
    while !ready() {
        let ended = !is_running(place, name)?;
        if ended || Instant::now() > deadline {
            let how = if ended { "has ended" } else { "is not ready" };
            let log = log_file(place, name);
            let tail = fs::tail(&log, 12);
            bail!(
                "{what}: {name} {how}; the end of {}:\n{tail}",
                log.display()
            );
        }
        sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// Runs a command to its end and returns its stdout. An error contains its output.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let what = format!("{command:?}");
    command::output(command.stdin(Stdio::null()), &what)
}
