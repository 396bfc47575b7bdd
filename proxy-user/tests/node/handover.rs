// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A switch from another proxy to this one and back: foreign connections, and draining.

use std::{fs, path::Path, process::Child, thread::sleep, time::Duration};

use crate::{
    agent::wait,
    connection::{answer_questions, ask, asking},
    next_layout,
    objects::{questions, service},
    world::{BINARY, World},
};

const CART: &str = "172.30.1.1:80";
const SOON: Duration = Duration::from_secs(10);

/// Begins to drain the node and waits until it serves no new connection.
fn drain(world: &World) -> Child {
    let drain = world.cleanup(&["--drain"]);
    wait(SOON, "new connections are not ours", String::new, || {
        world.connect(CART).is_err()
    });
    drain
}

fn interrupt(mut drain: Child) {
    drain.kill().expect("to be interrupted");
    drain.wait().expect("its end");
}

#[test]
fn connections_of_another_proxy_to_a_removed_endpoint_go_on() {
    let world = World::build();
    let rules = "add table ip other
add chain ip other services { type nat hook prerouting priority dstnat; }
add rule ip other services ip daddr 172.30.1.1 tcp dport 80 dnat to 10.40.1.20:8099
";
    // A connection to an endpoint that the service no longer has.
    world.serve(("10.40.1.20", 8099));
    world.nft(rules);
    let mut open = world.connect(CART).expect("the other serves");
    world.write("cart.yaml", service("cart", "172.30.1.1"));
    let agent = world.start(7);
    for line in ["beside", "and beside"] {
        assert_eq!(open.echo(line), line, "{}", agent.log());
    }
    let mut ours = world.connect(CART).expect("we serve");
    agent.logs("live on in nf_conntrack");
    let flows = world.flows();
    assert_eq!(flows.len(), 1, "only ours");
    assert_eq!(ours.echo("ours"), "ours");
    assert_eq!(open.echo("theirs"), "theirs");
}

#[test]
fn a_drained_node_keeps_its_connections_and_accepts_no_new_ones() {
    let world = World::serving();
    world.write("questions.yaml", questions());
    // The sizes differ from the default; draining must find them by itself.
    const SIZES: &str = "portolan: {maps: {flows: 2048}}\n";
    let agent = world.start_configured(7, SIZES);
    let mut open = world.connect(CART).expect("an answer");
    answer_questions(world.server());
    let conversation = asking(world.client());
    ask(&conversation, "before");
    ask(&conversation, "and again");
    for _ in 0..5 {
        world.connect(CART).expect("an answer");
    }
    // More connections than a nearly empty table holds.
    let others = [(); 80].map(|()| world.connect(CART).expect("an answer"));
    let refused = world.cleanup(&["--drain"]).wait();
    assert!(!refused.expect("its end").success(), "an agent runs");
    assert!(agent.stop().success());

    let mut drain = drain(&world);
    for line in ["still here", "and still"] {
        assert_eq!(open.echo(line), line);
        ask(&conversation, line);
        sleep(Duration::from_secs(2));
    }
    let before = processor_time(drain.id());
    sleep(Duration::from_secs(1));
    let worked = processor_time(drain.id()) - before;
    assert!(
        worked < Duration::from_millis(500),
        "{worked:?} of a second"
    );
    drop(others);
    // Closed flow entries must be removed: they would match answers to another proxy's connections.
    let flows = || format!("{:?}", world.flows());
    wait(SOON, "closed flow entries are gone", flows, || {
        ask(&conversation, "still there");
        world.flows().len() <= 2
    });
    assert!(drain.try_wait().expect("its state").is_none(), "it waits");
    interrupt(drain);
    // An agent that comes back finds all flow entries.
    let agent = world.start_configured(7, SIZES);
    assert!(world.connect(CART).is_ok(), "{}", agent.log());
    assert_eq!(open.echo("at last"), "at last");
    ask(&conversation, "at last");
    assert!(agent.stop().success());
}

#[test]
fn a_drain_with_a_time_ends_although_a_connection_is_open() {
    let world = World::serving();
    let agent = world.start(7);
    let mut open = world.connect(CART).expect("an answer");
    assert!(agent.stop().success());
    let mut drain = world.cleanup(&["--drain", "--timeout", "4s"]);
    wait(SOON, "new connections are not ours", String::new, || {
        world.connect(CART).is_err()
    });
    assert_eq!(open.echo("draining"), "draining");
    assert_eq!(drain.try_wait().expect("its state"), None, "it drains");
    assert!(drain.wait().expect("its end").success());
    assert!(!world.pins().exists());
    let alone = world.cleanup(&["--timeout", "4s"]).wait();
    assert!(!alone.expect("its end").success(), "a time is for a drain");
}

#[test]
fn draining_a_node_without_flows_removes_all_pins() {
    let world = World::serving();
    assert!(world.start(7).stop().success());
    let ended = world.cleanup(&["--drain"]).wait().expect("its end");
    assert!(ended.success());
    assert!(!world.pins().exists());
    let again = world.cleanup(&["--drain"]).wait().expect("its end");
    assert!(again.success(), "nothing to do is no fault");
}

#[test]
fn draining_and_upgrades_in_any_order_cut_no_connection() {
    let next = next_layout::binary();
    let world = World::serving();
    assert!(world.start_other(next, 7).stop().success());
    let mut open = world.connect(CART).expect("an answer");
    // A binary of another version refuses to drain these maps, and changes nothing.
    let refused = world.cleanup_by(Path::new(BINARY), &["--drain"]).wait();
    assert!(!refused.expect("its end").success());
    assert!(world.connect(CART).is_ok());

    for binary in [Path::new(BINARY), next] {
        let drain = drain(&world);
        assert_eq!(open.echo("drained"), "drained");
        interrupt(drain);
        let agent = world.start_other(binary, 7);
        let reason = format!("{}: {}", binary.display(), agent.log());
        assert_eq!(open.echo("taken over"), "taken over", "{reason}");
        assert!(world.connect(CART).is_ok(), "{reason}");
        assert!(agent.stop().success());
    }
}

/// The processor time of a process's main thread.
fn processor_time(pid: u32) -> Duration {
    let times = fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("its times");
    let ran = times.split_whitespace().next().expect("the first of them");
    Duration::from_nanos(ran.parse().expect("nanoseconds"))
}
