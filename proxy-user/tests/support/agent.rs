// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the real agent on a simulated node from a folder of manifests, and removes every trace of it.
//! Called by the conformance runner and the demo.

use std::{
    fs::{self, File},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use ipnet::IpNet;
use nix::{
    mount::{MsFlags, mount},
    sys::{
        prctl,
        signal::{Signal, kill},
        statfs::{self, statfs},
    },
    unistd::Pid,
};
use tempfile::TempDir;

use super::{clients::Client, netns::NetNs};

const BPFFS: &str = "/sys/fs/bpf";
/// Of everything that a run makes outside its namespaces; its process id follows.
const PREFIX: &str = "portolan-lab-";
const HEALTH: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10256);
const METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10249);
/// Long enough for a start on a machine that is busy elsewhere.
const TO_TAKE_EFFECT: Duration = Duration::from_secs(60);
const TO_END: Duration = Duration::from_secs(5);
/// How a manifest file is called while it is being written: no agent reads it.
const HALF_WRITTEN: &str = ".cluster.yaml.new";

/// What the agent is started with.
pub(crate) struct Options<'a> {
    pub(crate) binary: &'a Path,
    pub(crate) node_name: &'a str,
    pub(crate) cluster_cidrs: &'a [IpNet],
    /// YAML under kube-proxy's names; empty for none.
    pub(crate) config: &'a str,
    pub(crate) socket_balancing: &'a str,
    /// The API server to follow, in place of the manifests.
    pub(crate) kubeconfig: Option<&'a Path>,
    /// Where the socket hooks go.
    pub(crate) cgroup_root: &'a Path,
}

/// What the agent finds in its folder.
pub(crate) enum Manifests<'a> {
    /// The content of the one file.
    Text(&'a str),
    /// Every file of a folder, copied.
    Folder(&'a Path),
}

/// A running agent with its folder and its pins. Dropping it ends it and removes both.
pub(crate) struct Agent<'a> {
    namespace: &'a NetNs,
    child: Child,
    folder: TempDir,
    pin_dir: PathBuf,
}

impl<'a> Agent<'a> {
    /// Starts the agent on a node that has `manifests` to begin with.
    pub(crate) fn start(
        namespace: &'a NetNs,
        options: &Options<'_>,
        manifests: &Manifests<'_>,
    ) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let folder = TempDir::with_prefix(format!("{PREFIX}{}-", std::process::id()))
            .context("make a folder for manifests")?;
        fs::create_dir(folder.path().join("manifests"))?;
        match manifests {
            Manifests::Text(text) => write_manifests(folder.path(), text)?,
            Manifests::Folder(from) => copy_files(from, &folder.path().join("manifests"))?,
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let pin_dir = Path::new(BPFFS).join(format!("{PREFIX}{}-{number}", std::process::id()));
        let child = spawn(namespace, options, &folder, &pin_dir)?;
        Ok(Self {
            namespace,
            child,
            folder,
            pin_dir,
        })
    }

    /// Ends it and starts it again with other options, on the same pins and manifests.
    pub(crate) fn restart(&mut self, options: &Options<'_>) -> Result<()> {
        end(&mut self.child);
        self.child = spawn(self.namespace, options, &self.folder, &self.pin_dir)?;
        Ok(())
    }

    /// Ends it; its programs and maps stay.
    pub(crate) fn end(&mut self) {
        end(&mut self.child);
    }

    /// The node that it runs on.
    pub(crate) fn namespace(&self) -> &NetNs {
        self.namespace
    }

    pub(crate) fn pin_dir(&self) -> &Path {
        &self.pin_dir
    }

    /// The manifest folder.
    pub(crate) fn manifests(&self) -> PathBuf {
        self.folder.path().join("manifests")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Replaces the manifest file whole.
    pub(crate) fn publish(&self, manifests: &str) -> Result<()> {
        write_manifests(self.folder.path(), manifests)
    }

    /// Waits until the agent says that the node's `version` has taken effect.
    pub(crate) fn wait_for(&mut self, version: u64) -> Result<()> {
        let deadline = Instant::now() + TO_TAKE_EFFECT;
        let client = Client::new(self.namespace, HEALTH.ip());
        loop {
            let last = match client.http_get(HEALTH, "/healthz") {
                Ok((_, body)) if version_in(&body) == Some(version) => return Ok(()),
                Ok((status, body)) => format!("/healthz says {status} {}", body.trim()),
                Err(error) => format!("{error:#}"),
            };
            if let Some(status) = self.child.try_wait().context("look after the agent")? {
                bail!("the agent ended with {status}");
            }
            if Instant::now() > deadline {
                bail!(
                    "node version {version} has not taken effect within {TO_TAKE_EFFECT:?}; {last}"
                );
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The last lines that the agent wrote.
    pub(crate) fn log_tail(&self, lines: usize) -> Vec<String> {
        let text = fs::read(self.folder.path().join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let all: Vec<_> = text.lines().map(str::to_owned).collect();
        all[all.len().saturating_sub(lines)..].to_vec()
    }
}

fn spawn(
    namespace: &NetNs,
    options: &Options<'_>,
    folder: &TempDir,
    pin_dir: &Path,
) -> Result<Child> {
    let mut command = Command::new(options.binary);
    command
        .arg("run")
        .arg(match options.kubeconfig {
            Some(_) => "--kubeconfig",
            None => "--manifests",
        })
        .arg(match options.kubeconfig {
            Some(kubeconfig) => kubeconfig.to_owned(),
            None => folder.path().join("manifests"),
        })
        .args(["--hostname-override", options.node_name])
        .arg("--pin-dir")
        .arg(pin_dir)
        .args(["--socket-balancing", options.socket_balancing])
        .args(["--healthz-bind-address", &HEALTH.to_string()])
        .args(["--metrics-bind-address", &METRICS.to_string()]);
    if !options.cluster_cidrs.is_empty() {
        let ranges: Vec<_> = options
            .cluster_cidrs
            .iter()
            .map(ToString::to_string)
            .collect();
        command.args(["--cluster-cidr", &ranges.join(",")]);
    }
    command.arg("--cgroup-root").arg(options.cgroup_root);
    if !options.config.is_empty() {
        let file = folder.path().join("config.yaml");
        fs::write(&file, options.config).context("write the agent's config")?;
        command.arg("--config").arg(file);
    }
    let log = File::options()
        .create(true)
        .append(true)
        .open(folder.path().join("log"))
        .context("create the agent's log")?;
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("share the agent's log")?)
        .stderr(log)
        .env("RUST_BACKTRACE", "0")
        .process_group(0);
    end_with_us(&mut command, Signal::SIGTERM);
    namespace.enter(|| command.spawn())?.with_context(|| {
        format!(
            "start {}: build it or name it with --binary",
            options.binary.display()
        )
    })
}

/// Has the kernel send a program this signal when the thread that starts it has ended.
pub(crate) fn end_with_us(command: &mut Command, signal: Signal) {
    // SAFETY: prctl is async-signal-safe and touches nothing of this process.
    unsafe {
        command.pre_exec(move || prctl::set_pdeathsig(signal).map_err(Into::into));
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        end(&mut self.child);
        remove(&self.pin_dir);
    }
}

/// Asks a process to end, and ends it if it does not.
fn end(child: &mut Child) {
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
    eprintln!(
        "agent {}: still there {TO_END:?} after SIGTERM, killed",
        child.id()
    );
    let _ = child.kill();
    let _ = child.wait();
}

fn remove(folder: &Path) {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            eprintln!("remove {}: {error}; remove it by hand", folder.display());
        }
        _ => {}
    }
}

fn write_manifests(folder: &Path, text: &str) -> Result<()> {
    let manifests = folder.join("manifests");
    let new = manifests.join(HALF_WRITTEN);
    fs::write(&new, text).with_context(|| format!("write {}", new.display()))?;
    let file = manifests.join("cluster.yaml");
    fs::rename(&new, &file).with_context(|| format!("replace {}", file.display()))
}

fn copy_files(from: &Path, to: &Path) -> Result<()> {
    let attempt = || format!("copy the manifests in {}", from.display());
    for entry in fs::read_dir(from).with_context(attempt)? {
        let entry = entry.with_context(attempt)?;
        fs::copy(entry.path(), to.join(entry.file_name())).with_context(attempt)?;
    }
    Ok(())
}

fn version_in(body: &str) -> Option<u64> {
    let health: serde_json::Value = serde_json::from_str(body).ok()?;
    match &health["node"]["resourceVersion"] {
        serde_json::Value::String(text) => text.parse().ok(),
        other => other.as_u64(),
    }
}

/// Mounts bpffs where it is missing and removes what runs that were killed left behind.
pub(crate) fn prepare_bpffs() -> Result<()> {
    let mounted = statfs(BPFFS).is_ok_and(|found| found.filesystem_type() == statfs::BPF_FS_MAGIC);
    if !mounted {
        mount(
            Some("bpf"),
            BPFFS,
            Some("bpf"),
            MsFlags::empty(),
            None::<&str>,
        )
        .with_context(|| format!("mount bpffs on {BPFFS}: run as root on a kernel with BPF"))?;
    }
    remove_orphans(Path::new(BPFFS))?;
    remove_orphans(&std::env::temp_dir())
}

/// Removes what processes that are gone have left in a folder.
fn remove_orphans(folder: &Path) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX))
            .and_then(|rest| rest.split('-').next())
            .and_then(|pid| pid.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            remove(&entry.path());
        }
    }
    Ok(())
}
