// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A real API server with etcd, on free ports of loopback, without nodes. Its drop ends both.

use std::{
    fs::{self, File},
    io::Write,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rcgen::KeyPair;
use serde_json::{Value, json};
use tempfile::TempDir;

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
        let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0"));
        let mut ports = Vec::new();
        for listener in &listeners {
            let listener = listener
                .as_ref()
                .map_err(|error| anyhow::anyhow!("{error}"))?;
            ports.push(listener.local_addr()?.port());
        }
        drop(listeners);
        let etcd = format!("http://127.0.0.1:{}", ports[0]);
        let mut command = Command::new(programs.join("etcd"));
        command
            .args(["--unsafe-no-fsync", "--log-level", "error", "--data-dir"])
            .arg(server.path("etcd"))
            .args([
                "--listen-client-urls",
                &etcd,
                "--advertise-client-urls",
                &etcd,
            ])
            .args([
                "--listen-peer-urls",
                &format!("http://127.0.0.1:{}", ports[1]),
            ]);
        server.spawn(&mut command, "etcd.log")?;
        server.write_credentials(ports[2])?;
        let path = |name: &str| server.path(name).display().to_string();
        let mut command = Command::new(programs.join("kube-apiserver"));
        command
            .args(["--etcd-servers", &etcd, "--cert-dir", &path("certs")])
            .args(["--bind-address", "127.0.0.1"])
            .args(["--secure-port", &ports[2].to_string()])
            // An address at which nobody can reach the API server.
            .args(["--advertise-address", "192.0.2.1"])
            .args(["--endpoint-reconciler-type", "none"])
            .args(["--authorization-mode", "RBAC"])
            .args(["--service-cluster-ip-range", "172.30.0.0/16"])
            .args(["--service-account-issuer", "https://portolan.test"])
            .args(["--service-account-signing-key-file", &path("sa.key")])
            .args(["--service-account-key-file", &path("sa.pub")])
            .args(["--token-auth-file", &path("tokens.csv")])
            .args(["--allow-privileged"])
            // This plugin requires service accounts, but their controller does not run here.
            .args(["--disable-admission-plugins", "ServiceAccount"]);
        server.spawn(&mut command, "server.log")?;
        server.wait_until_ready()?;
        Ok(server)
    }

    /// Starts the controller manager `program` with only the controller for DaemonSets.
    pub(super) fn start_daemon_sets(&mut self, program: &Path) -> Result<()> {
        let mut command = Command::new(program);
        command
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .args(["--controllers=daemonset-controller", "--leader-elect=false"])
            .args(["--secure-port=0"]);
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

    /// Returns the objects of a kind in kube-system; `more` are further arguments of `kubectl get`.
    pub(super) fn list(&self, kind: &str, more: &[&str]) -> Result<Vec<Value>> {
        let text = self.kubectl(&[&["get", kind, "-o", "json"], more].concat())?;
        let list: Value = serde_json::from_str(&text).context("read kubectl's answer")?;
        let items = list["items"].as_array().cloned();
        items.context("a list has no items")
    }

    /// Runs kubectl in kube-system with a text as its stdin and returns its stdout.
    pub(super) fn feed(&self, arguments: &[&str], input: &str) -> Result<String> {
        let what = format!("kubectl {}", arguments.join(" "));
        let mut child = Command::new(&self.kubectl)
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .args(["--namespace", "kube-system"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {what}"))?;
        { child.stdin.take().context("kubectl's input")? }
            .write_all(input.as_bytes())
            .with_context(|| what.clone())?;
        let output = child.wait_with_output().with_context(|| what.clone())?;
        ensure!(
            output.status.success(),
            "{what}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        String::from_utf8(output.stdout).context(what)
    }

    fn write_credentials(&self, port: u16) -> Result<()> {
        let key = KeyPair::generate().context("make a key")?;
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {
                "server": format!("https://127.0.0.1:{port}"), "insecure-skip-tls-verify": true,
            }}],
            "users": [{"name": "test", "user": {"token": ADMIN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        for (name, content) in [
            ("sa.key", key.serialize_pem()),
            ("sa.pub", key.public_key_pem()),
            (
                "tokens.csv",
                format!("{ADMIN},admin,admin,\"system:masters\"\n"),
            ),
            ("kubeconfig", kubeconfig.to_string()),
        ] {
            fs::write(self.path(name), content).with_context(|| format!("write {name}"))?;
        }
        Ok(())
    }

    fn spawn(&mut self, command: &mut Command, log: &str) -> Result<()> {
        let log = File::create(self.path(log)).with_context(|| format!("write {log}"))?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("the log")?)
            .stderr(log);
        let child = command.spawn();
        let child = child.with_context(|| format!("start {}", command.get_program().display()))?;
        self.processes.push(child);
        Ok(())
    }

    fn wait_until_ready(&self) -> Result<()> {
        let ready = || {
            // The API server creates this namespace only after it answers.
            self.kubectl(&["get", "--raw", "/readyz"])?;
            self.kubectl(&["get", "namespace", "kube-system"])
        };
        self.wait("the server is ready", || ready().map(drop))
    }

    /// Retries `attempt` until it succeeds; after a timeout the error contains the end of the logs.
    pub(super) fn wait(&self, what: &str, attempt: impl Fn() -> Result<()>) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match attempt() {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    let log = |name| fs::read_to_string(self.path(name)).unwrap_or_default();
                    let log = log("server.log") + &log("controllers.log");
                    let lines: Vec<_> = log.lines().rev().take(10).collect();
                    bail!(
                        "waited for this in vain: {what}: {error:#}\n{}",
                        lines.join("\n")
                    )
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
