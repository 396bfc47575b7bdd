// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A switch from another proxy to this one and back: foreign connections, and draining.

use std::{
    fs,
    net::TcpListener,
    path::Path,
    thread::{sleep, spawn},
    time::{Duration, Instant},
};

use datapath::read::Reader;

use crate::{
    agent::eventually,
    connection::{answer_questions, asking, echo},
    next_layout,
    objects::{QUESTIONS, service},
    world::{BINARY, World},
};

#[test]
fn what_another_proxy_has_translated_lives_on_beside_us() {
    let world = World::build();
    let rules = "add table ip other
add chain ip other services { type nat hook prerouting priority dstnat; }
add rule ip other services ip daddr 172.30.1.1 tcp dport 80 dnat to 10.40.1.20:8099
";
    // A connection to an endpoint that the service no longer has: it cannot be imported.
    let gone = world
        .server()
        .enter(|| TcpListener::bind("10.40.1.20:8099"));
    let gone = gone.expect("the pod").expect("a listener");
    spawn(move || gone.incoming().flatten().for_each(echo));
    let fed = world.node().feed("nft", &["-f", "-"], rules);
    fed.expect("rules");
    let mut open = world.connect("172.30.1.1:80").expect("the other serves");
    world.write("cart.yaml", &service("cart", "172.30.1.1"));
    let agent = world.start(7);
    for line in ["beside", "and beside"] {
        assert_eq!(open.echo(line), line, "{}", agent.log());
    }
    let mut ours = world.connect("172.30.1.1:80").expect("we serve");
    eventually("they are found", &agent, || {
        agent.log().contains("live on in nf_conntrack")
    });
    let flows = Reader::open(world.pins()).and_then(|reader| reader.flows());
    assert_eq!(flows.expect("flows").len(), 1, "only ours");
    assert_eq!(ours.echo("ours"), "ours");
    assert_eq!(open.echo("theirs"), "theirs");
}

#[test]
fn a_drained_node_serves_what_it_served_and_nothing_new_until_that_has_ended() {
    let world = World::build();
    world.write("cart.yaml", &service("cart", "172.30.1.1"));
    world.write("questions.yaml", QUESTIONS);
    // The sizes differ from the default; draining must find them by itself.
    const SIZES: &str = "portolan: {maps: {flows: 2048}}\n";
    let agent = world.start_configured(7, SIZES);
    let mut open = world.connect("172.30.1.1:80").expect("an answer");
    answer_questions(world.server());
    let conversation = asking(world.client());
    let ask = |question: &[u8]| {
        conversation.send(question).expect("sent");
        let mut answer = [0; 64];
        let length = conversation.recv(&mut answer);
        assert_eq!(&answer[..length.expect("an answer")], question);
    };
    ask(b"before");
    ask(b"and again");
    for _ in 0..5 {
        world.connect("172.30.1.1:80").expect("an answer");
    }
    // More connections than a nearly empty table holds.
    let others = [(); 80].map(|()| world.connect("172.30.1.1:80").expect("an answer"));
    let refused = world.cleanup(&["--drain"]).wait();
    assert!(!refused.expect("its end").success(), "an agent runs");
    assert!(agent.stop().success());

    let mut drain = world.cleanup(&["--drain"]);
    let deadline = Instant::now() + Duration::from_secs(10);
    while world.connect("172.30.1.1:80").is_ok() {
        assert!(Instant::now() < deadline, "new connections are not ours");
        sleep(Duration::from_millis(50));
    }
    for line in ["still here", "and still"] {
        assert_eq!(open.echo(line), line);
        ask(line.as_bytes());
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
    // Closed flow entries must go: they would match the answers to another proxy's connections.
    let flows = || Reader::open(world.pins())?.flows();
    let deadline = Instant::now() + Duration::from_secs(10);
    while flows().expect("readable").len() > 2 {
        assert!(Instant::now() < deadline, "{:?}", flows());
        ask(b"still there");
        sleep(Duration::from_millis(50));
    }
    assert!(drain.try_wait().expect("its state").is_none(), "it waits");
    drain.kill().expect("to be interrupted");
    drain.wait().expect("its end");
    // An agent that comes back finds all flow entries.
    let agent = world.start_configured(7, SIZES);
    assert!(world.connect("172.30.1.1:80").is_ok(), "{}", agent.log());
    assert_eq!(open.echo("at last"), "at last");
    ask(b"at last");
    assert!(agent.stop().success());
}

#[test]
fn a_drained_node_without_a_flow_is_left_without_a_trace() {
    let world = World::build();
    world.write("cart.yaml", &service("cart", "172.30.1.1"));
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
    let world = World::build();
    world.write("cart.yaml", &service("cart", "172.30.1.1"));
    assert!(world.start_other(next, 7).stop().success());
    let mut open = world.connect("172.30.1.1:80").expect("an answer");
    // Another version cannot drain this one, and changes nothing.
    let refused = world.cleanup_by(Path::new(BINARY), &["--drain"]).wait();
    assert!(!refused.expect("its end").success());
    assert!(world.connect("172.30.1.1:80").is_ok());

    for binary in [Path::new(BINARY), next] {
        let mut drain = world.cleanup(&["--drain"]);
        let deadline = Instant::now() + Duration::from_secs(10);
        while world.connect("172.30.1.1:80").is_ok() {
            assert!(Instant::now() < deadline, "new connections are not ours");
            sleep(Duration::from_millis(50));
        }
        assert_eq!(open.echo("drained"), "drained");
        drain.kill().expect("to be interrupted");
        drain.wait().expect("its end");
        let agent = world.start_other(binary, 7);
        let reason = format!("{}: {}", binary.display(), agent.log());
        assert_eq!(open.echo("taken over"), "taken over", "{reason}");
        assert!(world.connect("172.30.1.1:80").is_ok(), "{reason}");
        assert!(agent.stop().success());
    }
}

/// The processor time of a process's main thread.
fn processor_time(pid: u32) -> Duration {
    let times = fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("its times");
    let ran = times.split_whitespace().next().expect("the first of them");
    Duration::from_nanos(ran.parse().expect("nanoseconds"))
}
