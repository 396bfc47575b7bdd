// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node with two routed pods, one of which answers, and agents that a test starts on it.

use std::{
    cell::{Cell, RefCell},
    ffi::OsStr,
    fs::{self, File},
    io,
    net::{IpAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use lab::node::{
    bpffs::{self, PinDir},
    cgroup::Cgroup,
    netns::NetNs,
    options::HEALTH,
    pod::plug,
    settings::config_file,
};
use tempfile::TempDir;

use crate::{
    agent::Agent,
    connection::{Open, echo},
    objects::node_object,
    tunnel::Tunnel,
};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_portolan");
const CLIENT: &str = "10.40.1.10";
const SERVER: &str = "10.40.1.20";
const CLUSTER_CIDR: &str = "10.40.0.0/16,fd00:40::/48";
/// The port at which the server pod answers.
const PORT: u16 = 8080;
/// The addresses of the node, the client and the server.
const OF_V4: [&str; 3] = ["10.40.0.1", CLIENT, SERVER];
pub(crate) const OF_V6: [&str; 3] = ["fd00:c0::1", "fd00:40::10", "fd00:40::20"];
/// How long to wait: only a fault takes longer. In a virtual machine on a busy host, loading the
/// programs takes minutes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// The node, its pods and the manifest folder; dropping it removes all of them and the pins.
pub(crate) struct World {
    node: NetNs,
    client: NetNs,
    server: NetNs,
    folder: TempDir,
    pins: PinDir,
    cgroup: Cgroup,
    logs: Cell<u32>,
    binary: RefCell<PathBuf>,
}

impl World {
    pub(crate) fn build() -> Self {
        Self::build_with(OF_V4)
    }

    /// Builds a node whose only IPv4 address is loopback's, and writes no Node object.
    pub(crate) fn build_without_v4() -> Self {
        Self::build_with(OF_V6)
    }

    fn build_with([own, client_ip, server_ip]: [&str; 3]) -> Self {
        bpffs::prepare().expect("a BPF file system");
        let [node, client, server] =
            ["node", "client", "server"].map(|name| NetNs::new(name).expect("run as root"));
        node.ip(&format!("link set lo up\naddress add {own} dev lo\n"))
            .expect("loopback");
        let parameters = [
            ("ipv4/ip_forward", "1"),
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv6/conf/all/forwarding", "1"),
        ];
        node.set(&parameters).expect("forwarding");
        plug(&node, &client, &[client_ip]).expect("a pod");
        plug(&node, &server, &[server_ip]).expect("a pod");
        let server_ip: IpAddr = server_ip.parse().expect("an address");
        let listener = server
            .enter(|| TcpListener::bind((server_ip, PORT)))
            .expect("enter the pod")
            .expect("a listener");
        thread::spawn(move || listener.incoming().flatten().for_each(echo));
        let folder = TempDir::with_prefix("portolan-node-").expect("a folder");
        fs::create_dir(folder.path().join("manifests")).expect("a folder for manifests");
        let world = Self {
            node,
            client,
            server,
            folder,
            pins: PinDir::new(),
            cgroup: Cgroup::new().expect("a cgroup"),
            logs: Cell::new(0),
            binary: RefCell::new(BINARY.into()),
        };
        if own == OF_V4[0] {
            world.write("node.yaml", &node_object(Some(7)));
        }
        world
    }

    pub(crate) fn manifests(&self) -> PathBuf {
        self.folder.path().join("manifests")
    }

    pub(crate) fn pins(&self) -> &Path {
        self.pins.path()
    }

    /// The network namespace of the node.
    pub(crate) fn node(&self) -> &NetNs {
        &self.node
    }

    /// Replaces a manifest file at once.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let new = self.folder.path().join("new");
        fs::write(&new, text).expect("a new file");
        fs::rename(new, self.manifests().join(name)).expect("a file in its place");
    }

    /// A folder that is removed with the world.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn command(&self, starter: &[&str]) -> Command {
        let binary = self.binary.borrow();
        let words = starter.iter().map(OsStr::new);
        let mut words = words.chain([binary.as_os_str()]);
        let mut command = Command::new(words.next().expect("the agent at least"));
        command.args(words);
        command.args(["run", "--hostname-override", "node-a"]);
        command
    }

    /// Starts an agent and waits until it has applied this version of the Node object.
    pub(crate) fn start(&self, version: u64) -> Agent<'_> {
        self.start_with(version, &[])
    }

    /// Starts an agent with this configuration and waits in the same way.
    pub(crate) fn start_configured(&self, version: u64, config: &str) -> Agent<'_> {
        let path = self.configure(config);
        self.start_with(version, &["--config", &path])
    }

    /// Starts an agent that sends every packet through the node's stack.
    pub(crate) fn start_by_stack(&self, version: u64) -> Agent<'_> {
        self.start_configured(version, "portolan: {forwarding: stack}\n")
    }

    /// Writes a configuration file with these settings and those of every agent here; returns its
    /// path.
    pub(crate) fn configure(&self, config: &str) -> String {
        let path = self.folder().join("config.yaml");
        fs::write(&path, complete(config)).expect("a config");
        path.to_str().expect("a plain path").to_owned()
    }

    /// Starts an agent of another version; later agents are of that version, too.
    pub(crate) fn start_other(&self, binary: &Path, version: u64) -> Agent<'_> {
        self.change(binary);
        self.start(version)
    }

    /// Makes all later agents start from this binary.
    pub(crate) fn change(&self, binary: &Path) {
        binary.clone_into(&mut self.binary.borrow_mut());
    }

    /// The cgroup at which the socket hooks are attached.
    pub(crate) fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// Starts an agent with more flags and waits in the same way.
    pub(crate) fn start_with(&self, version: u64, flags: &[&str]) -> Agent<'_> {
        let manifests = self.manifests();
        let mut all = vec!["--manifests", manifests.to_str().expect("a plain path")];
        all.extend(flags);
        let agent = self.spawn(&all);
        agent.wait_for(version);
        agent
    }

    /// Starts `portolan cleanup` for the pins of this node, by the binary of the last agent.
    pub(crate) fn cleanup(&self, flags: &[&str]) -> Child {
        self.cleanup_by(&self.binary.borrow(), flags)
    }

    /// Starts `portolan cleanup` by another binary.
    pub(crate) fn cleanup_by(&self, binary: &Path, flags: &[&str]) -> Child {
        let mut command = Command::new(binary);
        command
            .arg("cleanup")
            .arg("--pin-dir")
            .arg(self.pins.path());
        command.args(flags).stdout(Stdio::null());
        let child = self.node.enter(|| command.spawn());
        child.expect("enter the node").expect("a cleanup")
    }

    /// Starts an agent with more flags and waits for nothing.
    pub(crate) fn spawn(&self, flags: &[&str]) -> Agent<'_> {
        self.spawn_by(&[], flags)
    }

    /// Starts an agent through another program, which sets the agent's rights; waits for nothing.
    pub(crate) fn spawn_by(&self, starter: &[&str], flags: &[&str]) -> Agent<'_> {
        let number = self.logs.get();
        self.logs.set(number + 1);
        let log = self.folder.path().join(format!("log{number}"));
        let mut command = self.command(starter);
        command
            .arg("--pin-dir")
            .arg(self.pins.path())
            .args(flags)
            .stderr(File::create(&log).expect("a log"));
        // With a configuration file these flags have no effect.
        let has_file = flags.contains(&"--config");
        if !has_file {
            command.args(["--cluster-cidr", CLUSTER_CIDR]);
        }
        if !has_file && !flags.contains(&"--healthz-bind-address") {
            let address = HEALTH.to_string();
            command.args(["--healthz-bind-address", &address]);
        }
        if !flags.contains(&"--cgroup-root") {
            command.arg("--cgroup-root").arg(self.cgroup.path());
        }
        let child = self
            .node
            .enter(|| command.spawn())
            .expect("enter the node")
            .expect("an agent");
        Agent::new(&self.node, child, log)
    }

    /// Runs an agent that must end by itself; returns its status and messages.
    pub(crate) fn run(&self, flags: &[&str]) -> (ExitStatus, String) {
        let mut command = self.command(&[]);
        command.arg("--manifests").arg(self.manifests());
        if !flags.contains(&"--pin-dir") {
            command.arg("--pin-dir").arg(self.pins.path());
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

    /// Connects from the client pod.
    pub(crate) fn connect(&self, to: &str) -> io::Result<Open> {
        Open::connect(&self.client, to)
    }

    /// Connects from a process of the node.
    pub(crate) fn connect_from_node(&self, to: &str) -> io::Result<Open> {
        let connected = self.cgroup.inside(|| Open::connect(&self.node, to));
        connected.expect("enter the cgroup")
    }

    /// The client pod, which serves nothing.
    pub(crate) fn client(&self) -> &NetNs {
        &self.client
    }

    /// The server pod.
    pub(crate) fn server(&self) -> &NetNs {
        &self.server
    }

    /// The node's interface to the client.
    pub(crate) fn client_interface(&self) -> String {
        self.interface_to(CLIENT)
    }

    /// The node's interface to the server.
    pub(crate) fn server_interface(&self) -> String {
        self.interface_to(SERVER)
    }

    /// The number of IPv4 packets that the node's stack has forwarded.
    pub(crate) fn forwarded(&self) -> u64 {
        forwarded(&self.node)
    }

    /// The node's interface to a pod.
    pub(crate) fn interface_to(&self, pod: &str) -> String {
        let route = self.node.feed("ip", &["-o", "route", "get", pod], "");
        let route = route.expect("a route to the pod");
        let mut words = route.split_whitespace();
        words.find(|word| *word == "dev").expect("an interface");
        words.next().expect("its name").to_owned()
    }

    /// Gives the node another uplink with this address.
    pub(crate) fn add_uplink(&self, address: &str) {
        let batch = format!(
            "link add late type veth peer name far\nlink set far up\naddress add {address} dev late\nlink set late up\n"
        );
        self.node.ip(&batch).expect("the node's interfaces");
    }

    /// Gives the node a device without a link-layer header, and a route to an address behind it.
    pub(crate) fn add_tunnel(&self, far: &str) -> Tunnel {
        let tunnel = self.node.enter(|| Tunnel::new("tun0"));
        let batch = format!(
            "address add 10.9.0.1/32 dev tun0\nlink set tun0 up\nroute add {far}/32 dev tun0\n"
        );
        self.node.ip(&batch).expect("the node's interfaces");
        tunnel.expect("enter the node").expect("a device")
    }

    /// Removes the client pod's interface and gives the pod another one.
    pub(crate) fn replug_client(&self) {
        self.replug(&self.client, CLIENT);
    }

    /// Does the same with the server pod. Its listener stays.
    pub(crate) fn replug_server(&self) {
        self.replug(&self.server, SERVER);
    }

    fn replug(&self, pod: &NetNs, address: &str) {
        pod.ip("link del eth0\n").expect("the pod's interface");
        plug(&self.node, pod, &[address]).expect("a pod");
    }
}

/// A configuration file with these settings and those of every agent here.
pub(crate) fn complete(config: &str) -> String {
    let more = [
        ("clusterCIDR", format!("'{CLUSTER_CIDR}'")),
        ("healthzBindAddress", HEALTH.to_string()),
    ];
    config_file(config, &more)
}

/// The number of IPv4 packets that a host's stack has forwarded.
pub(crate) fn forwarded(host: &NetNs) -> u64 {
    let counters = host.feed("cat", &["/proc/net/snmp"], "");
    let counters = counters.expect("the stack's counters");
    let mut lines = counters.lines().filter(|line| line.starts_with("Ip:"));
    let names = lines.next().expect("names").split_whitespace();
    let values = lines.next().expect("values").split_whitespace();
    let mut both = names.zip(values);
    let (_, count) = both.find(|(name, _)| *name == "ForwDatagrams").expect("it");
    count.parse().expect("a number")
}
