// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `xdp` on a node between a client and a backend behind routers: connections and datagrams through
//! it, and when its programs come and go. What becomes of single packets is in tests/packet and
//! tests/fuzz.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use lab::{
    bpf::PASS,
    node::{
        foreign::{ChainPosition, Foreign},
        netns::NetNs,
        offload::prepare_far_end,
        pod::wire,
        settings::Xdp,
        topology::{HOST_PARAMETERS, NODE_PARAMETERS},
    },
};
use linux::attached_xdp;
use proxy_common::Counter;

use crate::{
    agent::Agent,
    connection::{answer_at, asking_at, listen, receive},
    objects::{Service, endpoint, node_object},
    repair::pins,
    world::{World, at},
};

/// A packet that has not arrived within this time is lost.
const SOON: Duration = Duration::from_secs(5);

const PORT: u16 = 8080;
/// The node port of the service.
const SERVICE: &str = "192.168.40.1:30080";
const BACKEND_IP: Ipv4Addr = Ipv4Addr::new(10, 40, 2, 2);
/// The node's uplinks.
const UPLINKS: [&str; 2] = ["clients", "backends"];
/// The networks behind each uplink: of the router, and of the host behind that.
const NETS: [[&str; 2]; 2] = [["192.168.40", "203.0.113"], ["192.168.42", "10.40.2"]];
/// The interface of a router or a host towards the node.
const TO_NODE: &str = "eth0";

struct Node {
    /// The agent; None after [`Self::end`].
    agent: Option<Agent>,
    /// No pods are attached.
    world: World,
    /// Behind each uplink a router, and the host behind that: the client, and the backend.
    hops: [[NetNs; 2]; 2],
}

impl Node {
    /// Builds the hosts and a service over TCP and UDP, and starts an agent.
    fn new() -> Self {
        let world = World::bare(&NODE_PARAMETERS);
        let hops = [0, 1].map(|side: usize| {
            let hops = ["router", "host"].map(|name| NetNs::new(name).expect("run as root"));
            let ([router, host], [near, beyond]) = (&hops, NETS[side]);
            router.set(&NODE_PARAMETERS).expect("a router");
            host.set(&HOST_PARAMETERS).expect("a host");
            for (from, down, to, net) in [
                (world.node(), UPLINKS[side], router, near),
                (router, "eth1", host, beyond),
            ] {
                let ends = [(down, 1), (TO_NODE, 2)];
                let ends = ends.map(|(name, last)| format!("{name} {net}.{last}/24"));
                wire(from, &ends[0], to, &ends[1]).expect("a link");
                let default = to.ip(&format!("route add default via {net}.1\n"));
                default.expect("a route");
            }
            world.ip(&format!("route add {beyond}.0/24 via {near}.2"));
            let prepared = router.enter(|| prepare_far_end(TO_NODE));
            prepared.expect("enter the router").expect("offloads");
            hops
        });
        world.write("node.yaml", node_object(&["192.168.40.1"], 7));
        let node_port = Some(30_080);
        let web = Service::new("web", "172.30.0.1")
            .ports(&[("tcp", "TCP", 80, node_port), ("udp", "UDP", 80, node_port)])
            .endpoints(vec![endpoint(&BACKEND_IP.to_string())]);
        world.publish(web.on("node-b"));
        let agent = None;
        let mut node = Self { agent, world, hops };
        node.start(Xdp::Native);
        node
    }

    fn start(&mut self, xdp: Xdp) {
        let ([a, b], xdp) = (UPLINKS, xdp.name());
        let config = format!("{{portolan: {{xdp: '{xdp}', xdpInterfaces: [{a}, {b}]}}}}");
        self.agent = Some(self.world.start_by_packet(&config));
    }

    /// Ends the agent; its programs stay.
    fn end(&mut self) {
        let agent = self.agent.take().expect("it runs");
        assert!(agent.stop().success());
    }

    /// The client and the backend.
    fn hosts(&self) -> [&NetNs; 2] {
        self.hops.each_ref().map(|[_, host]| host)
    }
    fn agent(&self) -> &Agent {
        self.agent.as_ref().expect("it runs")
    }

    /// Whether each uplink has an XDP program.
    fn programs(&self) -> [bool; 2] {
        UPLINKS.map(|uplink| {
            let index = self.world.index(uplink);
            let asked = self.world.node().enter(|| attached_xdp(index));
            asked.expect("enter the node").expect("an answer").is_some()
        })
    }

    fn wait_for_programs(&self, programs: [bool; 2]) {
        self.agent()
            .eventually("the programs are there", || self.programs() == programs);
    }

    /// The numbers of packets that XDP has forwarded: to the backend, and back.
    fn taken(&self) -> [u64; 2] {
        [Counter::ForwardedByXdp, Counter::ReplyByXdp].map(|counter| self.world.count(counter))
    }

    /// The same numbers for the packets of 20 pings.
    fn taken_of_20(&self, near: &mut TcpStream, far: &mut TcpStream) -> [u64; 2] {
        let before = self.taken();
        for _ in 0..20 {
            ping(near, far);
        }
        let after = self.taken();
        [after[0] - before[0], after[1] - before[1]]
    }

    /// A connection to the service, and the backend's end of it. The backend sees the node as its
    /// client.
    fn connect(&self) -> (TcpStream, TcpStream) {
        let [client, backend] = self.hosts();
        let listener = listen(backend, (BACKEND_IP, PORT));
        let near = client.enter(|| TcpStream::connect_timeout(&at(SERVICE), SOON));
        let log = || self.agent.as_ref().map(Agent::log);
        let near = near.expect("enter the host");
        let near = near.unwrap_or_else(|error| panic!("{error}: {:?}", log()));
        let (far, from) = listener.accept().expect("a connection");
        let client = near.local_addr().expect("an address");
        assert_ne!(from.ip(), client.ip(), "it is masqueraded");
        for end in [&near, &far] {
            end.set_read_timeout(Some(SOON)).expect("a timeout");
            end.set_nodelay(true).expect("small segments");
        }
        (near, far)
    }
}

/// Sends bytes to the other end, which must receive the same.
fn send(from: &mut TcpStream, to: &mut TcpStream, length: usize) {
    let sent: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
    thread::scope(|scope| {
        scope.spawn(|| from.write_all(&sent).expect("sent"));
        let mut received = vec![0; length];
        to.read_exact(&mut received).expect("received");
        assert!(received == sent, "the same bytes");
    });
}

/// Sends some bytes to the other end, and some back.
fn ping(near: &mut TcpStream, far: &mut TcpStream) {
    send(near, far, 5);
    send(far, near, 5);
}

#[test]
fn xdp_forwards_with_an_agent_and_without_and_follows_settings_rules_and_foreign_programs() {
    let mut node = Node::new();
    node.wait_for_programs([true; 2]);
    large_transfers_and_datagrams_are_forwarded(&mut node);
    the_reason_is_logged_if_others_must_see_packets(&mut node);
    with_firewall_rules_only_what_the_stack_accepted_is_taken(&mut node);
    programs_are_attached_as_the_setting_says_after_each_restart(&mut node);
    a_foreign_xdp_program_is_logged_and_kept(&mut node);
}

fn large_transfers_and_datagrams_are_forwarded(node: &mut Node) {
    let (mut near, mut far) = node.connect();
    send(&mut near, &mut far, 300_000);
    send(&mut far, &mut near, 300_000);
    let [there, back] = node.taken();
    // 300,000 bytes in segments of at most 1500 bytes, and their acknowledgements; XDP leaves some
    // packets to the stack on purpose.
    assert!(there > 190 && back > 190, "{there} {back}");

    let [client, backend] = node.hosts();
    answer_at(backend, (BACKEND_IP, PORT));
    let asking = asking_at(client, SERVICE);
    let mut buffer = [0; 2048];
    for n in 0..50_usize {
        let sent = vec![n as u8; 1 + n * 28];
        asking.send(&sent).expect("sent");
        let length = receive(&asking, &mut buffer);
        assert_eq!(buffer[..length], sent);
    }
    let after = node.taken();
    assert!(after[0] >= there + 40 && after[1] >= back + 40, "{after:?}");

    node.end();
    let before = node.taken();
    for _ in 0..30 {
        ping(&mut near, &mut far);
        thread::sleep(Duration::from_millis(100));
    }
    let after = node.taken();
    assert!(
        after[0] > before[0] + 20 && after[1] > before[1] + 20,
        "without an agent: {before:?} {after:?}"
    );
    // tc still serves a connection that begins now.
    let (mut other, mut end) = node.connect();
    ping(&mut other, &mut end);
}

fn the_reason_is_logged_if_others_must_see_packets(node: &mut Node) {
    node.start(Xdp::Native);
    node.wait_for_programs([true; 2]);
    let (mut near, mut far) = node.connect();
    let (at, host) = (ChainPosition::Last, node.world.node());
    let police = Foreign::new(host, UPLINKS[1], false, at, PASS).expect("a program");
    let log = node.agent();
    log.says(&["interface backends", "at ingress would not see them"]);
    // None is at that one; the other has it still.
    node.wait_for_programs([true, false]);
    let taken = node.taken_of_20(&mut near, &mut far);
    assert_eq!(taken, [0, 0], "the ways out are not permitted");
    let before = node.taken();
    drop(police);
    node.wait_for_programs([true; 2]);
    node.agent().eventually("XDP takes packets", || {
        ping(&mut near, &mut far);
        node.taken()[0] > before[0] + 5
    });
    node.end();
}

fn with_firewall_rules_only_what_the_stack_accepted_is_taken(node: &mut Node) {
    let policy = "table ip cni {\n\
        chain forward { type filter hook forward priority 0; policy drop;\n\
          ct state invalid drop\n ct state established,new accept\n }\n}\n";
    node.world.nft(policy);
    node.start(Xdp::Native);
    node.wait_for_programs([true; 2]);
    let (mut near, mut far) = node.connect();
    node.agent().eventually("XDP takes both directions", || {
        let taken = node.taken_of_20(&mut near, &mut far);
        taken.iter().all(|taken| *taken > 10)
    });
    let drops = "table ip later {\n\
        chain forward { type filter hook forward priority -10; policy drop;\n }\n}\n";
    node.world.nft(drops);
    far.set_nonblocking(true).expect("set");
    let (begun, mut last) = (Instant::now(), Instant::now());
    // Half a second without a byte: the retransmissions are dropped, too.
    while last.elapsed() < Duration::from_millis(500) {
        assert!(begun.elapsed() < Duration::from_secs(20));
        near.write_all(b"12345").expect("sent");
        thread::sleep(Duration::from_millis(50));
        if far.read(&mut [0; 4096]).is_ok() {
            last = Instant::now();
        }
    }
    node.world
        .nft("delete table ip later; delete table ip cni\n");
}

/// The agent of the last part still runs, in mode native.
fn programs_are_attached_as_the_setting_says_after_each_restart(node: &mut Node) {
    let (mut near, mut far) = node.connect();
    for (xdp, count) in [(Xdp::Off, 0), (Xdp::Generic, 2)] {
        node.end();
        node.start(xdp);
        // A link is pinned after it is attached.
        node.agent().eventually("as the setting says", || {
            let pins = pins(&node.world).into_iter();
            let names = pins.filter_map(|pin| pin.file_name()?.to_str().map(str::to_owned));
            let links: Vec<_> = names.filter(|name| name.starts_with("xdp-")).collect();
            node.programs() == [count > 0; 2]
                && links.len() == count
                && links.iter().all(|name| name.ends_with(xdp.name()))
        });
        if xdp == Xdp::Generic {
            let status = node.world.told("status");
            let both = "clients (generic), backends (generic)";
            assert!(status.contains(both), "{status}");
        }
        ping(&mut near, &mut far);
        let [taken, _] = node.taken_of_20(&mut near, &mut far);
        assert_eq!(taken > 10, count > 0, "{}: {taken}", xdp.name());
    }
    node.end();
    node.world.told("cleanup");
    assert_eq!(node.programs(), [false; 2], "cleanup removes all");
}

fn a_foreign_xdp_program_is_logged_and_kept(node: &mut Node) {
    const XDP_PASS: i32 = 2;
    let foreign = Foreign::at_xdp(node.world.node(), UPLINKS[0], XDP_PASS, false);
    let foreign = foreign.expect("a program");
    node.start(Xdp::Native);
    let said = ["interface clients", "is at its XDP hook"];
    node.agent().says(&said);
    node.wait_for_programs([true; 2]);
    let (mut near, mut far) = node.connect();
    ping(&mut near, &mut far);
    node.end();
    node.world.told("cleanup");
    // The first one is not ours.
    assert_eq!(node.programs(), [true, false], "cleanup removes ours alone");
    drop(foreign);
}
