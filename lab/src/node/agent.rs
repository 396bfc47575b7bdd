// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the real agent on a simulated node from a folder of manifests, and removes every trace of it.
//! Called by the conformance runner and the demo.

use std::{
    fs::{self, File},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use ipnet::IpNet;
use nix::{
    sys::{
        prctl,
        signal::{Signal, kill},
    },
    unistd::Pid,
};
use tempfile::TempDir;

use super::{
    bpffs::{PREFIX, PinDir},
    netns::NetNs,
};
use crate::traffic::clients::Client;

const HEALTH: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10256);
const METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10249);
/// Long enough for a start on a machine that is busy elsewhere.
const TO_TAKE_EFFECT: Duration = Duration::from_secs(60);
const TO_END: Duration = Duration::from_secs(5);
/// How a manifest file is called while it is being written: no agent reads it.
const HALF_WRITTEN: &str = ".cluster.yaml.new";

/// What the agent is started with.
pub struct Options<'a> {
    pub binary: &'a Path,
    pub node_name: &'a str,
    pub cluster_cidrs: &'a [IpNet],
    /// YAML under kube-proxy's names; empty for none.
    pub config: &'a str,
    pub socket_balancing: &'a str,
    /// The API server to follow, in place of the manifests.
    pub kubeconfig: Option<&'a Path>,
    /// Where the socket hooks go.
    pub cgroup_root: &'a Path,
}

/// What the agent finds in its folder.
pub enum Manifests<'a> {
    /// The content of the one file.
    Text(&'a str),
    /// Every file of a folder, copied.
    Folder(&'a Path),
}

/// A running agent with its folder and its pins. Dropping it ends it and removes both.
pub struct Agent<'a> {
    namespace: &'a NetNs,
    child: Child,
    folder: TempDir,
    pins: PinDir,
}

impl<'a> Agent<'a> {
    /// Starts the agent on a node that has `manifests` to begin with.
    pub fn start(
        namespace: &'a NetNs,
        options: &Options<'_>,
        manifests: &Manifests<'_>,
    ) -> Result<Self> {
        let folder = TempDir::with_prefix(format!("{PREFIX}{}-", std::process::id()))
            .context("make a folder for manifests")?;
        fs::create_dir(folder.path().join("manifests"))?;
        match manifests {
            Manifests::Text(text) => write_manifests(folder.path(), text)?,
            Manifests::Folder(from) => copy_files(from, &folder.path().join("manifests"))?,
        }
        let pins = PinDir::new();
        let child = spawn(namespace, options, &folder, pins.path())?;
        Ok(Self {
            namespace,
            child,
            folder,
            pins,
        })
    }

    /// Ends it and starts it again with other options, on the same pins and manifests.
    pub fn restart(&mut self, options: &Options<'_>) -> Result<()> {
        end(&mut self.child);
        self.child = spawn(self.namespace, options, &self.folder, self.pins.path())?;
        Ok(())
    }

    /// Ends it; its programs and maps stay.
    pub fn end(&mut self) {
        end(&mut self.child);
    }

    /// The node that it runs on.
    pub fn namespace(&self) -> &NetNs {
        self.namespace
    }

    pub fn pin_dir(&self) -> &Path {
        self.pins.path()
    }

    /// The manifest folder.
    pub fn manifests(&self) -> PathBuf {
        self.folder.path().join("manifests")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Replaces the manifest file whole.
    pub fn publish(&self, manifests: &str) -> Result<()> {
        write_manifests(self.folder.path(), manifests)
    }

    /// Waits until the agent says that the node's `version` has taken effect.
    pub fn wait_for(&mut self, version: u64) -> Result<()> {
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
    pub fn log_tail(&self, lines: usize) -> Vec<String> {
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
pub fn end_with_us(command: &mut Command, signal: Signal) {
    // SAFETY: prctl is async-signal-safe and touches nothing of this process.
    unsafe {
        command.pre_exec(move || prctl::set_pdeathsig(signal).map_err(Into::into));
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        end(&mut self.child);
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
