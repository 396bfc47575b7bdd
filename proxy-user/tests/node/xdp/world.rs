// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node between a client and a backend behind routers, in one address family, with XDP at both of
//! its uplinks.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use datapath::read::Reader;
use lab::node::{
    agent::{Agent, Manifests, Options},
    bpffs,
    cgroup::Cgroup,
    netns::NetNs,
    routed_path::RoutedPath,
    settings::{SocketBalancing, Xdp},
    topology::NODE_PARAMETERS,
};
use linux::attached_xdp;
use proxy_common::Counter;

use crate::world::{BINARY, PATIENCE};

const PORT: u16 = 8080;
const NODE_PORT: u16 = 30_080;
/// The node's uplinks.
pub(super) const UPLINKS: [&str; 2] = ["clients", "backends"];
/// A packet that has not arrived within this time is lost.
const SOON: Duration = Duration::from_secs(5);

pub(super) struct World {
    pub(super) agent: Agent<'static>,
    pub(super) node: &'static NetNs,
    pub(super) clients: RoutedPath,
    pub(super) backends: RoutedPath,
    cgroup: Cgroup,
    service: SocketAddr,
    backend: SocketAddr,
    /// The first router towards the backend.
    pub(super) next_hop: IpAddr,
}

fn addresses(v6: bool) -> [[[IpAddr; 2]; 3]; 2] {
    let links = if v6 {
        [
            "fd00:c0::",
            "fd00:c0:1::",
            "2001:db8:113::",
            "fd00:c0:2::",
            "fd00:c0:3::",
            "fd00:40:0:2::",
        ]
    } else {
        [
            "192.168.40.",
            "192.168.41.",
            "203.0.113.",
            "192.168.42.",
            "192.168.43.",
            "10.40.2.",
        ]
    };
    let ends =
        links.map(|net| [1, 2].map(|last| format!("{net}{last}").parse().expect("an address")));
    let [a, b, c, d, e, f] = ends;
    [[a, b, c], [d, e, f]]
}

fn objects(node: IpAddr, backend: IpAddr) -> String {
    let (family, cluster_ip) = if node.is_ipv6() {
        ("IPv6", "fd00:30::1")
    } else {
        ("IPv4", "172.30.0.1")
    };
    format!(
        "apiVersion: v1
kind: Node
metadata: {{name: node-a, resourceVersion: '1'}}
status: {{addresses: [{{type: InternalIP, address: '{node}'}}]}}
---
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: shop}}
spec:
  type: NodePort
  clusterIP: '{cluster_ip}'
  clusterIPs: ['{cluster_ip}']
  ipFamilies: [{family}]
  ports:
  - {{name: tcp, protocol: TCP, port: 80, targetPort: {PORT}, nodePort: {NODE_PORT}}}
  - {{name: udp, protocol: UDP, port: 80, targetPort: {PORT}, nodePort: {NODE_PORT}}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}
addressType: {family}
ports: [{{name: tcp, protocol: TCP, port: {PORT}}}, {{name: udp, protocol: UDP, port: {PORT}}}]
endpoints: [{{addresses: ['{backend}'], nodeName: node-b}}]
"
    )
}

/// The configuration for one mode of XDP.
pub(super) fn config(xdp: Xdp) -> String {
    let [a, b] = UPLINKS;
    format!(
        "{{portolan: {{xdp: '{}', xdpInterfaces: [{a}, {b}]}}}}",
        xdp.name()
    )
}

impl World {
    pub(super) fn new(v6: bool, xdp: Xdp) -> Self {
        Self::prepared(v6, xdp, |_| {})
    }
    /// Builds the same on a node that `prepare` has changed before.
    pub(super) fn prepared(v6: bool, xdp: Xdp, prepare: impl FnOnce(&NetNs)) -> Self {
        bpffs::prepare().expect("a BPF file system");
        let [to_client, to_backend] = addresses(v6);
        // Leaked on purpose: the agent refers to the node as long as the test program lives.
        let node: &'static NetNs = Box::leak(Box::new(NetNs::new("node").expect("run as root")));
        node.set(&NODE_PARAMETERS).expect("forwarding");
        node.ip("link set lo up\n").expect("loopback");
        let [clients, backends] = UPLINKS;
        let clients = RoutedPath::build(node, clients, to_client).expect("a way");
        let backends = RoutedPath::build(node, backends, to_backend).expect("a way");
        for way in [&clients, &backends] {
            way.prepare_for_xdp().expect("offloads");
        }
        prepare(node);
        let cgroup = Cgroup::new().expect("a cgroup");
        let (service, backend) = (to_client[0][0], to_backend[2][1]);
        let text = objects(service, backend);
        let agent = Agent::start(
            node,
            &options(&config(xdp), cgroup.path()),
            &Manifests::Text(&text),
        );
        let mut world = Self {
            agent: agent.expect("an agent"),
            node,
            clients,
            backends,
            cgroup,
            service: SocketAddr::new(service, NODE_PORT),
            backend: SocketAddr::new(backend, PORT),
            next_hop: to_backend[0][1],
        };
        world.wait();
        world
    }
    fn wait(&mut self) {
        if let Err(error) = self.agent.wait_for(1) {
            panic!("{error:#}: {:#?}", self.agent.log_tail(20));
        }
    }
    /// Starts the agent again, with another configuration.
    pub(super) fn restart(&mut self, config: &str) {
        let options = options(config, self.cgroup.path());
        self.agent.restart(&options).expect("an agent");
        self.wait();
    }

    /// The output of a command about this node.
    pub(super) fn told(&self, words: &[&str]) -> String {
        let mut command = Command::new(BINARY);
        let command = command
            .args(words)
            .arg("--pin-dir")
            .arg(self.agent.pin_dir());
        let ran = self
            .node
            .enter(|| command.output())
            .expect("enter the node");
        let ran = ran.expect("it runs");
        assert!(
            ran.status.success(),
            "{}",
            String::from_utf8_lossy(&ran.stderr)
        );
        String::from_utf8_lossy(&ran.stdout).into_owned()
    }

    /// Whether an uplink has an XDP program.
    pub(super) fn has_program(&self, uplink: &str) -> bool {
        let asked = self.node.enter(|| {
            let index = nix::net::if_::if_nametoindex(uplink).expect("it is there");
            attached_xdp(index).expect("an answer")
        });
        asked.expect("enter the node").is_some()
    }
    pub(super) fn wait_for_programs(&self) {
        self.eventually("the programs are there", || {
            UPLINKS.iter().all(|uplink| self.has_program(uplink))
        });
    }
    pub(super) fn eventually(&self, what: &str, mut so: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !so() {
            assert!(
                Instant::now() < deadline,
                "{what}: {:#?}",
                self.agent.log_tail(30)
            );
            thread::sleep(Duration::from_millis(50));
        }
    }
    /// Waits until a line of the log contains all these parts.
    pub(super) fn says(&self, parts: &[&str]) {
        self.eventually(&format!("{parts:?}"), || {
            let lines = self.agent.log_tail(200);
            lines
                .iter()
                .any(|line| parts.iter().all(|part| line.contains(part)))
        });
    }

    /// The present value of a counter.
    pub(super) fn counted(&self, counter: Counter) -> u64 {
        let counters = Reader::open(self.agent.pin_dir()).and_then(|reader| reader.counters());
        counters.expect("counters")[counter as usize]
    }
    /// The numbers of packets that XDP has forwarded: to the backend, and back.
    pub(super) fn taken(&self) -> [u64; 2] {
        [Counter::ForwardedByXdp, Counter::ReplyByXdp].map(|counter| self.counted(counter))
    }

    /// A connection to the service, and the backend's end of it. The backend sees the node as its
    /// client.
    pub(super) fn connect(&self) -> (TcpStream, TcpStream) {
        let listener = self
            .at_backend(|| TcpListener::bind(self.backend))
            .expect("a listener");
        let near = self.at_client(|| TcpStream::connect_timeout(&self.service, SOON));
        let near = near.unwrap_or_else(|error| panic!("{error}: {:#?}", self.agent.log_tail(20)));
        let (far, from) = listener.accept().expect("a connection");
        let client = near.local_addr().expect("an address");
        assert_ne!(from.ip(), client.ip(), "it is masqueraded");
        for end in [&near, &far] {
            end.set_read_timeout(Some(SOON)).expect("a timeout");
            end.set_nodelay(true).expect("small segments");
        }
        (near, far)
    }
    /// Two connected UDP sockets: the client's and the backend's.
    pub(super) fn datagrams(&self) -> (UdpSocket, UdpSocket) {
        let any: IpAddr = if self.service.is_ipv6() {
            [0; 16].into()
        } else {
            [0; 4].into()
        };
        let near = self
            .at_client(|| UdpSocket::bind((any, 0)))
            .expect("a socket");
        near.connect(self.service).expect("a destination");
        let far = self
            .at_backend(|| UdpSocket::bind(self.backend))
            .expect("a socket");
        for end in [&near, &far] {
            end.set_read_timeout(Some(SOON)).expect("a timeout");
        }
        (near, far)
    }
    fn at_client<T>(&self, work: impl FnOnce() -> T) -> T {
        self.clients.host().enter(work).expect("enter the host")
    }
    fn at_backend<T>(&self, work: impl FnOnce() -> T) -> T {
        self.backends.host().enter(work).expect("enter the host")
    }
}

fn options<'a>(config: &'a str, cgroup_root: &'a Path) -> Options<'a> {
    Options {
        binary: Path::new(BINARY),
        node_name: "node-a",
        cluster_cidrs: &[],
        config,
        socket_balancing: SocketBalancing::Host,
        kubeconfig: None,
        cgroup_root,
    }
}

/// Sends bytes to the other end, which must receive the same.
pub(super) fn send(from: &mut TcpStream, to: &mut TcpStream, length: usize) {
    let sent: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
    thread::scope(|scope| {
        scope.spawn(|| from.write_all(&sent).expect("sent"));
        let mut received = vec![0; length];
        to.read_exact(&mut received).expect("received");
        assert!(received == sent, "the same bytes");
    });
}

/// Sends some bytes to the other end, and some back.
pub(super) fn ping(near: &mut TcpStream, far: &mut TcpStream) {
    send(near, far, 5);
    send(far, near, 5);
}
