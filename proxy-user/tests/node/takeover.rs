// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections that another proxy has translated are imported, so that its rules can go: real nft
//! rules, real nf_conntrack.

mod ipvs;
mod left_behind;

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use datapath::read::Flow;
use lab::node::{netns::NetNs, pod::plug};
use linux::{Editor, Tracked, Tuple, tracked};
use proxy_common::Protocol;

use crate::{
    agent::{Agent, eventually},
    objects::{Service, endpoint},
    stream::{Stream, serve},
    world::World,
};

/// The address and port of the stream server; `OUTSIDE` is the address of the client outside.
const STREAMS: &str = "10.40.1.20:8090";
const OUTSIDE: &str = "10.9.0.2";
const ENDED: &str = "the last connection that another proxy had translated";

/// The service `cart` for streams, with node port 30001.
fn streams() -> Service {
    Service::new("cart", "172.30.1.1").target(8090)
}

/// Rules like kube-proxy's, as far as they concern open connections: NAT to `to`, and masquerade at
/// a random source port for clients that are no pods and for packets with its mark.
fn rules(to: &str) -> String {
    format!(
        "add table ip other
flush table ip other
add chain ip other services {{ type nat hook prerouting priority dstnat; }}
add rule ip other services ip daddr 172.30.1.1 tcp dport 80 dnat to {to}
add rule ip other services ip daddr 10.40.0.1 tcp dport 30001 dnat to {to}
add rule ip other services ip daddr 172.30.1.77 tcp dport 80 dnat to 10.40.1.20:8090
add chain ip other leaving {{ type nat hook postrouting priority srcnat; }}
add rule ip other leaving ct status dnat ip saddr != 10.40.0.0/16 masquerade fully-random
add rule ip other leaving meta mark & 0x4000 == 0x4000 masquerade fully-random
add chain ip other forward {{ type filter hook forward priority filter; }}
add rule ip other forward ct state invalid counter drop
"
    )
}

/// The entries of nf_conntrack on the node that have destination NAT.
fn translated(world: &World) -> Vec<Tracked> {
    let mut found = Vec::new();
    let visited = world.node().enter(|| {
        tracked(|tracked| {
            if tracked.is_sent_elsewhere() {
                found.push(tracked);
            }
        })
    });
    visited.expect("the node").expect("nf_conntrack");
    found
}

/// Removes the rules of the other proxy and all entries of nf_conntrack.
fn forget_the_other(world: &World, family: &str) {
    world.nft(&format!("delete table {family} other\n"));
    let forgotten = world.node().enter(|| {
        let editor = Editor::open()?;
        let mut all = Vec::new();
        tracked(|tracked| all.push(tracked))?;
        all.iter().try_for_each(|one| editor.remove(one).map(drop))
    });
    forgotten.expect("the node").expect("nf_conntrack");
}

/// Returns a client outside, behind a VXLAN tunnel that carries many clients.
fn outside(world: &World) -> NetNs {
    let outside = NetNs::new("outside").expect("run as root");
    let tunnel = |local: &str, remote: &str, dev: &str| {
        format!(
            "link add vx0 type vxlan id 7 dstport 4789 local {local} remote {remote} dev {dev}\nlink set vx0 up\n"
        )
    };
    let batch = format!(
        "link add far0 type veth peer name eth0 netns {}\naddress add 10.8.0.1/24 dev far0\nlink set far0 up\n{}address add 10.9.0.1/24 dev vx0\n",
        outside.path(),
        tunnel("10.8.0.1", "10.8.0.2", "far0")
    );
    world.ip(&batch);
    let batch = format!(
        "link set lo up\naddress add 10.8.0.2/24 dev eth0\nlink set eth0 up\n{}address add {OUTSIDE}/24 dev vx0\nroute add 10.40.0.1/32 via 10.9.0.1\n",
        tunnel("10.8.0.2", "10.8.0.1", "eth0")
    );
    outside.ip(&batch).expect("interfaces outside");
    outside
}

fn imported(agent: &Agent) -> Option<u64> {
    agent.metric("portolan_imported_connections_total")
}

/// Waits until all of portolan's connections have ended.
fn have_ended(world: &World, agent: &Agent) {
    eventually("they have ended", agent, || {
        world.flows().iter().all(|flow| flow.state == "closed")
    });
}

/// Answers each datagram with the port at which it arrived.
fn answer(pod: &NetNs, port: u16) {
    let socket = pod.enter(|| UdpSocket::bind(("10.40.1.20", port)));
    let socket = socket.expect("the pod").expect("a socket");
    thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, from)) = socket.recv_from(&mut buffer) {
            _ = socket.send_to(&port.to_be_bytes(), from);
        }
    });
}

/// A UDP socket that asks a service again and again.
struct Conversation(UdpSocket);

impl Conversation {
    fn begin(pod: &NetNs, to: &str) -> Self {
        let socket = pod.enter(|| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect(to)?;
            socket.set_read_timeout(Some(Duration::from_secs(1)))?;
            io::Result::Ok(socket)
        });
        Self(socket.expect("the pod").expect("a socket"))
    }
    /// The port of the backend that answers; None if there is no answer.
    fn ask(&self) -> Option<u16> {
        self.0.send(b"who?").expect("sent");
        let mut answer = [0; 2];
        let received = self.0.recv(&mut answer);
        received.ok().map(|_| u16::from_be_bytes(answer))
    }
    /// Asks until `stop` is set and returns the number of lost questions; each answer must be
    /// `expected`.
    fn keep_asking(&self, expected: u16, stop: &AtomicBool) -> u32 {
        let mut lost = 0;
        while !stop.load(Ordering::Relaxed) {
            match self.ask() {
                Some(answer) => assert_eq!(answer, expected, "after {lost} lost ones"),
                None => lost += 1,
            }
            thread::sleep(Duration::from_millis(2));
        }
        lost
    }
}

#[test]
fn imported_udp_flows_keep_their_endpoint_without_the_old_rules() {
    const PORTS: [u16; 4] = [8081, 8082, 8083, 8084];
    let world = World::build();
    PORTS.iter().for_each(|port| answer(world.server(), *port));
    let outside = outside(&world);
    world.nft(
        "add table ip other
add chain ip other services { type nat hook prerouting priority dstnat; }
add rule ip other services ip daddr 172.30.1.9 udp dport 53 dnat to 10.40.1.20:8081
add rule ip other services ip daddr 10.40.0.1 udp dport 30053 dnat to 10.40.1.20:8082
add chain ip other leaving { type nat hook postrouting priority srcnat; }
add rule ip other leaving ct status dnat ip saddr != 10.40.0.0/16 masquerade fully-random
",
    );
    let inside = [(); 5].map(|()| Conversation::begin(world.client(), "172.30.1.9:53"));
    let from_outside = [(); 3].map(|()| Conversation::begin(&outside, "10.40.0.1:30053"));
    let mut questions = Service::new("questions", "172.30.1.9")
        .ports(&[("", "UDP", 53, Some(30053))])
        .target(PORTS[0]);
    for port in &PORTS[1..] {
        questions = questions.also_at(*port);
    }
    let stop = AtomicBool::new(false);
    let lost = thread::scope(|scope| {
        let all = inside.iter().map(|one| (one, 8081));
        let all = all.chain(from_outside.iter().map(|one| (one, 8082)));
        let stop = &stop;
        let over = StopAtEnd(stop);
        let asking: Vec<_> = all
            .map(|(one, expected)| {
                // The first question can be lost during neighbour resolution.
                let answer = [(); 5].iter().find_map(|()| one.ask());
                assert_eq!(answer, Some(expected), "the other serves");
                scope.spawn(move || one.keep_asking(expected, stop))
            })
            .collect();
        world.write("questions.yaml", &questions);
        let agent = world.start(7);
        agent.says(&["imported connections", "connections=8", "left=\"0\""]);
        forget_the_other(&world, "ip");
        thread::sleep(Duration::from_secs(1));
        assert_eq!(world.flows().len(), 8, "{:?}", world.flows());
        drop(over);
        let lost = asking
            .into_iter()
            .map(|one| one.join().expect("the same endpoint"));
        lost.collect::<Vec<_>>()
    });
    assert!(lost.iter().all(|lost| *lost <= 2), "{lost:?}");
    assert!(translated(&world).is_empty());
}

/// Sets the flag that stops all clients, even if the test fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn connections_that_cannot_be_imported_go_on_and_are_logged() {
    let world = World::build();
    serve(world.server(), STREAMS);
    serve(world.server(), "10.40.1.20:8099");
    // The service has no such endpoint any more.
    let mut text = rules("10.40.1.20:8099");
    text += "add chain ip other own { type nat hook output priority -100; }
add rule ip other own ip daddr 172.30.1.1 tcp dport 80 dnat to 10.40.1.20:8090
";
    world.nft(&text);
    let by = world.server_interface();
    world.ip(&format!("route add 172.30.1.1/32 dev {by} src 10.40.0.1"));
    let gone = Stream::connect(world.client(), "172.30.1.1:80").expect("the other serves");
    let own = Stream::connect(world.node(), "172.30.1.1:80").expect("the other serves");
    [&gone, &own].into_iter().for_each(Stream::speaks);
    world.write("cart.yaml", streams());
    let agent = world.start(7);
    agent.says(&[
        "live on in nf_conntrack",
        "2: 1 of the node's own processes, 1 to endpoints that the service no longer has",
    ]);
    [&gone, &own].into_iter().for_each(Stream::speaks);
    assert_eq!(translated(&world).len(), 2);
    assert_eq!((imported(&agent), world.flows().len()), (Some(0), 0));
    assert!(!agent.log().contains(ENDED));
    [gone, own].into_iter().for_each(Stream::finish);
}

#[test]
fn a_connection_of_a_client_behind_a_bridge_is_imported() {
    let world = World::build();
    serve(world.server(), STREAMS);
    let pod = NetNs::new("bridged").expect("run as root");
    let batch = format!(
        "link add br0 type bridge\naddress add 10.40.2.1/24 dev br0\nlink set br0 up\nlink add port0 type veth peer name eth0 netns {}\nlink set port0 master br0 up\n",
        pod.path()
    );
    world.ip(&batch);
    pod.ip("link set lo up\naddress add 10.40.2.10/24 dev eth0\nlink set eth0 up\nroute add default via 10.40.2.1\n")
        .expect("a pod");
    world.nft(&rules(STREAMS));
    let open = Stream::connect(&pod, "172.30.1.1:80").expect("the other serves");
    open.speaks();
    world.write("cart.yaml", streams());
    let agent = world.start(7);
    agent.says(&["imported connections", "connections=1", "left=\"0\""]);
    forget_the_other(&world, "ip");
    open.speaks();
    open.finish();
    have_ended(&world, &agent);
}

#[test]
fn ipv6_connections_of_another_proxy_are_imported() {
    let world = World::build();
    let node = world.node();
    let [client, server] = ["client6", "server6"].map(|name| NetNs::new(name).expect("a pod"));
    plug(node, &client, &["fd00:40:1::10"]).expect("a pod");
    plug(node, &server, &["fd00:40:1::20"]).expect("a pod");
    serve(&server, "[fd00:40:1::20]:8090");
    world.nft(
        "add table ip6 other
add chain ip6 other services { type nat hook prerouting priority dstnat; }
add rule ip6 other services ip6 daddr fd00:30::1 tcp dport 80 dnat to [fd00:40:1::20]:8090
",
    );
    let open = Stream::connect(&client, "[fd00:30::1]:80").expect("the other serves");
    open.speaks();
    let cart = Service::new("cart", "fd00:30::1").target(8090);
    world.write("cart.yaml", cart.endpoints(vec![endpoint("fd00:40:1::20")]));
    let agent = world.start(7);
    agent.says(&["imported connections", "connections=1", "left=\"0\""]);
    forget_the_other(&world, "ip6");
    open.speaks();
    open.finish();
    have_ended(&world, &agent);
}

#[test]
fn conntrack_entries_without_nat_status_bits_are_imported() {
    let world = World::build();
    world.nft(&rules("10.40.1.20:8080"));
    let mut open = world.connect("172.30.1.1:80").expect("the other serves");
    let [known] = &translated(&world)[..] else {
        panic!("one connection")
    };
    let end = |text: &str| -> SocketAddr { text.parse().expect("an address") };
    let client = end("10.40.1.10:5000");
    // The attributes after the state ESTABLISHED are the verification tags.
    let association = Tracked {
        protocol: Protocol::SCTP,
        original: Tuple {
            src: client,
            dst: end("172.30.1.1:80"),
        },
        reply: Tuple {
            src: end("10.40.1.20:8080"),
            dst: client,
        },
        protocol_info: vec![
            28, 0, 3, 0x80, 5, 0, 1, 0, 4, 0, 0, 0, 8, 0, 2, 0, 1, 2, 3, 4, 8, 0, 3, 0, 5, 6, 7, 8,
        ],
        ..known.clone()
    };
    let entered = world.node().enter(|| {
        let editor = Editor::open()?;
        // IPVS makes such entries: other tuples, and no NAT bit in the status.
        let (removed, created) = editor.replace(known, known)?;
        assert!(removed? && created.is_ok());
        editor.create(&association)
    });
    entered.expect("the node").expect("nf_conntrack");
    const NAT: u32 = 1 << 4 | 1 << 5;
    let now = translated(&world);
    assert!(
        now.len() == 2 && now.iter().all(|tracked| tracked.status & NAT == 0),
        "{now:?}"
    );
    world.nft("delete table ip other\n");

    let both = [
        ("a", "TCP", 80, Some(30001)),
        ("b", "SCTP", 80, Some(30001)),
    ];
    let cart = Service::new("cart", "172.30.1.1").ports(&both);
    world.write("cart.yaml", cart);
    let agent = world.start(7);
    agent.says(&["imported connections", "connections=2", "left=\"0\""]);
    assert_eq!(open.echo("ours"), "ours");
    let all = world.flows();
    let mut sctp = all.iter().filter(|flow| flow.protocol == "SCTP");
    assert_eq!(
        sctp.next().map(|flow| (flow.state, flow.client)),
        Some(("established", client))
    );
    assert!(translated(&world).is_empty());
}

#[test]
fn imported_connections_go_on_without_the_other_proxys_rules() {
    let world = World::build();
    serve(world.server(), STREAMS);
    let outside = outside(&world);
    world.nft(&rules(STREAMS));
    let clients = [
        (world.client(), "172.30.1.1:80"),
        (world.client(), "172.30.1.1:80"),
        (&outside, "10.40.0.1:30001"),
        (&outside, "10.40.0.1:30001"),
    ];
    let open = clients.map(|(pod, to)| Stream::connect(pod, to).expect("the other serves"));
    let not_ours = Stream::connect(world.client(), "172.30.1.77:80").expect("the other serves");
    open.iter().for_each(Stream::speaks);
    // From now on, packets that conntrack takes for new go to a port that answers with a reset.
    world.nft(&rules("10.40.1.20:8099"));
    assert_eq!(translated(&world).len(), open.len() + 1);

    world.write("cart.yaml", streams());
    let agent = world.start(7);
    agent.says(&["imported connections", "connections=4", "left=\"0\""]);
    agent.says(&[ENDED]);
    assert_eq!(imported(&agent), Some(4));
    open.iter().for_each(Stream::speaks);
    not_ours.speaks();
    let left = translated(&world);
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(left[0].original.src.port(), not_ours.port());
    let invalid = world.tool("nft", "list chain ip other forward");
    assert!(invalid.contains("packets 0 "), "{invalid}");
    not_ours.finish();

    forget_the_other(&world, "ip");
    open.iter().for_each(Stream::speaks);
    for stream in &open {
        assert!(stream.repeated() < 5, "{} repeated", stream.repeated());
    }
    let all = world.flows();
    let established = |flow: &&Flow| flow.state == "established";
    let count = all.iter().filter(established).count();
    assert_eq!(count, 4, "{all:?}");
    open.into_iter().for_each(Stream::finish);
    have_ended(&world, &agent);
    // portolan serves a connection that begins now.
    let new = Stream::connect(&outside, "10.40.0.1:30001").expect("we serve");
    new.speaks();
    new.finish();
}
