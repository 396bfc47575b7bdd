// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node with a client pod and two pods that serve, an agent whose hooks are on a cgroup of the node's
//! own, and places to run a client in.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    process::{Child, Command, Stdio},
    thread::{self, sleep},
    time::{Duration, Instant},
};

use lab::node::{
    agent::{Agent, Manifests, Options},
    bpffs,
    cgroup::Cgroup,
    netns::NetNs,
    settings::SocketBalancing,
};
use portolan::datapath::read::{Reader, SocketRow};
use proxy_common::Counter;

pub(crate) const CLIENT: &str = "10.40.1.10";
pub(crate) const ONE: &str = "10.40.1.20";
pub(crate) const NODE: &str = "192.168.40.2";
/// Where the pods serve, TCP and UDP.
pub(crate) const PORT: u16 = 8080;
/// Long enough for an answer on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

/// A service of one port.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) name: &'static str,
    /// The last number of its cluster IPs, 172.30.0.N and fd00:30::N.
    pub(crate) number: u8,
    pub(crate) protocol: &'static str,
    pub(crate) port: u16,
    /// Last numbers of its pods' addresses.
    pub(crate) endpoints: Vec<u8>,
    /// Further fields of the spec.
    pub(crate) spec: &'static str,
}

impl Service {
    pub(crate) fn new(number: u8, protocol: &'static str, endpoints: &[u8]) -> Self {
        Self {
            name: ["zero", "one", "two", "three", "four"][usize::from(number)],
            number,
            protocol,
            port: 80,
            endpoints: endpoints.to_vec(),
            spec: "",
        }
    }

    fn render(&self) -> String {
        let Self {
            name,
            number,
            protocol,
            port,
            spec,
            ..
        } = self;
        let node_port = 30_000 + u16::from(*number);
        let mut text = format!(
            "---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop}}
spec:
  type: NodePort
  clusterIP: 172.30.0.{number}
  clusterIPs: [172.30.0.{number}, 'fd00:30::{number}']
  ipFamilies: [IPv4, IPv6]
  ports: [{{port: {port}, targetPort: {PORT}, nodePort: {node_port}, protocol: {protocol}}}]
{spec}
"
        );
        for (family, prefix) in [("IPv4", "10.40.1."), ("IPv6", "fd00:40:0:1::")] {
            let endpoints: Vec<_> = self
                .endpoints
                .iter()
                .map(|last| format!("{{addresses: ['{prefix}{last}'], nodeName: node-a}}"))
                .collect();
            text += &format!(
                "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-{family}, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: {family}
ports: [{{name: '', protocol: {protocol}, port: {PORT}}}]
endpoints: [{}]
",
                endpoints.join(", ")
            );
        }
        text
    }
}

/// The cluster IP of service `number` with its port.
pub(crate) fn vip(number: u8) -> SocketAddr {
    SocketAddr::new([172, 30, 0, number].into(), 80)
}

pub(crate) fn vip6(number: u8) -> SocketAddr {
    address(&format!("[fd00:30::{number}]:80"))
}

pub(crate) fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address and port")
}

/// Where a client runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum From {
    Pod,
    Node,
}

/// The node and everything on it. Dropping it ends the agent and removes what it left.
pub(crate) struct World {
    agent: Agent<'static>,
    node: &'static NetNs,
    client: NetNs,
    _servers: [NetNs; 2],
    cgroup: Cgroup,
    config: String,
    version: u64,
}

impl World {
    pub(crate) fn new(balancing: SocketBalancing, config: &str, services: &[Service]) -> Self {
        bpffs::prepare().expect("a BPF file system");
        // As long as the test program lives: the agent refers to it.
        let node: &'static NetNs = Box::leak(Box::new(netns("node")));
        node.ip(&format!(
            "link set lo up\nlink add uplink type veth peer name far\nlink set far up\nlink set uplink up\naddress add {NODE}/24 dev uplink\nneigh add 192.168.40.1 lladdr 02:00:00:00:00:01 dev uplink\nroute add default via 192.168.40.1\n"
        ))
        .expect("the node's interfaces");
        node.set(&[
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv4/conf/all/rp_filter", "0"),
        ])
        .expect("forwarding");
        let pods = [10, 20, 21].map(|last| {
            let pod = netns("pod");
            plug(node, &pod, last);
            pod
        });
        let [client, one, two] = pods;
        serve(&one, "one");
        serve(&two, "two");
        let cgroup = Cgroup::new().expect("a cgroup");
        let cidrs = ["10.40.0.0/16", "fd00:40::/48"].map(|cidr| cidr.parse().expect("a range"));
        let options = Options {
            binary: Path::new(env!("CARGO_BIN_EXE_portolan")),
            node_name: "node-a",
            cluster_cidrs: &cidrs,
            config,
            socket_balancing: balancing,
            kubeconfig: None,
            cgroup_root: cgroup.path(),
        };
        let text = objects(1, services);
        let mut agent = Agent::start(node, &options, &Manifests::Text(&text)).expect("an agent");
        if let Err(error) = agent.wait_for(1) {
            panic!("{error:#}: {:#?}", agent.log_tail(20));
        }
        Self {
            agent,
            node,
            client,
            _servers: [one, two],
            cgroup,
            config: config.to_owned(),
            version: 1,
        }
    }

    /// Replaces the services and waits until that has taken effect.
    pub(crate) fn publish(&mut self, services: &[Service]) {
        self.publish_with(services, "");
    }
    /// The same with further objects.
    pub(crate) fn publish_with(&mut self, services: &[Service], more: &str) {
        self.version += 1;
        self.agent
            .publish(&(objects(self.version, services) + more))
            .expect("manifests");
        self.agent.wait_for(self.version).expect("to take effect");
    }

    /// Starts the agent anew with another setting.
    pub(crate) fn restart(&mut self, balancing: SocketBalancing) {
        let cidrs = ["10.40.0.0/16", "fd00:40::/48"].map(|cidr| cidr.parse().expect("a range"));
        let options = Options {
            binary: Path::new(env!("CARGO_BIN_EXE_portolan")),
            node_name: "node-a",
            cluster_cidrs: &cidrs,
            config: &self.config,
            socket_balancing: balancing,
            kubeconfig: None,
            cgroup_root: self.cgroup.path(),
        };
        self.agent.restart(&options).expect("an agent");
        self.agent.wait_for(self.version).expect("to take effect");
    }

    /// Ends the agent and has its programs serve what there is, until the child is ended.
    pub(crate) fn drain(&mut self) -> Child {
        self.agent.end();
        let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
        command.args(["cleanup", "--drain", "--pin-dir"]);
        command.arg(self.agent.pin_dir()).stdout(Stdio::piped());
        let mut child = self
            .node
            .enter(|| command.spawn())
            .expect("enter the node")
            .expect("a cleanup");
        let said = child.stdout.as_mut().expect("its output");
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line).expect("a line");
        assert!(
            line.starts_with("new connections are no longer served"),
            "{line}"
        );
        child
    }

    /// Does something as a process of the pod or of the node; sockets made there belong there for good.
    pub(crate) fn run<T>(&self, from: From, work: impl FnOnce() -> T) -> T {
        let namespace = match from {
            From::Pod => &self.client,
            From::Node => self.node,
        };
        self.cgroup
            .inside(|| namespace.enter(work))
            .expect("enter the cgroup")
            .expect("enter the namespace")
    }

    pub(crate) fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }
    pub(crate) fn client(&self) -> &NetNs {
        &self.client
    }
    pub(crate) fn pins(&self) -> &Path {
        self.agent.pin_dir()
    }
    pub(crate) fn log(&self) -> String {
        self.agent.log_tail(50).join("\n")
    }
    pub(crate) fn reader(&self) -> Reader {
        Reader::open(self.pins()).expect("pinned maps")
    }
    /// What the hooks know.
    pub(crate) fn sockets(&self) -> Vec<SocketRow> {
        self.reader().sockets().expect("sockets")
    }
    /// What the hooks knew went with the sockets: at once, but a process that another test is just starting holds a copy of
    /// every descriptor until it runs.
    pub(crate) fn expect_no_socket(&self) {
        assert_eq!(self.after_closing(0), [], "they go with their sockets");
    }
    /// What is known when so many entries are left, or after a while that should have been enough.
    pub(crate) fn after_closing(&self, left: usize) -> Vec<SocketRow> {
        let deadline = Instant::now() + Duration::from_secs(2);
        loop {
            let sockets = self.sockets();
            if sockets.len() == left || Instant::now() > deadline {
                return sockets;
            }
            sleep(Duration::from_millis(10));
        }
    }
    /// Flows on the packet path.
    pub(crate) fn flows(&self) -> usize {
        self.reader().flows().expect("flows").len()
    }
    pub(crate) fn count(&self, counter: Counter) -> u64 {
        self.reader().counters().expect("counters")[counter as usize]
    }
}

fn netns(name: &str) -> NetNs {
    NetNs::new(name).expect("run as root")
}

/// Joins a pod to the node by a veth pair and host routes, as point-to-point CNIs do.
fn plug(node: &NetNs, pod: &NetNs, last: u8) {
    let (v4, v6) = (format!("10.40.1.{last}"), format!("fd00:40:0:1::{last}"));
    let path = pod.path();
    node.ip(&format!(
        "link add pod{last} type veth peer name eth0 netns {path}
address add 169.254.1.1/32 dev pod{last}
address add fe80::1/64 dev pod{last} nodad
link set pod{last} up
route add {v4}/32 dev pod{last}
route add {v6}/128 dev pod{last}
"
    ))
    .expect("the node's interfaces");
    pod.ip(&format!(
        "link set lo up
address add {v4}/32 dev eth0
address add {v6}/128 dev eth0 nodad
link set eth0 up
route add 169.254.1.1/32 dev eth0
route add default via 169.254.1.1 dev eth0
route add default via fe80::1 dev eth0
"
    ))
    .expect("the pod's interface");
}

/// Serves TCP and UDP in a pod: says its name and whom it sees, then echoes.
fn serve(pod: &NetNs, name: &'static str) {
    let everywhere = SocketAddr::new(IpAddr::from([0u16; 8]), PORT);
    let (tcp, udp) = pod
        .enter(|| (TcpListener::bind(everywhere), UdpSocket::bind(everywhere)))
        .expect("enter the pod");
    let (tcp, udp) = (tcp.expect("a listener"), udp.expect("a socket"));
    thread::spawn(move || {
        for stream in tcp.incoming().flatten() {
            thread::spawn(move || answer(stream, name));
        }
    });
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((_, from)) = udp.recv_from(&mut buffer) {
            let seen = canonical(from);
            _ = udp.send_to(format!("{name} {seen}").as_bytes(), from);
        }
    });
}

fn answer(mut stream: TcpStream, name: &str) -> io::Result<()> {
    let seen = canonical(stream.peer_addr()?);
    writeln!(stream, "{name} {seen}")?;
    io::copy(&mut stream.try_clone()?, &mut stream).map(drop)
}

/// IPv4 addresses as such, however the socket shows them.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn objects(version: u64, services: &[Service]) -> String {
    let mut text = format!(
        "apiVersion: v1
kind: Node
metadata: {{name: node-a, resourceVersion: '{version}'}}
status: {{addresses: [{{type: InternalIP, address: {NODE}}}]}}
"
    );
    for service in services {
        text += &service.render();
    }
    text
}
