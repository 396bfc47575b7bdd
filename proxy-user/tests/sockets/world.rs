// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node with a client pod, three server pods and an agent whose socket hooks are attached to a
//! cgroup of the test. Clients can run in the client pod or on the node.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    process::{Child, Command, Stdio},
    sync::LazyLock,
    thread::{self, sleep},
    time::{Duration, Instant},
};

use clap::ValueEnum;
use datapath::read::{Reader, SocketRow};
use ipnet::IpNet;
use lab::node::{
    agent::{Agent, Options},
    bpffs,
    cgroup::Cgroup,
    netns::NetNs,
    pod::plug,
    settings::SocketBalancing,
};
use proxy_common::Counter;

use crate::{
    clients::Open,
    service::{Service, objects},
};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_portolan");
pub(crate) const CLIENT: &str = "10.40.1.10";
pub(crate) const ONE: &str = "10.40.1.20";
pub(crate) const NODE: &str = "192.168.40.2";
pub(crate) const NODE6: &str = "fd00:c0::2";
/// The port at which the server pods serve TCP and UDP.
pub(crate) const PORT: u16 = 8080;
/// How long to wait for an answer; long enough for a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

/// Where a client runs: in the client pod or on the node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, ValueEnum)]
pub(crate) enum From {
    #[default]
    Pod,
    Node,
}

/// The node with its pods and its agent. Dropping it ends the agent and removes what it has left.
pub(crate) struct World {
    pub(crate) agent: Agent<'static>,
    node: &'static NetNs,
    client: NetNs,
    _servers: [NetNs; 3],
    pub(crate) cgroup: Cgroup,
    config: String,
    version: u64,
}

impl World {
    /// Starts a node whose agent translates at every socket, and waits for the agent.
    pub(crate) fn new(config: &str, services: &[Service]) -> Self {
        bpffs::prepare().expect("a BPF file system");
        // The agent has a reference to the node, so the node is leaked until the test program ends.
        let node: &'static NetNs = Box::leak(Box::new(NetNs::new("node").expect("run as root")));
        // Routers that answer nothing. Without a default route, the kernel refuses a connect to a
        // service that has been removed.
        let routers = ["192.168.40.1", "fd00:c0::1"].map(|router| {
            format!("neigh add {router} lladdr 02:00:00:00:00:01 dev uplink\nroute add default via {router}\n")
        });
        let interfaces = format!(
            "link set lo up\nlink add uplink type veth peer name far\nlink set far up\nlink set uplink up\naddress add {NODE}/24 dev uplink\naddress add {NODE6}/64 dev uplink nodad\n"
        );
        node.ip(&(interfaces + &routers.concat())).expect("set up");
        node.suit_conntrack().expect("nf_conntrack's parameters");
        node.set(&[
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv4/conf/all/rp_filter", "0"),
        ])
        .expect("forwarding");
        let client = join(node, 10);
        let servers = [20, 21, 22].map(|last| serve(node, last));
        let cgroup = Cgroup::new().expect("a cgroup");
        let text = objects(1, services);
        let options = options(SocketBalancing::All, config, &cgroup);
        let agent = Agent::start(node, &options, &text);
        let mut agent = agent.expect("an agent");
        if let Err(error) = agent.wait_for(1) {
            panic!("{error:#}: {:#?}", agent.log_tail(20));
        }
        Self {
            agent,
            node,
            client,
            _servers: servers,
            cgroup,
            config: config.to_owned(),
            version: 1,
        }
    }

    /// Replaces all services, and waits until the agent has applied them.
    pub(crate) fn publish(&mut self, services: &[Service]) {
        self.version += 1;
        let published = self.agent.publish(&objects(self.version, services));
        published.expect("manifests");
        self.agent.wait_for(self.version).expect("to take effect");
    }

    /// Restarts the agent with another socketBalancing, and waits until it serves again.
    pub(crate) fn restart(&mut self, balancing: SocketBalancing) {
        let options = options(balancing, &self.config, &self.cgroup);
        self.agent.restart(&options).expect("an agent");
        self.agent.wait_for(self.version).expect("to take effect");
    }

    /// Ends the agent and starts `cleanup --drain`, which serves connections until they end.
    pub(crate) fn drain(&mut self) -> Child {
        self.agent.end();
        let mut command = Command::new(BINARY);
        command.args(["cleanup", "--drain", "--pin-dir"]);
        command.arg(self.agent.pin_dir()).stdout(Stdio::piped());
        let child = self.node.enter(|| command.spawn());
        let mut child = child.expect("enter the node").expect("a cleanup");
        let said = child.stdout.as_mut().expect("its output");
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line).expect("a line");
        let has_begun = line.starts_with("new connections are no longer served");
        assert!(has_begun, "{line}");
        child
    }

    /// Runs a function as if in a process of the pod or of the node. Sockets that it opens keep the
    /// network namespace and the cgroup.
    pub(crate) fn run<T>(&self, from: From, work: impl FnOnce() -> T) -> T {
        let ran = self.cgroup.inside(|| self.namespace(from).enter(work));
        ran.expect("enter the cgroup").expect("enter the namespace")
    }

    /// Opens a TCP connection.
    #[track_caller]
    pub(crate) fn open(&self, from: From, to: SocketAddr) -> Open {
        self.run(from, || Open::to(to)).expect("an answer")
    }

    pub(crate) fn namespace(&self, from: From) -> &NetNs {
        match from {
            From::Pod => &self.client,
            From::Node => self.node,
        }
    }
    pub(crate) fn reader(&self) -> Reader {
        Reader::open(self.agent.pin_dir()).expect("pinned maps")
    }
    /// Returns the entries of the socket hooks as rows of `portolan sockets`.
    pub(crate) fn sockets(&self) -> Vec<SocketRow> {
        self.reader().sockets().expect("sockets")
    }
    /// Fails unless all entries are removed with their sockets. This may take some time: a process
    /// that another test starts has copies of all descriptors until it executes its program.
    pub(crate) fn expect_no_socket(&self) {
        assert_eq!(self.after_closing(0), [], "they go with their sockets");
    }
    /// Returns the entries as soon as there are only `left`, or after two seconds.
    pub(crate) fn after_closing(&self, left: usize) -> Vec<SocketRow> {
        until(left, || self.sockets())
    }
    /// Returns the number of flows in the flow tables of the packet path.
    pub(crate) fn flows(&self) -> usize {
        self.reader().flows().expect("flows").len()
    }
    pub(crate) fn count(&self, counter: Counter) -> u64 {
        self.reader().counters().expect("counters")[counter as usize]
    }
}

/// Reads until there are only `left` entries, or for two seconds; returns the last ones.
pub(crate) fn until<T>(left: usize, read: impl Fn() -> Vec<T>) -> Vec<T> {
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        let entries = read();
        if entries.len() == left || Instant::now() > deadline {
            return entries;
        }
        sleep(Duration::from_millis(5));
    }
}

/// The ranges of pods.
static PODS: LazyLock<[IpNet; 2]> =
    LazyLock::new(|| ["10.40.0.0/16", "fd00:40::/48"].map(|range| range.parse().expect("a range")));

/// Returns the options for an agent on this node.
fn options<'a>(balancing: SocketBalancing, config: &'a str, cgroup: &'a Cgroup) -> Options<'a> {
    Options {
        cluster_cidrs: &*PODS,
        config,
        socket_balancing: balancing,
        ..Options::new(Path::new(BINARY), cgroup.path())
    }
}

/// Adds a pod with IPv4 and IPv6 to a node; `last` is the last number of its addresses.
fn join(node: &NetNs, last: u8) -> NetNs {
    let pod = NetNs::new("pod").expect("run as root");
    let addresses = [format!("10.40.1.{last}"), format!("fd00:40:0:1::{last}")];
    plug(node, &pod, &addresses.each_ref().map(String::as_str)).expect("the pod's interface");
    pod
}

/// Adds a pod that serves TCP and UDP. It sends its number and the client's address, then for TCP
/// what the client sends. The answer to a datagram also contains the datagram's text.
fn serve(node: &NetNs, last: u8) -> NetNs {
    let pod = join(node, last);
    let everywhere = SocketAddr::new(IpAddr::from([0u16; 8]), PORT);
    let bind = || (TcpListener::bind(everywhere), UdpSocket::bind(everywhere));
    let (tcp, udp) = pod.enter(bind).expect("enter the pod");
    let (tcp, udp) = (tcp.expect("a listener"), udp.expect("a socket"));
    thread::spawn(move || {
        for stream in tcp.incoming().flatten() {
            thread::spawn(move || answer(stream, last));
        }
    });
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = udp.recv_from(&mut buffer) {
            let (seen, text) = (plain(from), String::from_utf8_lossy(&buffer[..length]));
            _ = udp.send_to(format!("{last} {seen} {text}").as_bytes(), from);
        }
    });
    pod
}

fn answer(mut stream: TcpStream, last: u8) -> io::Result<()> {
    let seen = plain(stream.peer_addr()?);
    writeln!(stream, "{last} {seen}")?;
    io::copy(&mut stream.try_clone()?, &mut stream).map(drop)
}

/// Returns an IPv4-mapped IPv6 address as IPv4, and any other address unchanged.
pub(crate) fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
