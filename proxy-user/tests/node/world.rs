// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node with two routed pods, one of which answers, and agents that a test starts on it.

mod agents;

use std::{
    cell::{Cell, RefCell},
    fmt::Display,
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Child, Command, Output},
    sync::Arc,
    time::Duration,
};

use datapath::{
    maps::pins::generations,
    read::{Flow, Reader},
};
use lab::node::{
    bpffs::{self, PinDir},
    cgroup::Cgroup,
    foreign::{ChainPosition, END, Foreign},
    netns::NetNs,
    pod::{plug, wire},
};
use proxy_common::Counter;
use tempfile::TempDir;

use crate::{
    connection::{Open, serve},
    objects::{Service, node_object},
};

pub(crate) use self::agents::complete;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_portolan");
pub(crate) const CLIENT: &str = "10.40.1.10";
pub(crate) const SERVER: &str = "10.40.1.20";
/// The cluster IP and the node port of the service `cart`.
pub(crate) const CART: &str = "172.30.1.1:80";
pub(crate) const NODE_PORT: &str = "10.40.0.1:30001";
/// The port at which the server pod answers.
const PORT: u16 = 8080;
/// The addresses of the node, the client and the server.
pub(crate) const OF_V4: [&str; 3] = ["10.40.0.1", CLIENT, SERVER];
pub(crate) const OF_V6: [&str; 3] = ["fd00:c0::1", "fd00:40::10", "fd00:40::20"];
/// The kernel parameters of a router without reverse path filters.
pub(crate) const ROUTER: [(&str, &str); 3] = [
    ("ipv4/ip_forward", "1"),
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv6/conf/all/forwarding", "1"),
];
/// How long to wait: only a fault takes longer. On a busy host, loading programs takes minutes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// The node, its pods and the manifest folder; dropping it removes all of them and the pins.
pub(crate) struct World {
    node: Arc<NetNs>,
    /// The client pod, which serves nothing.
    pub(crate) client: NetNs,
    /// The server pod.
    pub(crate) server: NetNs,
    /// It is removed with the world.
    pub(crate) folder: TempDir,
    pins: PinDir,
    /// The cgroup at which the socket hooks are attached.
    pub(crate) cgroup: Cgroup,
    logs: Cell<u32>,
    binary: RefCell<PathBuf>,
    confined: Cell<bool>,
}

impl World {
    pub(crate) fn build() -> Self {
        let world = Self::with_pods(OF_V4);
        world.write("node.yaml", node_object(&[OF_V4[0]], 7));
        world
    }

    /// Builds a node with the service `cart`: cluster IP 172.30.1.1, node port 30001.
    pub(crate) fn serving() -> Self {
        let world = Self::build();
        world.publish(Service::new("cart", "172.30.1.1"));
        world
    }

    /// Builds a node with these addresses of its own, its client and its server, and no Node.
    pub(crate) fn with_pods([own, client, server]: [&str; 3]) -> Self {
        let world = Self::bare(&ROUTER);
        world.ip(&format!("address add {own} dev lo"));
        world.plug(&world.client, client);
        world.plug(&world.server, server);
        serve(&world.server, (server, PORT));
        world
    }

    /// Builds a node with these kernel parameters, without an address and without its pods.
    pub(crate) fn bare(parameters: &[(&str, &str)]) -> Self {
        bpffs::prepare().expect("a BPF file system");
        let [node, client, server] =
            ["node", "client", "server"].map(|name| NetNs::new(name).expect("run as root"));
        node.set(parameters).expect("kernel parameters");
        node.suit_conntrack().expect("nf_conntrack's parameters");
        node.ip("link set lo up\n").expect("loopback");
        let folder = TempDir::with_prefix("portolan-node-").expect("a folder");
        fs::create_dir(folder.path().join("manifests")).expect("a folder for manifests");
        Self {
            node: Arc::new(node),
            client,
            server,
            folder,
            pins: PinDir::new(),
            cgroup: Cgroup::new().expect("a cgroup"),
            logs: Cell::new(0),
            binary: RefCell::new(BINARY.into()),
            confined: Cell::new(false),
        }
    }

    /// Attaches a pod to the node, with this address.
    pub(crate) fn plug(&self, pod: &NetNs, address: &str) {
        plug(&self.node, pod, &[address]).expect("a pod");
    }

    /// Makes a pod, or a host that is none, and attaches it to the node in the same way.
    pub(crate) fn pod(&self, address: &str) -> NetNs {
        let pod = NetNs::new(address).expect("run as root");
        self.plug(&pod, address);
        pod
    }

    /// Joins a new host to the node by a wire, given by its ends (see [`wire`]). The host sends by
    /// the addresses of the node's end.
    pub(crate) fn host(&self, end: &str, far_end: &str) -> NetNs {
        let host = NetNs::new(far_end).expect("run as root");
        wire(&self.node, end, &host, far_end).expect("a wire");
        // A host without an address only makes the node's end a working interface.
        let has_address = far_end.contains(' ');
        for address in end.split(' ').skip(1).filter(|_| has_address) {
            let (gateway, _) = address.split_once('/').expect("a length");
            let route = format!("route add default via {gateway}\n");
            host.ip(&route).expect("a route");
        }
        host
    }

    /// Makes the bridge `br0` with this address. CNI plugins give it a MAC of its own, too: one
    /// that comes from its ports may change when a pod goes.
    pub(crate) fn add_bridge(&self, gateway: &str) {
        let nodad = if gateway.contains(':') { " nodad" } else { "" };
        self.ip(&format!(
            "link add br0 address 02:00:00:00:ff:01 type bridge forward_delay 0 mcast_snooping 0
address add {gateway} dev br0{nodad}
link set br0 up"
        ));
    }

    /// Makes a pod with this address at a port of the bridge, as the CNI plugin `bridge` does.
    pub(crate) fn bridged_pod(&self, port: &str, address: &str, gateway: &str) -> NetNs {
        let pod = NetNs::new(address).expect("run as root");
        wire(&self.node, port, &pod, &format!("eth0 {address}")).expect("a wire");
        self.ip(&format!("link set {port} master br0"));
        let route = format!("route add default via {gateway}\n");
        pod.ip(&route).expect("a route");
        pod
    }

    /// The path of the manifest folder.
    pub(crate) fn manifests(&self) -> String {
        self.path("manifests")
    }

    pub(crate) fn pins(&self) -> &Path {
        self.pins.path()
    }

    /// The network namespace of the node.
    pub(crate) fn node(&self) -> &NetNs {
        &self.node
    }

    /// Replaces a manifest file at once.
    pub(crate) fn write(&self, name: &str, text: impl Display) {
        let new = self.path("new");
        fs::write(&new, text.to_string()).expect("a new file");
        fs::rename(new, self.path(&format!("manifests/{name}"))).expect("a file in its place");
    }

    /// Writes the manifest of a service.
    pub(crate) fn publish(&self, service: Service) {
        self.write(&service.file(), service);
    }

    /// The path of a file in the folder.
    pub(crate) fn path(&self, file: &str) -> String {
        let path = self.folder.path().join(file);
        path.to_str().expect("a plain path").to_owned()
    }

    /// Starts a program on the node.
    pub(crate) fn begin(&self, command: &mut Command) -> Child {
        let child = self.node.enter(|| command.spawn());
        child.expect("enter the node").expect("it starts")
    }

    /// Runs a program on the node.
    pub(crate) fn output(&self, command: &mut Command) -> Output {
        let output = self.node.enter(|| command.output());
        output.expect("enter the node").expect("it runs")
    }

    /// Runs a tool on the node, with words separated by blanks; returns its output or panics.
    pub(crate) fn tool(&self, program: &str, words: &str) -> String {
        let words: Vec<_> = words.split_whitespace().collect();
        self.node.feed(program, &words, "").expect("it succeeds")
    }

    /// Runs commands of iproute2 on the node, one a line.
    pub(crate) fn ip(&self, batch: &str) {
        let ran = self.node.ip(&format!("{batch}\n"));
        ran.expect("commands of iproute2");
    }

    /// Runs commands of nft on the node, one a line.
    pub(crate) fn nft(&self, rules: &str) {
        let fed = self.node.feed("nft", &["-f", "-"], rules);
        fed.expect("commands of nft");
    }

    /// Sets a kernel parameter of the node: its path below /proc/sys/net, and its value.
    pub(crate) fn set(&self, parameter: &str, value: &str) {
        self.node.set(&[(parameter, value)]).expect("a parameter");
    }

    /// The index of an interface of the node.
    pub(crate) fn index(&self, interface: &str) -> u32 {
        let index = self.node.enter(|| nix::net::if_::if_nametoindex(interface));
        index.expect("enter the node").expect("the interface")
    }

    /// Attaches a tc program of other software, which ends the chain, to an interface of the node.
    pub(crate) fn foreign(&self, interface: &str, egress: bool, at: ChainPosition) -> Foreign<'_> {
        Foreign::new(&self.node, interface, egress, at, END).expect("attached")
    }

    /// The number of generations of maps that have pins.
    pub(crate) fn generations(&self) -> usize {
        generations(self.pins()).expect("pins").len()
    }

    /// The entries of the flow tables.
    pub(crate) fn flows(&self) -> Vec<Flow> {
        let flows = Reader::open(self.pins()).and_then(|reader| reader.flows());
        flows.expect("flows")
    }

    /// The present value of a counter.
    pub(crate) fn count(&self, counter: Counter) -> u64 {
        let counters = Reader::open(self.pins()).and_then(|reader| reader.counters());
        counters.expect("counters")[counter as usize]
    }

    /// Connects from the client pod.
    pub(crate) fn connect(&self, to: &str) -> io::Result<Open> {
        Open::connect(&self.client, to)
    }

    /// Whether a connection from the client pod succeeds.
    pub(crate) fn answers(&self, to: &str) -> bool {
        self.connect(to).is_ok()
    }

    /// Connects from a process of the node.
    pub(crate) fn connect_from_node(&self, to: &str) -> io::Result<Open> {
        self.in_node_process(|| Open::connect(&self.node, to))
    }

    /// Connects from the client pod, translated at its socket.
    pub(crate) fn connect_at_socket(&self, to: &str) -> io::Result<Open> {
        let connected = self.cgroup.inside(|| self.connect(to));
        connected.expect("enter the cgroup")
    }

    /// Runs `work` as a process of the node, whose sockets the hooks see.
    pub(crate) fn in_node_process<T>(&self, work: impl FnOnce() -> T) -> T {
        let done = self.cgroup.inside(|| self.node.enter(work));
        done.expect("enter the cgroup").expect("enter the node")
    }

    /// The number of packets of both families that the node's stack has forwarded.
    pub(crate) fn forwarded(&self) -> u64 {
        let counters = self.tool("cat", "/proc/net/snmp /proc/net/snmp6");
        let mut lines = counters.lines().filter(|line| line.starts_with("Ip:"));
        let names = lines.next().expect("names").split_whitespace();
        let values = lines.next().expect("values").split_whitespace();
        let v4 = names.zip(values).find(|(name, _)| *name == "ForwDatagrams");
        let mut lines = counters.lines();
        let v6 = lines.find_map(|line| line.strip_prefix("Ip6OutForwDatagrams"));
        let both = [v4.expect("it").1, v6.expect("it").trim()];
        let both = both.map(|count| count.parse::<u64>().expect("a number"));
        both.iter().sum()
    }

    /// The node's interface to a pod.
    pub(crate) fn interface_to(&self, pod: &str) -> String {
        let route = self.tool("ip", &format!("-o route get {pod}"));
        let mut words = route.split_whitespace();
        words.find(|word| *word == "dev").expect("an interface");
        words.next().expect("its name").to_owned()
    }

    /// Removes a pod's interface and gives the pod another one. Its listeners stay.
    pub(crate) fn replug(&self, pod: &NetNs, address: &str) {
        pod.ip("link del eth0\n").expect("the pod's interface");
        self.plug(pod, address);
    }
}

/// The numbers of packets that a host's interface has received and sent.
pub(crate) fn packets(host: &NetNs, interface: &str) -> [u64; 2] {
    let devices = host.feed("cat", &["/proc/net/dev"], "");
    let devices = devices.expect("the interfaces' counters");
    let own = format!("{interface}:");
    let mut lines = devices.lines();
    let line = lines.find_map(|line| line.trim().strip_prefix(&own));
    let words: Vec<_> = line.expect("the interface").split_whitespace().collect();
    [1, 9].map(|column: usize| words[column].parse().expect("a number"))
}

/// Parses an address and port.
pub(crate) fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address and port")
}

/// The address of this family that means any.
pub(crate) fn any(v6: bool) -> IpAddr {
    match v6 {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    }
}
