// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets that are redirected to a pod past the node's stack: to which pods, and what makes them
//! go through the stack again.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use datapath::maps::tables::Table;
use lab::node::foreign::ChainPosition;
use nix::sys::signal::Signal;
use proxy_common::{LocalPod, V4, maps};
use socket2::{Domain, Socket, Type};

use crate::{
    agent::{Agent, holds},
    attachments::packets_take_the_stack_while_programs_behind_need_it,
    connection::{Open, answer_questions},
    datagrams::small_fragmented_and_batched_datagrams_pass_renewals,
    objects::{Service, questions},
    repair::table,
    world::{CART, SERVER, World, at, packets},
};

/// How long to wait for an answer, which takes a millisecond.
const PATIENCE: Duration = Duration::from_secs(5);

fn start(world: &World, forwarding: &str) -> Agent {
    world.publish(Service::new("cart", "172.30.1.1"));
    world.start_by_packet(&format!("portolan: {{forwarding: {forwarding}}}\n"))
}

/// The entry of the server's pod in the map, if the agent has made one.
fn entry(world: &World) -> Option<LocalPod> {
    let pods: Table<V4, LocalPod> = table(world, maps::PODS_V4);
    let address: Ipv4Addr = SERVER.parse().expect("an address");
    pods.lookup(&address.into()).expect("readable")
}

/// The same, if the pod may be handed packets.
pub(crate) fn link(world: &World) -> Option<LocalPod> {
    entry(world).filter(LocalPod::is_open)
}

#[test]
fn packets_are_redirected_to_a_pod_without_qdisc_or_egress_program() {
    let world = World::build();
    let interface = world.interface_to(SERVER);
    let agent = start(&world, "auto");
    // The node learns the pod's MAC by a packet.
    let is_known = || world.answers(CART) && link(&world).is_some();
    agent.eventually("the server's link is known", is_known);
    let known = link(&world).expect("known");
    assert_eq!(known.interface, world.index(&interface));

    // The number of packets that the pod's own interface has received.
    let received = || packets(&world.server, "eth0")[0];
    let mut open = open_past(&world, &agent, CART);
    let before = received();
    assert!(forwarded_while(&world, &mut open, 20) <= RENEWALS);
    let counted = received() - before;
    // Each question, and maybe an acknowledgement of each answer.
    assert!((20..=45).contains(&counted), "{counted} packets");

    let qdisc = |words: &str| world.tool("tc", &format!("qdisc {words}"));
    let tbf = "tbf rate 100mbit burst 64kb latency 50ms";
    qdisc(&format!("add dev {interface} root {tbf}"));
    agent.eventually("the queue is seen", || link(&world).is_none());
    assert!(world.answers(CART));
    qdisc(&format!("del dev {interface} root"));
    agent.eventually("the queue is gone", || link(&world).is_some());

    let program = world.foreign(&interface, true, ChainPosition::First);
    agent.eventually("a program at egress is seen", || link(&world).is_none());
    assert!(entry(&world).is_some(), "it still is behind its interface");
    drop(program);
    agent.eventually("the program is gone", || link(&world).is_some());

    packets_take_the_stack_while_programs_behind_need_it(&world, &agent);
    // The agent removes the entry with the pod.
    world.server.ip("link del eth0\n").expect("it is there");
    agent.eventually("the pod is gone", || link(&world).is_none());
    world.plug(&world.server, SERVER);
    agent.eventually("it is back", is_known);
}

/// Rules as a CNI with network policies makes them: established connections are accepted, invalid
/// packets and packets that no rule accepts are dropped, and packets from pods out of the cluster
/// are masqueraded.
const POLICY: &str = "table inet cni {\n\
       chain forward { type filter hook forward priority 0; policy drop;\n\
         ct state invalid drop\n ct state established accept\n jump pods\n }\n\
       chain pods { ip saddr 10.40.0.0/16 counter accept\n }\n\
       chain leaving { type nat hook postrouting priority 100;\n\
         ip saddr 10.40.0.0/16 ip daddr != 10.40.0.0/16 masquerade\n }\n}\n";
const LIBERAL: &str = "netfilter/nf_conntrack_tcp_be_liberal";

/// The number of packets that the stack forwards while a connection asks this many questions.
fn forwarded_while(world: &World, open: &mut Open, questions: u32) -> u64 {
    let before = world.forwarded();
    for number in 0..questions {
        let line = number.to_string();
        assert_eq!(open.echo(&line), line);
    }
    world.forwarded() - before
}

/// Waits until a connection's packets bypass the stack: the agent may not know the node's pods yet.
fn wait_until_past(world: &World, agent: &Agent, open: &mut Open) {
    agent.eventually("packets leave past the stack", || {
        _ = forwarded_while(world, open, 5);
        forwarded_while(world, open, 20) <= RENEWALS
    });
}

/// Makes a connection whose packets bypass the stack.
fn open_past(world: &World, agent: &Agent, to: &str) -> Open {
    let mut open = world.connect(to).expect("it connects");
    wait_until_past(world, agent, &mut open);
    open
}

/// The most packets that may pass the stack in a short time: the renewals of both directions, and
/// packets in flight at that time.
pub(crate) const RENEWALS: u64 = 6;

#[test]
fn with_firewall_rules_a_connection_bypasses_the_stack_once_established() {
    let world = World::build();
    world.nft(POLICY);
    world.set(LIBERAL, "0");
    answer_questions(&world.server);
    world.publish(questions());
    let agent = start(&world, "auto");
    let mut both = [CART, BACKEND].map(|to| world.connect(to).expect("it connects"));
    for open in &mut both {
        _ = forwarded_while(&world, open, 5);
        assert!(forwarded_while(&world, open, 20) >= 40, "not liberal");
    }
    let said = "net.netfilter.nf_conntrack_tcp_be_liberal: it is 0";
    assert!(agent.log().contains(said), "{}", agent.log());
    world.node().suit_conntrack().expect("conntrack");
    for open in &mut both {
        wait_until_past(&world, &agent, open);
    }
    drop(both);

    for to in [CART, BACKEND] {
        let before = world.forwarded();
        let mut open = world.connect(to).expect("it connects");
        assert!(world.forwarded() - before >= 3, "the stack sees its start");
        wait_until_past(&world, &agent, &mut open);
        // 1 GB each way.
        let line = "x".repeat(256 * 1024);
        for _ in 0..4_096 {
            assert!(open.echo(&line) == line, "{to}");
        }
        // Connection tracking sees the end.
        drop(open);
        let is_ended = || !tracked(&world).contains("ESTABLISHED");
        let is_seen = holds(PATIENCE, "its end is seen", is_ended);
        assert!(is_seen, "{}", tracked(&world));
    }
    conntrack_keeps_an_idle_connection_that_was_busy(&world, &agent);
    small_fragmented_and_batched_datagrams_pass_renewals(&world, &agent);
    a_rule_that_is_added_later_stops_open_connections(&world, &agent);
    a_pod_that_is_replaced_while_no_agent_runs_is_reached(&world, agent);
}

/// The connections that the node's conntrack knows.
fn tracked(world: &World) -> String {
    world.tool("cat", "/proc/net/nf_conntrack")
}

/// conntrack sees one packet of each direction in about ten seconds, so it sees data without its
/// acknowledgement. By default it would forget such a connection after five idle minutes.
fn conntrack_keeps_an_idle_connection_that_was_busy(world: &World, agent: &Agent) {
    let mut open = open_past(world, agent, CART);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(30) {
        assert_eq!(open.echo("busy"), "busy");
        thread::sleep(Duration::from_millis(20));
    }
    let all = tracked(world);
    let line = all.lines().find(|line| line.contains("ESTABLISHED"));
    let mut words = line.expect("the connection").split_whitespace();
    let timeout: u32 = words.nth(4).expect("a timeout").parse().expect("seconds");
    assert!(timeout > 80_000, "{all}");
}

fn a_rule_that_is_added_later_stops_open_connections(world: &World, agent: &Agent) {
    let open = [CART, BACKEND].map(|to| open_past(world, agent, to));
    let drop = "table inet later {\n\
        chain forward { type filter hook forward priority -10; ip daddr 10.40.1.20 drop\n }\n}\n";
    world.nft(drop);
    let begun = Instant::now();
    for mut open in open {
        open.set_patience(Duration::from_secs(2));
        while open.echo("still") == "still" {
            assert!(begun.elapsed() < Duration::from_secs(20));
            thread::sleep(Duration::from_millis(100));
        }
    }
    world.nft("delete table inet later\n");
}

/// While no agent runs, the programs do not learn that a pod has another interface.
fn a_pod_that_is_replaced_while_no_agent_runs_is_reached(world: &World, agent: Agent) {
    for to in [CART, BACKEND] {
        open_past(world, &agent, to);
    }
    agent.signal(Signal::SIGKILL);
    agent.wait_for_end();
    world.replug(&world.server, SERVER);
    for to in [CART, BACKEND, CART, BACKEND] {
        let mut open = world.connect(to).expect("it connects");
        for _ in 0..20 {
            assert_eq!(open.echo("again"), "again", "{to}");
        }
    }
}

/// The server's own address and port, which are those of a backend.
const BACKEND: &str = "10.40.1.20:8080";

#[test]
fn a_host_port_and_its_backend_work_in_turn_from_one_source_port() {
    let world = World::build();
    let rules = "table ip host-port {\n\
          chain in { type nat hook prerouting priority -100;\n\
            ip daddr 10.40.0.1 tcp dport 8081 dnat to 10.40.1.20:8080\n }\n}\n";
    world.nft(rules);
    let agent = start(&world, "auto");
    // Connections in turn from one source port: the first's record must not take later answers.
    for to in [BACKEND, "10.40.0.1:8081", BACKEND, "10.40.0.1:8081"] {
        let answer = ask_from(&world, 50_000, to);
        assert_eq!(answer, "hello\n", "{to}");
    }
    let _first = open_past(&world, &agent, BACKEND);
    assert!(agent.stop().success());
    // Without the agent its programs go on. Then the next agent sends the packets of an open
    // connection through the stack.
    let mut open = world.connect(BACKEND).expect("it connects");
    _ = forwarded_while(&world, &mut open, 5);
    assert!(forwarded_while(&world, &mut open, 20) <= RENEWALS);
    let before = world.forwarded();
    let noted = || {
        let noted: Table<u32, u64> = table(&world, maps::BETWEEN_PODS);
        let all = noted.entries().expect("readable");
        all.into_iter().filter(|(_, word)| *word != 0).count()
    };
    assert_ne!(noted(), 0);
    let agent = start(&world, "stack");
    assert_eq!(open.echo("two"), "two");
    assert!(world.forwarded() > before, "{}", agent.log());
    assert_eq!(noted(), 0, "nobody sees what the stack carries now");
}

/// Sends a line from this source port; returns the server's answer. The connection ends with a
/// reset, so that the port is free at once.
fn ask_from(world: &World, port: u16, to: &str) -> String {
    let asked = world.client.enter(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.set_linger(Some(Duration::ZERO))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.bind(&SocketAddr::from(([0, 0, 0, 0], port)).into())?;
        socket.connect_timeout(&at(to).into(), PATIENCE)?;
        let mut stream = TcpStream::from(socket);
        stream.write_all(b"hello\n")?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok::<_, io::Error>(line)
    });
    asked.expect("enter the client").expect("an answer")
}
