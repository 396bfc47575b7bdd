// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts the cluster's long-running programs, each in the namespaces and cgroup of a node or of
//! the control plane, with a log and a pid file: the control plane itself (etcd, API server,
//! controllers, scheduler and DNS), and what other modules of `cluster` start. Runs kubectl.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::{
    Tools,
    layout::{CLUSTER_CIDR, CONTROL, DOMAIN, Namespace, SERVICE_CIDR, families, kubeconfig, pki},
};
use crate::{cargo, command, fs};

/// Starts the control plane's processes that do not run, and waits until the API server answers.
pub(super) fn start(tools: &Tools) -> Result<()> {
    let processes = format!(
        include_str!("../../cluster/control.txt"),
        data = CONTROL.folder().join("etcd").display(),
        pki = pki("").display(),
        address = CONTROL.address,
        services = families(SERVICE_CIDR),
        pods = families(CLUSTER_CIDR),
        domain = DOMAIN,
    );
    for process in processes.replace("\n  ", " ").lines() {
        let (name, arguments) = process.split_once(' ').unwrap_or((process, ""));
        let line = format!("{} {arguments}", tools.kubernetes(name));
        start_daemon(&CONTROL, name, line.split_whitespace())?;
        if name == "kube-apiserver" {
            let answers = || kubectl(tools, "get --raw /readyz").is_ok();
            wait("the API server", &CONTROL, name, answers)?;
        }
    }
    let file = CONTROL.folder().join("Corefile");
    let text = format!(
        include_str!("../../cluster/Corefile"),
        address = CONTROL.address,
        domain = DOMAIN,
        kubeconfig = kubeconfig().display(),
    );
    fs::write(&file, text)?;
    let line = format!("{} -conf {}", tools.coredns(), file.display());
    start_daemon(&CONTROL, "coredns", line.split_whitespace())
}

/// Returns a command that runs `program` in the control plane's network namespace, not on a node.
pub(super) fn beside(program: &Path) -> Command {
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--net=/run/netns/{}", CONTROL.netns()))
        .arg(program);
    command
}

/// Returns a command that runs kubectl as an administrator.
pub(super) fn kubectl_command(tools: &Tools) -> Command {
    let mut command = beside(Path::new(&tools.kubernetes("kubectl")));
    command.arg("--kubeconfig").arg(kubeconfig());
    command
}

/// Runs kubectl with the words of a text as its arguments, in the root folder of the clone.
pub(super) fn kubectl(tools: &Tools, words: &str) -> Result<String> {
    let mut command = kubectl_command(tools);
    run(command
        .args(words.split_whitespace())
        .current_dir(cargo::root()))
}

/// Creates or changes the cluster's objects that the YAML text `objects` describes.
pub(super) fn apply(tools: &Tools, objects: &str) -> Result<()> {
    let file = CONTROL.folder().join("objects.yaml");
    fs::write(&file, objects)?;
    // The flags replace what anybody else has changed in an object meanwhile.
    let flags = "--server-side --force-conflicts";
    kubectl(tools, &format!("apply {flags} -f {}", file.display())).map(drop)
}

/// A shell script that joins the cgroup $0, then executes its arguments as another program.
const JOIN: &str = "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"";

/// Starts a program (its path and arguments are `words`) on a node or in the control plane, if it
/// does not run, until `cluster down`. It has a log and a pid file.
pub(super) fn start_daemon(
    place: &Namespace,
    name: &str,
    words: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Result<()> {
    if is_running(place, name)? {
        return Ok(());
    }
    fs::create_dir_all(place.folder())?;
    let mut command = inside(place)?;
    command::log_to(&mut command, &file(place, name, "log"))?;
    // No wait for the child: it outlives xtask.
    let child = command.args(words).spawn();
    let mut child = child.with_context(|| format!("start {name}"))?;
    fs::write(file(place, name, "pid"), child.id().to_string())?;
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

/// Returns the path of a program's log or pid file.
fn file(place: &Namespace, name: &str, ending: &str) -> PathBuf {
    place.folder().join(format!("{name}.{ending}"))
}

/// Returns the process id of the program `name`, None if it does not run. The id from the pid file
/// counts only if the cgroup contains it, because another process may have this id by now.
pub(super) fn pid(place: &Namespace, name: &str) -> Result<Option<u32>> {
    let text = fs::read_to_string(file(place, name, "pid")).unwrap_or_default();
    let members = place.cgroup()?.join("cgroup.procs");
    let members = fs::read_to_string(members).unwrap_or_default();
    let found = members.lines().any(|member| member == text.trim());
    Ok(text.trim().parse().ok().filter(|_| found))
}

fn is_running(place: &Namespace, name: &str) -> Result<bool> {
    Ok(pid(place, name)?.is_some())
}

/// The longest time that anything may take to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// Waits until `ready` returns true. The error contains the end of the log of `name`.
pub(super) fn wait(
    what: &str,
    place: &Namespace,
    name: &str,
    mut ready: impl FnMut() -> bool,
) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !ready() {
        let ended = !is_running(place, name)?;
        if ended || Instant::now() > deadline {
            let how = if ended { "has ended" } else { "is not ready" };
            let log = file(place, name, "log");
            let tail = fs::tail(&log, 12);
            let log = log.display();
            bail!("{what}: {name} {how}; the end of {log}:\n{tail}");
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
