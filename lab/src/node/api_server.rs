// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A real kube-apiserver with its etcd in a node's namespace; dropping it ends both.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use k8s_openapi::ByteString;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;
use tempfile::TempDir;

use crate::node::netns::NetNs;

const ETCD: &str = "127.0.0.1:2379";
const ETCD_PEERS: &str = "127.0.0.1:2380";
const SERVER: &str = "127.0.0.1:6443";
pub const URL: &str = "https://127.0.0.1:6443";
/// Of a member of system:masters.
const ADMIN: &str = "admin-of-the-tests";
const PATIENCE: Duration = Duration::from_secs(60);
/// Operations that etcd takes in one transaction.
const AT_ONCE: usize = 128;

/// Where kube-apiserver, etcd and kubectl are.
fn assets() -> PathBuf {
    let folder = std::env::var_os("KUBEBUILDER_ASSETS").expect(
        "run by `cargo xtask test node`, or name a folder with kube-apiserver, etcd and kubectl in KUBEBUILDER_ASSETS",
    );
    folder.into()
}

pub struct ApiServer<'a> {
    node: &'a NetNs,
    folder: TempDir,
    advertise: String,
    etcd: Child,
    server: Child,
}

impl<'a> ApiServer<'a> {
    /// Starts both and waits until the server answers. The node needs an address for it to advertise.
    pub fn start(node: &'a NetNs, advertise: &str) -> Self {
        let folder = TempDir::with_prefix("portolan-api-").expect("a folder");
        let path = |name: &str| folder.path().join(name);
        openssl(&["genrsa", "-out"], &path("sa.key"), &[]);
        let key = path("sa.key").display().to_string();
        openssl(
            &["rsa", "-in", &key, "-pubout", "-out"],
            &path("sa.pub"),
            &[],
        );
        fs::write(
            path("tokens.csv"),
            format!("{ADMIN},admin,admin,\"system:masters\"\n"),
        )
        .expect("tokens");
        let kubeconfig = kubeconfig(URL, ADMIN);
        fs::write(path("kubeconfig"), kubeconfig).expect("a kubeconfig");
        let etcd = spawn(
            node,
            Command::new(assets().join("etcd"))
                .args(["--unsafe-no-fsync", "--log-level", "error", "--data-dir"])
                .arg(path("etcd"))
                .args(["--listen-client-urls", &format!("http://{ETCD}")])
                .args(["--advertise-client-urls", &format!("http://{ETCD}")])
                .args(["--listen-peer-urls", &format!("http://{ETCD_PEERS}")]),
            &path("etcd.log"),
        );
        let server = start_server(node, folder.path(), advertise);
        let started = Self {
            node,
            folder,
            advertise: advertise.to_owned(),
            etcd,
            server,
        };
        started.wait_until_ready();
        started
    }

    /// A kubeconfig of an administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// A client with those rights; its sockets are made where it is used.
    pub async fn client(&self) -> anyhow::Result<Client> {
        client_by(&self.kubeconfig()).await
    }

    /// Ends the server at once; etcd goes on.
    pub fn kill(&mut self) {
        end(&mut self.server);
    }

    /// Starts the server again.
    pub fn revive(&mut self) {
        self.server = start_server(self.node, self.folder.path(), &self.advertise);
        self.wait_until_ready();
    }

    fn wait_until_ready(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ready = self.run(&["get", "--raw", "/readyz"], "");
            if ready.as_deref() == Ok("ok") {
                return;
            }
            assert!(Instant::now() < deadline, "{ready:?}: {}", self.log());
            sleep(Duration::from_millis(100));
        }
    }

    fn log(&self) -> String {
        let log = fs::read_to_string(self.folder.path().join("server.log")).unwrap_or_default();
        log.lines().rev().take(10).collect::<Vec<_>>().join("\n")
    }

    fn run(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let kubectl = assets().join("kubectl");
        let kubeconfig = self.kubeconfig();
        let mut all = vec!["--kubeconfig", kubeconfig.to_str().expect("a plain path")];
        all.extend(arguments);
        let kubectl = kubectl.to_str().expect("a plain path");
        self.node
            .feed(kubectl, &all, input)
            .map_err(|error| format!("{error:#}"))
    }

    /// Runs kubectl.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.try_kubectl(arguments).expect("kubectl")
    }
    pub fn try_kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.run(arguments, "")
    }

    /// Has the server check objects that it then does not keep.
    pub fn try_out(&self, manifests: &str) {
        let tried = ["apply", "--server-side", "--dry-run=server", "-f", "-"];
        self.run(&tried, manifests)
            .expect("kubectl apply --dry-run");
    }

    /// Creates or replaces objects.
    pub fn apply(&self, manifests: &str) {
        let applied = self.run(
            &["apply", "--server-side", "--force-conflicts", "-f", "-"],
            manifests,
        );
        applied.expect("kubectl apply");
    }

    /// Has etcd forget what was before now.
    pub fn compact(&self) {
        let status = self.ask_etcd("/v3/maintenance/status", "{}");
        let revision = status["header"]["revision"]
            .as_str()
            .expect("a revision")
            .to_owned();
        let request = format!("{{\"revision\": \"{revision}\", \"physical\": true}}");
        self.ask_etcd("/v3/kv/compaction", &request);
    }

    /// Writes records as the server keeps them, by their keys in etcd, and removes those that are nothing. For many at
    /// once: the server itself counts all of its cluster IPs at every service that is made or removed.
    pub fn store<'r>(&self, records: impl IntoIterator<Item = &'r Record>) {
        let mut records = records.into_iter().peekable();
        while records.peek().is_some() {
            let steps: Vec<_> = records.by_ref().take(AT_ONCE).map(Record::step).collect();
            let request = json!({"success": steps}).to_string();
            let answer = self.ask_etcd("/v3/kv/txn", &request);
            assert!(answer["succeeded"] == true, "etcd: {answer}");
        }
    }

    fn ask_etcd(&self, path: &str, body: &str) -> serde_json::Value {
        let address: SocketAddr = ETCD.parse().expect("an address");
        let stream = self
            .node
            .enter(|| TcpStream::connect(address))
            .expect("enter the node");
        let mut stream = stream.expect("etcd listens");
        let length = body.len();
        write!(
            stream,
            "POST {path} HTTP/1.0\r\nHost: etcd\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .expect("asked");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }
}

impl Drop for ApiServer<'_> {
    fn drop(&mut self) {
        end(&mut self.server);
        end(&mut self.etcd);
    }
}

/// One record of etcd's: its key, and what shall stand there.
pub struct Record {
    pub key: String,
    pub value: Option<serde_json::Value>,
}

impl Record {
    /// Of a transaction; etcd's gateway takes keys and values in base64, as objects have their bytes.
    fn step(&self) -> serde_json::Value {
        let bytes = |text: String| ByteString(text.into_bytes());
        let key = bytes(self.key.clone());
        match &self.value {
            Some(value) => {
                json!({"requestPut": {"key": key, "value": bytes(value.to_string())}})
            }
            None => json!({"requestDeleteRange": {"key": key}}),
        }
    }
}

/// A client with a kubeconfig's address and rights.
pub async fn client_by(kubeconfig: &Path) -> anyhow::Result<Client> {
    let content = Kubeconfig::read_from(kubeconfig)?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(content, &options).await?;
    Ok(Client::try_from(config)?)
}

/// A kubeconfig for a server whose certificate nobody has signed.
pub fn kubeconfig(server: &str, token: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": server, "insecure-skip-tls-verify": true}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}]
    })
    .to_string()
}

fn start_server(node: &NetNs, folder: &Path, advertise: &str) -> Child {
    let path = |name: &str| folder.join(name).display().to_string();
    let (address, port) = SERVER.split_once(':').expect("a port");
    let mut command = Command::new(assets().join("kube-apiserver"));
    command
        .args([
            "--etcd-servers",
            &format!("http://{ETCD}"),
            "--cert-dir",
            &path("certs"),
        ])
        .args([
            "--bind-address",
            address,
            "--secure-port",
            port,
            "--advertise-address",
            advertise,
        ])
        .args([
            "--endpoint-reconciler-type",
            "none",
            "--authorization-mode",
            "RBAC",
        ])
        .args(["--service-cluster-ip-range", "172.30.0.0/16,fd00:30::/108"])
        .args(["--service-node-port-range", "1024-65535"])
        .args(["--service-account-issuer", "https://portolan.test"])
        .args(["--service-account-signing-key-file", &path("sa.key")])
        .args(["--service-account-key-file", &path("sa.pub")])
        .args(["--token-auth-file", &path("tokens.csv")])
        // As every cluster that runs system pods has it.
        .args(["--allow-privileged"])
        // No controller makes the accounts that it would ask for.
        .args(["--disable-admission-plugins", "ServiceAccount"]);
    spawn(node, &mut command, &folder.join("server.log"))
}

fn spawn(node: &NetNs, command: &mut Command, log: &Path) -> Child {
    let log = File::options()
        .create(true)
        .append(true)
        .open(log)
        .expect("a log");
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("the log once more"))
        .stderr(log);
    let child = node.enter(|| command.spawn()).expect("enter the node");
    child.unwrap_or_else(|error| panic!("{}: {error}", command.get_program().display()))
}

/// The server takes its time over SIGTERM, and nothing of it is kept.
fn end(child: &mut Child) {
    _ = child.kill();
    _ = child.wait();
}

fn openssl(before: &[&str], file: &Path, after: &[&str]) {
    let output = Command::new("openssl")
        .args(before)
        .arg(file)
        .args(after)
        .output();
    let output = output.expect("openssl is installed by the set-up");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
