// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the real agent on a simulated node, with a folder of manifests or an API server. Removes
//! everything that the agent leaves behind. Called by conformance, tests, benchmarks and the demo.

use std::{
    env, fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Child,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use tempfile::TempDir;

pub use super::options::Options;
use super::{
    bpffs::{PREFIX, PinDir},
    http,
    kube_proxy::tail,
    netns::NetNs,
    options::{HEALTH, MANIFESTS},
    process::{count_start, end, end_with_us, spawn_logged},
};

/// Timeout until manifests take effect: long enough for the agent's start on a busy machine.
const TO_TAKE_EFFECT: Duration = Duration::from_secs(300);

/// A running agent with its folder and pin directory. Dropping it ends it and removes both.
pub struct Agent<'a> {
    namespace: &'a NetNs,
    child: Child,
    folder: TempDir,
    pins: PinDir,
}

impl<'a> Agent<'a> {
    /// Starts the agent on a node. `content` are the first objects that it reads.
    pub fn start(namespace: &'a NetNs, options: &Options<'_>, content: &str) -> Result<Self> {
        let folder = TempDir::with_prefix(format!("{PREFIX}{}-", std::process::id()))
            .context("make the agent's folder")?;
        fs::create_dir(folder.path().join(MANIFESTS)).context("make the folder of manifests")?;
        publish(folder.path(), content)?;
        let pins = PinDir::new();
        let child = spawn(namespace, options, folder.path(), &pins)?;
        Ok(Self {
            namespace,
            child,
            folder,
            pins,
        })
    }

    /// Ends the agent and starts it again with other options, on the same pins and manifests.
    pub fn restart(&mut self, options: &Options<'_>) -> Result<()> {
        end(&mut self.child);
        self.child = spawn(self.namespace, options, self.folder.path(), &self.pins)?;
        Ok(())
    }

    /// Ends the agent; its programs and maps stay in the kernel.
    pub fn end(&mut self) {
        end(&mut self.child);
    }

    /// Returns the network namespace of the node that the agent runs on.
    pub fn namespace(&self) -> &NetNs {
        self.namespace
    }

    pub fn pin_dir(&self) -> &Path {
        self.pins.path()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Replaces the whole manifest file that the agent reads.
    pub fn publish(&self, manifests: &str) -> Result<()> {
        publish(self.folder.path(), manifests)
    }

    /// Waits until /healthz shows that `version` of the Node object has taken effect.
    pub fn wait_for(&mut self, version: u64) -> Result<()> {
        let deadline = Instant::now() + TO_TAKE_EFFECT;
        let wanted = format!("\"resourceVersion\":\"{version}\"");
        loop {
            let last = match http::get(self.namespace, HEALTH.ip(), HEALTH, "/healthz") {
                Ok((_, body)) if body.contains(&wanted) => return Ok(()),
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

    /// Returns the last `lines` lines that the agent wrote.
    pub fn log_tail(&self, lines: usize) -> Vec<String> {
        tail(&self.folder.path().join("log"), lines)
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Returns target/PROFILE/portolan, for benchmarks and the demo, which are expected at
/// target/PROFILE/{deps,examples}/PROGRAM. Cargo tells the tests of the package proxy-user.
pub fn find() -> Result<PathBuf> {
    let own = env::current_exe().context("find out where this program lies")?;
    let folder = own.parent().and_then(Path::parent).unwrap_or(&own);
    let binary = folder.join("portolan");
    ensure!(
        binary.is_file(),
        "no agent at {}: build it (cargo build --package proxy-user, --release for benchmarks)",
        binary.display()
    );
    Ok(binary)
}

/// Replaces the only manifest at once.
fn publish(folder: &Path, text: &str) -> Result<()> {
    let manifests = folder.join(MANIFESTS);
    // The agent does not read a file of this name.
    let new = manifests.join(".cluster.yaml.new");
    fs::write(&new, text).context("write a manifest")?;
    fs::rename(new, manifests.join("cluster.yaml")).context("replace the manifest")
}

fn spawn(namespace: &NetNs, options: &Options<'_>, folder: &Path, pins: &PinDir) -> Result<Child> {
    let mut command = options.command(folder, pins.path())?;
    command.env("RUST_BACKTRACE", "0").process_group(0);
    end_with_us(&mut command, Signal::SIGTERM);
    count_start();
    spawn_logged(namespace, &mut command, &folder.join("log")).context("build the agent")
}
