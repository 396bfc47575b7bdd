// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When the programs are attached, and at which position in the chain of foreign programs.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use datapath::{DatapathError, maps::pins::links_dir, read::Reader};
use lab::{
    bpf::{self, Packets},
    node::foreign::{ChainPosition, DROP, Foreign},
};

use crate::{
    agent::Agent,
    world::{CART, CLIENT, World},
};

/// A payload length that no other packet has. `FRAME` adds the headers, with TCP timestamps.
const PAYLOAD: usize = 333;
const FRAME: u32 = 14 + 20 + 32 + PAYLOAD as u32;
pub(crate) const LINES: u64 = 20;

/// Sends lines of [`PAYLOAD`] bytes by the service, one at a time; returns the answers' number.
fn talk(world: &World) -> u64 {
    let mut open = world.connect(CART).expect("the service answers");
    let line = "x".repeat(PAYLOAD - 1);
    let back = (0..LINES).filter(|_| open.echo(&line) == line);
    back.count() as u64
}

#[test]
fn a_foreign_tc_program_that_hides_portolans_is_displaced_or_logged() {
    const GAUGE: &str = "portolan_foreign_programs_before";
    let world = World::serving();
    let interface = world.interface_to(CLIENT);
    let config = world.configure("portolan: {forwarding: stack}\n");
    let agent = world.spawn(&["--config", &config]);
    no_service_is_served_before_every_program_is_attached(&world, &agent);
    assert!(world.answers(CART));
    assert_eq!(agent.metric(GAUGE), Some(0));
    let attach = |egress, place| world.foreign(&interface, egress, place);
    let behind = [false, true]
        .map(|egress| [ChainPosition::Last, ChainPosition::Filter].map(|p| attach(egress, p)));
    assert!(world.answers(CART), "what is behind ours hides nothing");
    for (egress, hook) in [(false, "ingress"), (true, "egress")] {
        // portolan's program moves before the foreign one. If another foreign one follows soon, the
        // agent only logs it: two agents could be displacing each other's programs.
        let moved = attach(egress, ChainPosition::First);
        agent.eventually("ours is first", || world.answers(CART));
        drop(moved);
        let said =
            format!("interface {interface}: portolan's program at {hook} had another program");
        agent.says(&[&said]);
        let before = attach(egress, ChainPosition::First);
        thread::sleep(Duration::from_secs(3));
        assert!(!world.answers(CART), "it hides our program at {hook}");
        agent.eventually("it is counted", || agent.metric(GAUGE) == Some(1));
        let log = agent.log();
        let named = log.lines().filter(|line| {
            line.contains("WARN")
                && line.contains(&format!("({})", bpf::NAME))
                && line.contains(&format!("runs before portolan's at {hook} of {interface}:"))
        });
        assert_eq!(named.count(), 1, "{log}");
        drop(before);
        agent.eventually("it is gone", || agent.metric(GAUGE) == Some(0));
        assert!(world.answers(CART));
    }
    drop(behind);
}

fn no_service_is_served_before_every_program_is_attached(world: &World, agent: &Agent) {
    let links = links_dir(world.pins());
    let attached = || fs::read_dir(&links).expect("links").count();
    let deadline = Instant::now() + Duration::from_secs(20);
    let is_served = || Ok::<_, DatapathError>(!Reader::open(world.pins())?.frontends()?.is_empty());
    while !is_served().is_ok_and(|served| served) {
        assert!(Instant::now() < deadline, "{}", agent.log());
    }
    let then = attached();
    agent.wait_for(7);
    assert_eq!(then, attached());
}

pub(crate) const LEFT: &str = "portolan_interfaces_left_to_stack";

/// Starts an agent that redirects packets, where nothing needs the stack.
pub(crate) fn redirecting(world: &World) -> Agent {
    world.start_configured("portolan: {forwarding: auto}\n")
}

/// Whether both directions of a connection through the service bypass the node's stack once it is
/// open: each has more packets than lines.
pub(crate) fn is_past_the_stack(world: &World) -> bool {
    let before = world.forwarded();
    assert_eq!(talk(world), LINES);
    world.forwarded() - before < LINES
}

/// On a node whose packets pass the stack by.
pub(crate) fn packets_take_the_stack_while_programs_behind_need_it(world: &World, agent: &Agent) {
    let left = |what: &str, so: &dyn Fn(Option<u64>) -> bool| {
        agent.eventually(what, || so(agent.metric(LEFT)));
    };
    let gone = |what: &str| {
        left(what, &|count| count == Some(0));
        agent.eventually(what, || is_past_the_stack(world));
    };
    gone("nothing is there");
    let interface = world.interface_to(CLIENT);
    let places = [ChainPosition::Last, ChainPosition::Filter].into_iter();
    for (place, verdict) in places.flat_map(|place| [(place, bpf::PASS), (place, DROP)]) {
        let packets = Packets::new().expect("a counter");
        let program = bpf::counting(&packets, FRAME, verdict);
        let program = Foreign::with(world.node(), &interface, false, place, &program);
        let program = program.expect("attached");
        left("it is seen", &|count| count == Some(1));
        if verdict == DROP {
            assert!(!world.answers(CART), "its drop holds");
        } else {
            assert!(!is_past_the_stack(world));
            assert_eq!(packets.read().expect("a count"), LINES);
        }
        drop(program);
        gone("the program is gone");
    }
    let said = format!("interface {interface}: packets take the node's stack");
    agent.says(&[&said, "at ingress behind portolan's"]);

    // Marked packets would have another next hop at the pod's interface.
    let table = format!("route add 10.99.0.0/16 via 10.40.1.99 dev {interface} onlink table 77");
    world.ip(&table);
    let policy = "src 10.99.0.0/16 dst 10.98.0.0/16 dir fwd";
    for (add, delete, why) in [
        (
            "rule add fwmark 0x77 lookup 77",
            "rule del fwmark 0x77 lookup 77",
            "asks for fwmark",
        ),
        (
            &*format!("xfrm policy add {policy} action allow"),
            &*format!("xfrm policy delete {policy}"),
            "XFRM policies",
        ),
    ] {
        world.ip(add);
        left(why, &|count| count != Some(0));
        assert!(!is_past_the_stack(world), "{why}");
        let said = agent.log().matches(why).count();
        assert_eq!(said, 1, "{}", agent.log());
        world.ip(delete);
        gone(why);
    }
}
