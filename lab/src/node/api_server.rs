// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A real kube-apiserver and its etcd in a node's network namespace, or several of one etcd.
//! Dropping the value ends the programs.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    etcd, kubeconfig,
    netns::NetNs,
    process::{Killed, spawn_logged},
};

const PORT: &str = "6443";
pub const URL: &str = "https://127.0.0.1:6443";
/// The token of the administrator, a member of system:masters.
const ADMIN: &str = "admin-of-the-tests";
/// The token of the account of a fleet's agents, and that account. The server limits what its kind
/// may ask at once, which it does not for system:masters.
const AGENTS: &str = "agents-of-the-tests";
pub const AGENTS_ACCOUNT: &str = "system:serviceaccount:kube-system:proxy";
const AGENTS_GROUPS: &str = "system:serviceaccounts,system:serviceaccounts:kube-system";
const PATIENCE: Duration = Duration::from_secs(60);

const AUDIT_LOG: &str = "audit.log";
const AUDIT_POLICY: &str = "audit.json";

pub struct ApiServer<'a> {
    node: &'a NetNs,
    advertise: String,
    is_alone: bool,
    server: Killed,
    _etcd: Option<Killed>,
    /// The last field, so that the folder is removed after the programs have ended.
    folder: TempDir,
}

impl<'a> ApiServer<'a> {
    /// Starts both programs and waits until the API server answers. It announces `advertise`, an
    /// address of the node, as its own. It listens at all of the node's addresses, and writes what
    /// the agents' account lists and watches to [`Self::audit_log`].
    pub fn start(node: &'a NetNs, advertise: &str) -> Result<Self> {
        Self::launch(node, advertise, true, true)
    }

    /// Starts an API server at each of these addresses of the node, all with the etcd of the first
    /// one. They list themselves as the endpoints of the service `kubernetes`.
    pub fn start_several(node: &'a NetNs, addresses: &[&str]) -> Result<Vec<Self>> {
        let addresses = addresses.iter().enumerate();
        addresses
            .map(|(number, address)| Self::launch(node, address, false, number == 0))
            .collect()
    }

    fn launch(node: &'a NetNs, advertise: &str, is_alone: bool, has_etcd: bool) -> Result<Self> {
        let folder = TempDir::with_prefix("portolan-api-").context("make the server's folder")?;
        write_credentials(folder.path(), advertise, is_alone)?;
        let program = assets()?.join("etcd");
        let etcd = has_etcd.then(|| etcd::start(node, &program, folder.path()));
        let server = start_server(node, folder.path(), advertise, is_alone)?;
        let started = Self {
            node,
            advertise: advertise.to_owned(),
            is_alone,
            server,
            _etcd: etcd.transpose()?,
            folder,
        };
        started.wait_until_ready()?;
        Ok(started)
    }

    /// Returns the path of an administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Returns the path of a kubeconfig for agents in other network namespaces, without rights.
    pub fn agents_kubeconfig(&self) -> PathBuf {
        self.folder.path().join("agents.kubeconfig")
    }

    /// Returns the path of the audit log.
    pub fn audit_log(&self) -> PathBuf {
        self.folder.path().join(AUDIT_LOG)
    }

    /// Returns the process of kube-apiserver.
    pub fn pid(&self) -> u32 {
        self.server.0.id()
    }

    /// Ends kube-apiserver at once; etcd continues.
    pub fn kill(&mut self) {
        // SIGTERM would take seconds, and no state of the server is kept.
        _ = self.server.0.kill();
        _ = self.server.0.wait();
    }

    /// Starts kube-apiserver again after [`Self::kill`].
    pub fn revive(&mut self) -> Result<()> {
        let folder = self.folder.path();
        self.server = start_server(self.node, folder, &self.advertise, self.is_alone)?;
        self.wait_until_ready()
    }

    /// Waits until kube-apiserver is ready. Also waits for the service `kubernetes`, which it
    /// creates once it is ready.
    fn wait_until_ready(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        for path in ["/readyz", "/api/v1/namespaces/default/services/kubernetes"] {
            while let Err(error) = self.run(&["get", "--raw", path], "") {
                if Instant::now() > deadline {
                    let log = self.log();
                    bail!("kube-apiserver is not ready: {path}: {error:#}: {log}");
                }
                sleep(Duration::from_millis(100));
            }
        }
        Ok(())
    }

    fn log(&self) -> String {
        let log = fs::read_to_string(self.folder.path().join("server.log")).unwrap_or_default();
        log.lines().rev().take(10).collect::<Vec<_>>().join("\n")
    }

    fn run(&self, arguments: &[&str], input: &str) -> Result<String> {
        let kubectl = assets()?.join("kubectl");
        let kubeconfig = self.kubeconfig();
        let mut all = vec!["--kubeconfig", plain(&kubeconfig)?];
        all.extend(arguments);
        self.node.feed(plain(&kubectl)?, &all, input)
    }

    /// Runs kubectl and returns its output.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.run(arguments, "")
    }

    /// Lets the API server check objects without storing them.
    pub fn try_out(&self, manifests: &str) -> Result<()> {
        let arguments = ["apply", "--server-side", "--dry-run=server", "-f", "-"];
        self.run(&arguments, manifests).map(drop)
    }

    /// Creates or replaces objects.
    pub fn apply(&self, manifests: &str) -> Result<()> {
        let arguments = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        self.run(&arguments, manifests).map(drop)
    }

    /// Creates the Node object `node-a` with `address` as its InternalIP.
    pub fn make_node(&self, address: &str) -> Result<()> {
        self.apply(r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}}"#)?;
        let addresses = json!([{"type": "InternalIP", "address": address}]);
        self.set_status("node", "node-a", &json!({"addresses": addresses}))
    }

    /// Changes an object's status.
    pub fn set_status(&self, kind: &str, name: &str, status: &Value) -> Result<()> {
        let patch = json!({"status": status}).to_string();
        let merge = ["--subresource=status", "--type=merge", "--patch", &patch];
        let words = [&["patch", kind, name], &merge[..]].concat();
        self.kubectl(&words).map(drop)
    }
}

/// Returns the folder with kube-apiserver, etcd and kubectl.
fn assets() -> Result<PathBuf> {
    let folder = env::var_os("KUBEBUILDER_ASSETS").context(
        "KUBEBUILDER_ASSETS is not set: run by cargo xtask, or name a folder with kube-apiserver, etcd and kubectl in it",
    )?;
    Ok(folder.into())
}

fn plain(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("{} is not UTF-8", path.display()))
}

/// Writes the keys for service accounts' tokens, the tokens of the administrator and of agents, a
/// kubeconfig with each, and the audit policy.
fn write_credentials(folder: &Path, advertise: &str, is_alone: bool) -> Result<()> {
    let path = |name: &str| folder.join(name);
    let key = path("sa.key");
    openssl(&["genrsa", "-out"], &key)?;
    let words = ["rsa", "-in", plain(&key)?, "-pubout", "-out"];
    openssl(&words, &path("sa.pub"))?;
    let tokens = format!(
        "{ADMIN},admin,admin,\"system:masters\"\n{AGENTS},{AGENTS_ACCOUNT},agents,\"{AGENTS_GROUPS}\"\n"
    );
    fs::write(path("tokens.csv"), tokens).context("write the tokens")?;
    fs::write(path(AUDIT_POLICY), audit_policy().to_string()).context("write the audit policy")?;
    let reached = format!("https://{advertise}:{PORT}");
    let own = if is_alone { URL } else { &*reached };
    let of_agents = ("agents.kubeconfig", &*reached, AGENTS);
    for (file, url, token) in [("kubeconfig", own, ADMIN), of_agents] {
        fs::write(path(file), kubeconfig::render(url, token)).context("write a kubeconfig")?;
    }
    Ok(())
}

/// Returns an audit policy that records what the agents' account lists and watches.
fn audit_policy() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "Metadata", "users": [AGENTS_ACCOUNT], "verbs": ["list", "watch"]},
            {"level": "None"}
        ]
    })
}

fn start_server(node: &NetNs, folder: &Path, advertise: &str, is_alone: bool) -> Result<Killed> {
    let path = |name: &str| folder.join(name).display().to_string();
    let (bind, reconciler) = match is_alone {
        true => ("0.0.0.0", "none"),
        false => (advertise, "lease"),
    };
    // One of another version, instead of the folder's.
    let other = env::var_os("KUBE_APISERVER").map(PathBuf::from);
    let mut command = Command::new(other.unwrap_or(assets()?.join("kube-apiserver")));
    command
        .args(["--etcd-servers", etcd::URL])
        .args(["--cert-dir", &path("certs")])
        .args(["--secure-port", PORT])
        .args(["--advertise-address", advertise])
        .args(["--endpoint-reconciler-type", reconciler])
        .args(["--authorization-mode", "RBAC"])
        .args(["--service-cluster-ip-range", "172.30.0.0/16,fd00:30::/108"])
        .args(["--service-node-port-range", "1024-65535"])
        .args(["--service-account-issuer", "https://portolan.test"])
        .args(["--service-account-signing-key-file", &path("sa.key")])
        .args(["--service-account-key-file", &path("sa.pub")])
        .args(["--token-auth-file", &path("tokens.csv")])
        // deploy/ contains privileged pods.
        .args(["--allow-privileged"])
        // Without controllers nobody creates the accounts that this plugin requires.
        .args(["--disable-admission-plugins", "ServiceAccount"])
        .args(["--bind-address", bind])
        .args(["--audit-policy-file", &path(AUDIT_POLICY)])
        .args(["--audit-log-path", &path(AUDIT_LOG)]);
    spawn_logged(node, &mut command, &folder.join("server.log")).map(Killed)
}

fn openssl(arguments: &[&str], file: &Path) -> Result<()> {
    let output = Command::new("openssl").args(arguments).arg(file).output();
    let output = output.context("start openssl: install it")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "openssl: {}", said.trim());
    Ok(())
}

/// Returns how often agents have listed all EndpointSlices by this part of an audit log, also by a
/// watch that begins with them, and how many requests were answered with 429.
pub fn requests(log: &str) -> (f64, f64) {
    let events = log.lines();
    let events = events.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let (mut lists, mut refused) = (0.0, 0.0);
    for event in events {
        let uri = event["requestURI"].as_str().unwrap_or_default();
        let stage = event["stage"].as_str().unwrap_or_default();
        let is_list = match event["verb"].as_str() {
            Some("list") if stage == "ResponseComplete" => !uri.contains("continue="),
            Some("watch") if stage == "ResponseStarted" => uri.contains("sendInitialEvents=true"),
            _ => continue,
        };
        match event["responseStatus"]["code"].as_u64() {
            Some(200) if is_list && uri.contains("/endpointslices?") => lists += 1.0,
            Some(429) => refused += 1.0,
            _ => {}
        }
    }
    (lists, refused)
}
