// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A real API server with etcd, on free ports of loopback, without nodes. Dropping it ends both.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rcgen::KeyPair;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{cluster::pki::kubeconfig, command, fs};

/// The token of the tests' administrator, a member of system:masters.
const ADMIN: &str = "admin-of-the-tests";
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Server {
    kubectl: PathBuf,
    /// etcd, API server and controllers in the order of their start; ended in reverse order.
    processes: Vec<Child>,
    /// The folder of their files. The last field: it is removed after the processes have ended.
    folder: TempDir,
}

impl Server {
    /// Starts etcd and the API server, and waits until the API server answers.
    pub(super) fn start(programs: &Path) -> Result<Self> {
        let mut server = Self {
            kubectl: programs.join("kubectl"),
            processes: Vec::new(),
            folder: TempDir::with_prefix("portolan-server-").context("make a folder")?,
        };
        // All sockets stay open until all ports are known, so that the ports differ.
        let bind = || TcpListener::bind("127.0.0.1:0");
        let sockets = [bind()?, bind()?, bind()?];
        let ports = sockets.map(|socket| socket.local_addr().map_or(0, |address| address.port()));
        let [client, peer, secure] = ports;
        server.write_credentials(secure)?;
        let processes = format!(
            include_str!("../../deploy/server.txt"),
            folder = server.path("").display(),
            client = client,
            peer = peer,
            secure = secure,
        );
        for process in processes.replace("\n  ", " ").lines() {
            let (name, arguments) = process.split_once(' ').unwrap_or((process, ""));
            let mut command = command::of(programs.join(name), arguments);
            server.spawn(&mut command, &format!("{name}.log"))?;
        }
        server.wait("the server is ready", || {
            // The API server creates this namespace only after it answers.
            server.kubectl(&["get", "--raw", "/readyz"])?;
            let found = server.kubectl(&["get", "namespace", "kube-system"]);
            found.map(drop)
        })?;
        Ok(server)
    }

    /// Starts the controller manager `program` with only the controller for DaemonSets.
    pub(super) fn start_daemon_sets(&mut self, program: &Path) -> Result<()> {
        let arguments = "--controllers=daemonset-controller --leader-elect=false --secure-port=0";
        let mut command = command::of(program, arguments);
        command.arg("--kubeconfig").arg(self.kubeconfig());
        self.spawn(&mut command, "controllers.log")
    }

    /// Returns the path of the administrator's kubeconfig.
    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.path("kubeconfig")
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs kubectl in the namespace kube-system and returns its stdout.
    pub(super) fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.feed(arguments, "")
    }

    /// Creates or changes the objects that the YAML or JSON text describes.
    pub(super) fn apply(&self, objects: &str) -> Result<()> {
        let arguments = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        self.feed(&arguments, objects).map(drop)
    }

    /// Returns the objects of a kind in kube-system.
    pub(super) fn list(&self, kind: &str) -> Result<Vec<Value>> {
        let text = self.kubectl(&["get", kind, "-o", "json"])?;
        let list: Value = serde_json::from_str(&text).context("read kubectl's answer")?;
        let items = list["items"].as_array().cloned();
        items.context("a list has no items")
    }

    /// Runs kubectl in kube-system with a text as its stdin and returns its stdout.
    pub(super) fn feed(&self, arguments: &[&str], input: &str) -> Result<String> {
        let what = format!("kubectl {}", arguments.join(" "));
        let mut command = command::of(&self.kubectl, "--namespace kube-system --kubeconfig");
        command.arg(self.kubeconfig()).args(arguments);
        command::output_of(&mut command, input, &what)
    }

    fn write_credentials(&self, port: u16) -> Result<()> {
        let key = KeyPair::generate().context("make a key")?;
        let server = format!("https://127.0.0.1:{port}");
        let cluster = json!({"server": server, "insecure-skip-tls-verify": true});
        let kubeconfig = kubeconfig(&cluster, &json!({"token": ADMIN}));
        let tokens = format!("{ADMIN},admin,admin,\"system:masters\"\n");
        fs::write(self.path("sa.key"), key.serialize_pem())?;
        fs::write(self.path("sa.pub"), key.public_key_pem())?;
        fs::write(self.path("tokens.csv"), tokens)?;
        fs::write(self.path("kubeconfig"), kubeconfig)
    }

    fn spawn(&mut self, command: &mut Command, log: &str) -> Result<()> {
        let child = command::log_to(command, &self.path(log))?.spawn();
        let child = child.with_context(|| format!("start {}", command.get_program().display()))?;
        self.processes.push(child);
        Ok(())
    }

    /// Retries `attempt` until it succeeds; after a timeout the error contains the end of the logs.
    pub(super) fn wait(&self, what: &str, attempt: impl Fn() -> Result<()>) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match attempt() {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    let logs = ["kube-apiserver.log", "controllers.log"];
                    let logs = logs.map(|log| fs::tail(&self.path(log), 10)).join("\n");
                    bail!("waited for this in vain: {what}: {error:#}\n{logs}")
                }
                Err(_) => sleep(Duration::from_millis(100)),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGTERM would take seconds, and nothing that these processes store is used again.
        for process in self.processes.iter_mut().rev() {
            _ = process.kill();
            _ = process.wait();
        }
    }
}
