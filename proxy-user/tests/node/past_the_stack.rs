// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets that are redirected to a pod past the node's stack: to which pods, and what makes them
//! go through the stack again.

use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    time::Duration,
};

use datapath::maps::tables::Table;
use lab::node::foreign::{ChainPosition, END, Foreign};
use proxy_common::{LocalPod, V4, maps};
use socket2::{Domain, Socket, Type};

use crate::{
    agent::{Agent, eventually},
    attachments::{LEFT, gauge},
    objects::service,
    repair::table,
    world::World,
};

const SERVICE: &str = "172.30.1.1:80";
const SERVER: &str = "10.40.1.20";
/// How long to wait for an answer, which takes a millisecond.
const PATIENCE: Duration = Duration::from_secs(5);

fn start<'w>(world: &'w World, forwarding: &str) -> Agent<'w> {
    world.write("cart.yaml", &service("cart", "172.30.1.1"));
    let config = world.configure(&format!("portolan: {{forwarding: {forwarding}}}\n"));
    world.start_with(7, &["--config", &config, "--socket-balancing", "host"])
}

/// The entry of the server's pod in the map, if the agent has made one.
fn link(world: &World) -> Option<LocalPod> {
    let pods: Table<V4, LocalPod> = table(world, maps::PODS_V4);
    let IpAddr::V4(address) = SERVER.parse().expect("an address") else {
        unreachable!("it is one of IPv4")
    };
    pods.lookup(&address.into()).expect("readable")
}

fn index(world: &World, interface: &str) -> u32 {
    let index = world
        .node()
        .enter(|| nix::net::if_::if_nametoindex(interface));
    index.expect("enter the node").expect("an index")
}

/// The number of packets that the pod's own interface has received.
fn received(world: &World) -> u64 {
    let device = world.server().feed("cat", &["/proc/net/dev"], "");
    let device = device.expect("the pod's counters");
    let line = device
        .lines()
        .find_map(|line| line.trim().strip_prefix("eth0:"));
    let mut words = line.expect("its interface").split_whitespace();
    words.nth(1).expect("packets").parse().expect("a number")
}

/// Makes a connection; true if none of its packets were forwarded by the node's stack.
fn passes_by(world: &World) -> bool {
    let before = world.forwarded();
    world.connect(SERVICE).expect("it connects");
    world.forwarded() == before
}

#[test]
fn a_pod_is_handed_its_packets_while_nothing_stands_at_its_interface() {
    let world = World::build();
    let interface = world.server_interface();
    let agent = start(&world, "redirect");
    for setting in ["portolan.forwarding", "conntrack.tcpBeLiberal"] {
        assert!(
            agent.log().contains(&format!("WARN {setting}: ")),
            "{}",
            agent.log()
        );
        let status = world.status();
        let mut warnings = status["warnings"].as_array().expect("warnings").iter();
        assert!(
            warnings.any(|warning| warning["object"] == setting),
            "{status}"
        );
    }
    eventually("the stack is passed by", &agent, || passes_by(&world));
    eventually("the server's link is known", &agent, || {
        link(&world).is_some()
    });
    let known = link(&world).expect("known");
    assert_eq!(known.interface, index(&world, &interface));

    let before = received(&world);
    for _ in 0..10 {
        assert!(passes_by(&world));
    }
    let counted = received(&world) - before;
    // A connection has SYN, ACK, FIN and the last ACK, and maybe a segment of data.
    assert!((40..=80).contains(&counted), "{counted} packets");

    let qdisc = |words: &str| {
        let words: Vec<_> = words.split(' ').collect();
        let run = world
            .node()
            .feed("tc", &[&["qdisc"], words.as_slice()].concat(), "");
        run.expect("a queueing discipline");
    };
    qdisc(&format!(
        "add dev {interface} root tbf rate 100mbit burst 64kb latency 50ms"
    ));
    eventually("the queue is seen", &agent, || link(&world).is_none());
    assert!(world.connect(SERVICE).is_ok());
    qdisc(&format!("del dev {interface} root"));
    eventually("the queue is gone", &agent, || link(&world).is_some());

    let program = Foreign::new(world.node(), &interface, true, ChainPosition::First, END);
    let program = program.expect("attached");
    eventually("a program at egress is seen", &agent, || {
        link(&world).is_none()
    });
    drop(program);
    eventually("the program is gone", &agent, || link(&world).is_some());

    // The entry goes with the pod.
    world
        .server()
        .ip("link del eth0\n")
        .expect("the pod's interface");
    eventually("the pod is gone", &agent, || link(&world).is_none());
}

#[test]
fn auto_passes_the_stack_by_until_a_rule_does_more_than_accept() {
    let world = World::build();
    let rules = |text: &str| {
        let fed = world.node().feed("nft", &["-f", "-"], text);
        fed.expect("rules");
    };
    rules(
        "table inet cni {\n\
           chain forward { type filter hook forward priority 0; policy accept;\n\
             ct state established accept\n jump pods\n }\n\
           chain pods { ip saddr 10.40.0.0/16 counter accept\n }\n\
           chain leaving { type nat hook postrouting priority 100;\n\
             ip saddr 10.40.0.0/16 ip daddr != 10.40.0.0/16 masquerade\n }\n}\n",
    );
    let agent = start(&world, "auto");
    eventually("the stack is passed by", &agent, || passes_by(&world));
    assert_eq!(gauge(&agent, LEFT), Some(0));

    rules("add rule inet cni pods tcp dport 9999 drop\n");
    eventually("the rule is seen", &agent, || !passes_by(&world));
    let log = agent.log();
    let said = "chain inet cni forward leads to pods, which does more than accept";
    assert!(log.contains(said), "{log}");

    rules("flush chain inet cni pods\n");
    eventually("the rule is gone", &agent, || passes_by(&world));
}

/// The server's own address and port, which is a backend's.
const BACKEND: &str = "10.40.1.20:8080";

#[test]
fn a_connection_to_a_backend_is_past_the_stack_as_well_and_a_host_ports_is_not() {
    let world = World::build();
    let rules = "table ip host-port {\n\
          chain in { type nat hook prerouting priority -100;\n\
            ip daddr 10.40.0.1 tcp dport 8081 dnat to 10.40.1.20:8080\n }\n}\n";
    let fed = world.node().feed("nft", &["-f", "-"], rules);
    fed.expect("rules");
    let agent = start(&world, "redirect");
    eventually("the stack is passed by", &agent, || {
        let before = world.forwarded();
        world.connect(BACKEND).expect("it connects");
        world.forwarded() == before
    });
    // Three connections in turn from one source port: the note on the first must not take the
    // second's answers.
    for to in [BACKEND, "10.40.0.1:8081", BACKEND] {
        let before = world.forwarded();
        let answer = ask_from(&world, 50_000, to);
        assert_eq!(answer, "hello\n", "{to}");
        assert_eq!(world.forwarded() == before, to == BACKEND, "{to}");
    }
    let text = fs::read_to_string(world.folder().join("config.yaml")).expect("the config");
    assert!(agent.stop().success());
    // Without the agent its programs go on. Then the next agent sends the packets of an open
    // connection through the stack.
    let mut open = world.connect(BACKEND).expect("it connects");
    let before = world.forwarded();
    assert_eq!(open.echo("one"), "one");
    assert_eq!(world.forwarded(), before);
    let noted = || {
        let noted: Table<u32, u64> = table(&world, maps::BETWEEN_PODS);
        let all = noted.entries().expect("readable");
        all.into_iter().filter(|(_, word)| *word != 0).count()
    };
    assert_ne!(noted(), 0);
    let config = world.configure(&text.replace("redirect", "stack"));
    let agent = world.start_with(7, &["--config", &config, "--socket-balancing", "host"]);
    assert_eq!(open.echo("two"), "two");
    assert!(world.forwarded() > before, "{}", agent.log());
    assert_eq!(noted(), 0, "nobody sees what the stack carries now");
}

/// Sends a line from this source port; returns the server's answer. The connection ends with a
/// reset, so that the port is free at once.
fn ask_from(world: &World, port: u16, to: &str) -> String {
    let asked = world.client().enter(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from(([0, 0, 0, 0], port)).into())?;
        socket.set_linger(Some(Duration::ZERO))?;
        let to: SocketAddr = to.parse().expect("an address and port");
        socket.connect_timeout(&to.into(), PATIENCE)?;
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"hello\n")?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok::<_, io::Error>(line)
    });
    asked.expect("enter the client").expect("an answer")
}
