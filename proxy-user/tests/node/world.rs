// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node with two routed pods, one of which answers, and agents that are started on it by hand.

use std::{
    cell::Cell,
    fs::{self, File},
    io::{self, BufRead, BufReader, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use crate::tunnel::Tunnel;
use lab::{
    node::{bpffs, cgroup::Cgroup, netns::NetNs},
    traffic::clients::Client,
};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_portolan");
const HEALTH: &str = "127.0.0.1:10256";
const SERVER: &str = "10.40.1.20:8080";
const PATIENCE: Duration = Duration::from_secs(20);
const ANSWER: Duration = Duration::from_secs(2);
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// The node, its pods and the manifest folder; dropping it removes all of them and the pins.
pub(crate) struct World {
    node: NetNs,
    client: NetNs,
    _server: NetNs,
    folder: TempDir,
    pins: PathBuf,
    cgroup: Cgroup,
    logs: Cell<u32>,
}

impl World {
    pub(crate) fn build() -> Self {
        bpffs::prepare().expect("a BPF file system");
        let [node, client, server] =
            ["node", "client", "server"].map(|name| NetNs::new(name).expect("run as root"));
        node.ip("link set lo up\naddress add 10.40.0.1/32 dev lo\n")
            .expect("loopback");
        for (key, value) in [("ipv4/ip_forward", "1"), ("ipv4/conf/all/rp_filter", "0")] {
            let path = format!("/proc/sys/net/{key}");
            node.enter(|| fs::write(&path, value))
                .expect("enter the node")
                .expect("forwarding");
        }
        node.plug(&client, "10.40.1.10").expect("a pod");
        node.plug(&server, "10.40.1.20").expect("a pod");
        let listener = server
            .enter(|| TcpListener::bind(SERVER))
            .expect("enter the pod")
            .expect("a listener");
        thread::spawn(move || listener.incoming().flatten().for_each(echo));
        let folder = TempDir::with_prefix("portolan-node-").expect("a folder");
        fs::create_dir(folder.path().join("manifests")).expect("a folder for manifests");
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let world = Self {
            node,
            client,
            _server: server,
            folder,
            pins: format!("/sys/fs/bpf/portolan-node-{}-{number}", std::process::id()).into(),
            cgroup: Cgroup::new().expect("a cgroup"),
            logs: Cell::new(0),
        };
        world.write("node.yaml", &node_object(Some(7)));
        world
    }

    pub(crate) fn manifests(&self) -> PathBuf {
        self.folder.path().join("manifests")
    }

    pub(crate) fn pins(&self) -> &Path {
        &self.pins
    }

    /// The node itself.
    pub(crate) fn node(&self) -> &NetNs {
        &self.node
    }

    /// Replaces a manifest file whole.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let new = self.folder.path().join("new");
        fs::write(&new, text).expect("a new file");
        fs::rename(new, self.manifests().join(name)).expect("a file in its place");
    }

    /// A folder that goes with the world.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn command(&self, starter: &[&str]) -> Command {
        let mut words = starter.iter().chain([&BINARY]);
        let mut command = Command::new(words.next().expect("the agent at least"));
        command.args(words);
        command.args(["run", "--hostname-override", "node-a"]);
        command
    }

    /// Starts an agent and waits until it has applied the node's version.
    pub(crate) fn start(&self, version: u64) -> Agent<'_> {
        self.start_with(version, &[])
    }

    /// The same with more flags.
    pub(crate) fn start_with(&self, version: u64, flags: &[&str]) -> Agent<'_> {
        let manifests = self.manifests();
        let mut all = vec!["--manifests", manifests.to_str().expect("a plain path")];
        all.extend(flags);
        let agent = self.spawn(&all);
        agent.wait_for(version);
        agent
    }

    /// `portolan cleanup` of this node's pins.
    pub(crate) fn cleanup(&self, flags: &[&str]) -> Child {
        let mut command = Command::new(BINARY);
        command.arg("cleanup").arg("--pin-dir").arg(&self.pins);
        command.args(flags).stdout(Stdio::null());
        let child = self.node.enter(|| command.spawn());
        child.expect("enter the node").expect("a cleanup")
    }

    /// Starts an agent with more flags and waits for nothing.
    pub(crate) fn spawn(&self, flags: &[&str]) -> Agent<'_> {
        self.spawn_by(&[], flags)
    }

    /// The same by another program, which gives it its rights.
    pub(crate) fn spawn_by(&self, starter: &[&str], flags: &[&str]) -> Agent<'_> {
        let number = self.logs.get();
        self.logs.set(number + 1);
        let log = self.folder.path().join(format!("log{number}"));
        let mut command = self.command(starter);
        command
            .arg("--pin-dir")
            .arg(&self.pins)
            .arg("--cgroup-root")
            .arg(self.cgroup.path())
            .args([
                "--cluster-cidr",
                "10.40.0.0/16",
                "--healthz-bind-address",
                HEALTH,
            ])
            .args(flags)
            .stderr(File::create(&log).expect("a log"));
        let child = self
            .node
            .enter(|| command.spawn())
            .expect("enter the node")
            .expect("an agent");
        Agent {
            world: self,
            child: Some(child),
            log,
        }
    }

    /// Runs an agent that is to end by itself; what it says.
    pub(crate) fn run(&self, flags: &[&str]) -> (ExitStatus, String) {
        let mut command = self.command(&[]);
        command.arg("--manifests").arg(self.manifests());
        if !flags.contains(&"--pin-dir") {
            command.arg("--pin-dir").arg(&self.pins);
        }
        command.args(flags).stderr(Stdio::piped());
        let mut child = self
            .node
            .enter(|| command.spawn())
            .expect("enter the node")
            .expect("an agent");
        let deadline = Instant::now() + PATIENCE;
        while child.try_wait().expect("its state").is_none() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
        _ = child.kill();
        let output = child.wait_with_output().expect("its output");
        (
            output.status,
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    }

    /// Connects from the pod that does not serve; something answers.
    pub(crate) fn connect(&self, to: &str) -> io::Result<Open> {
        let to: SocketAddr = to.parse().expect("an address and port");
        let stream = self
            .client
            .enter(|| TcpStream::connect_timeout(&to, ANSWER))
            .expect("enter the pod")?;
        stream.set_read_timeout(Some(ANSWER))?;
        let mut open = Open(BufReader::new(stream));
        let answer = open.echo("hello");
        (answer == "hello")
            .then_some(open)
            .ok_or_else(|| io::Error::other(answer))
    }

    /// The node's interface that leads to the client.
    pub(crate) fn client_interface(&self) -> String {
        let route = self
            .node
            .feed("ip", &["-o", "route", "get", "10.40.1.10"], "");
        let route = route.expect("a route to the client");
        let mut words = route.split_whitespace();
        words.find(|word| *word == "dev").expect("an interface");
        words.next().expect("its name").to_owned()
    }

    /// Gives the node one more interface towards the outside.
    pub(crate) fn add_uplink(&self, address: &str) {
        let batch = format!(
            "link add late type veth peer name far\nlink set far up\naddress add {address} dev late\nlink set late up\n"
        );
        self.node.ip(&batch).expect("the node's interfaces");
    }

    /// Gives the node a device without a link-layer header, beyond which an address is.
    pub(crate) fn add_tunnel(&self, far: &str) -> Tunnel {
        let tunnel = self.node.enter(|| Tunnel::new("tun0"));
        let batch = format!(
            "address add 10.9.0.1/32 dev tun0\nlink set tun0 up\nroute add {far}/32 dev tun0\n"
        );
        self.node.ip(&batch).expect("the node's interfaces");
        tunnel.expect("enter the node").expect("a device")
    }

    /// The client pod goes and comes again behind another interface.
    pub(crate) fn replug_client(&self) {
        self.client
            .ip("link del eth0\n")
            .expect("the pod's interface");
        self.node.plug(&self.client, "10.40.1.10").expect("a pod");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.pins);
    }
}

fn echo(stream: TcpStream) {
    thread::spawn(move || {
        let mut lines = BufReader::new(stream);
        let mut line = String::new();
        while lines.read_line(&mut line).is_ok_and(|read| read > 0) {
            if lines.get_mut().write_all(line.as_bytes()).is_err() {
                return;
            }
            line.clear();
        }
    });
}

/// An open connection through a service.
pub(crate) struct Open(BufReader<TcpStream>);

impl Open {
    /// Sends a line; what comes back, or the error.
    pub(crate) fn echo(&mut self, line: &str) -> String {
        let mut answer = String::new();
        let sent = writeln!(self.0.get_mut(), "{line}");
        match sent.and_then(|()| self.0.read_line(&mut answer)) {
            Ok(_) => answer.trim_end().to_owned(),
            Err(error) => error.to_string(),
        }
    }
}

/// A running agent; dropping it ends it.
pub(crate) struct Agent<'a> {
    world: &'a World,
    child: Option<Child>,
    log: PathBuf,
}

impl Agent<'_> {
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("its log")
    }

    /// Waits until the node's object of this version is applied.
    pub(crate) fn wait_for(&self, version: u64) {
        let deadline = Instant::now() + PATIENCE;
        let wanted = format!("\"resourceVersion\":\"{version}\"");
        let client = Client::new(&self.world.node, Ipv4Addr::LOCALHOST.into());
        loop {
            let answer = client.http_get(HEALTH.parse().expect("an address"), "/healthz");
            if answer.is_ok_and(|(status, body)| status == 200 && body.contains(&wanted)) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "no version {version}: {}",
                self.log()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// What /healthz says; 0 while nobody listens.
    pub(crate) fn health(&self) -> (u16, String) {
        let client = Client::new(&self.world.node, Ipv4Addr::LOCALHOST.into());
        let answer = client.http_get(HEALTH.parse().expect("an address"), "/healthz");
        answer.unwrap_or_default()
    }

    /// What the metrics server answers.
    pub(crate) fn metrics(&self, path: &str) -> String {
        let client = Client::new(&self.world.node, Ipv4Addr::LOCALHOST.into());
        let answer = client.http_get("127.0.0.1:10249".parse().expect("an address"), path);
        let (status, body) = answer.expect("it listens");
        assert_eq!(status, 200, "{body}");
        body
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = self.pid().try_into().expect("a process id");
        kill(Pid::from_raw(pid), signal).expect("it runs");
    }

    /// Waits until it has ended by itself; what it said.
    pub(crate) fn wait_for_end(mut self) -> String {
        if let Some(mut child) = self.child.take() {
            let deadline = Instant::now() + PATIENCE;
            while child.try_wait().expect("its state").is_none() {
                assert!(Instant::now() < deadline, "it goes on: {}", self.log());
                thread::sleep(Duration::from_millis(20));
            }
        }
        self.log()
    }

    /// Asks it to end.
    pub(crate) fn stop(mut self) -> ExitStatus {
        self.end().expect("it runs")
    }

    fn end(&mut self) -> Option<ExitStatus> {
        let mut child = self.child.take()?;
        let pid = Pid::from_raw(child.id().try_into().ok()?);
        kill(pid, Signal::SIGTERM).ok()?;
        child.wait().ok()
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// The node's object, at a version where no server gives it one.
pub(crate) fn node_object(version: Option<u64>) -> String {
    let version = version.map_or_else(String::new, |version| {
        format!(", resourceVersion: \"{version}\"")
    });
    format!(
        "{{apiVersion: v1, kind: Node, metadata: {{name: node-a{version}}}, status: {{addresses: [{{type: InternalIP, address: 10.40.0.1}}]}}}}"
    )
}

/// A service of the pod that answers. Its node port follows from the cluster IP's last number.
pub(crate) fn service(name: &str, cluster_ip: &str) -> String {
    let last: u16 = cluster_ip
        .rsplit('.')
        .next()
        .and_then(|last| last.parse().ok())
        .expect("a cluster IP");
    let port = if name == "twin" { 31000 } else { 30000 + last };
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop}}
spec: {{type: NodePort, clusterIP: {cluster_ip}, clusterIPs: [{cluster_ip}], ports: [{{port: 80, nodePort: {port}}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{name: \"\", protocol: TCP, port: 8080}}]
endpoints: [{{addresses: [10.40.1.20], nodeName: node-a}}]
"
    )
}
