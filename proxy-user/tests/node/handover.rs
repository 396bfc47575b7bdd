// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A switch from this proxy to another one and back, draining, and to an agent with another layout
//! of its maps, which takes over their content: no connection notices.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command},
    thread::sleep,
    time::Duration,
};

use crate::{
    agent::{holds, wait},
    connection::{Open, answer_questions, ask, asking, serve},
    objects::{Service, questions},
    world::{BINARY, CART, World},
};

const SOON: Duration = Duration::from_secs(10);

/// Begins to drain the node and waits until it serves no new connection.
fn drain(world: &World, flags: &[&str]) -> Child {
    let drain = world.cleanup(flags);
    wait(SOON, "new ones are not ours", || !world.answers(CART));
    drain
}

fn interrupt(mut drain: Child) {
    drain.kill().expect("to be interrupted");
    drain.wait().expect("its end");
}

#[test]
fn a_drained_node_keeps_its_connections_and_accepts_no_new_ones() {
    let world = World::serving();
    world.publish(questions());
    // The sizes differ from the default; draining must find them by itself.
    const SIZES: &str = "portolan: {maps: {flows: 2048}}\n";
    let agent = world.start_configured(SIZES);
    let mut open = world.connect(CART).expect("an answer");
    answer_questions(&world.server);
    let conversation = asking(&world.client);
    ask(&conversation, "before");
    ask(&conversation, "and again");
    for _ in 0..5 {
        world.connect(CART).expect("an answer");
    }
    // More connections than a nearly empty table holds.
    let others = [(); 80].map(|()| world.connect(CART).expect("an answer"));
    assert!(!has_ended(world.cleanup(&["--drain"])), "an agent runs");
    assert!(agent.stop().success());

    let mut drain = drain(&world, &["--drain"]);
    for line in ["still here", "and still"] {
        assert_eq!(open.echo(line), line);
        ask(&conversation, line);
        sleep(Duration::from_secs(2));
    }
    let before = processor_time(drain.id());
    sleep(Duration::from_secs(1));
    let worked = processor_time(drain.id()) - before;
    assert!(worked < Duration::from_millis(500), "{worked:?} of 1 s");
    drop(others);
    // Closed flow entries must be removed: they would match answers to another proxy's connections.
    let are_gone = holds(SOON, "closed ones are gone", || {
        ask(&conversation, "still there");
        world.flows().len() <= 2
    });
    assert!(are_gone, "{:?}", world.flows());
    assert!(drain.try_wait().expect("its state").is_none(), "it waits");
    interrupt(drain);
    // An agent that comes back finds all flow entries.
    let agent = world.start_configured(SIZES);
    assert!(world.answers(CART), "{}", agent.log());
    assert_eq!(open.echo("at last"), "at last");
    ask(&conversation, "at last");
    assert!(agent.stop().success());

    // A drain with a time ends although connections are open.
    let drain = self::drain(&world, &["--drain", "--timeout", "4s"]);
    assert_eq!(open.echo("draining"), "draining");
    assert!(has_ended(drain));
    assert!(!world.pins().exists());
    assert!(has_ended(world.cleanup(&["--drain"])), "nothing to do");
    let alone = world.cleanup(&["--timeout", "4s"]);
    assert!(!has_ended(alone), "a time is for a drain");
}

#[test]
fn programs_that_were_left_behind_give_way_to_the_rules_of_another_proxy() {
    const SOON_ABANDONED: &str = "portolan: {abandonedAfter: 5s}\n";
    let world = World::build();
    // Only the other proxy knows an endpoint that answers.
    world.publish(Service::new("cart", "172.30.1.1").target(8098));
    world.publish(Service::new("open", "172.30.1.2"));
    serve(&world.server, "10.40.1.20:8099");
    world.nft(
        "add table ip other
add chain ip other services { type nat hook prerouting priority dstnat; }
add rule ip other services ip daddr 172.30.1.1 tcp dport 80 dnat to 10.40.1.20:8099
",
    );
    let agent = world.start_by_packet(SOON_ABANDONED);
    let mut open = world.connect("172.30.1.2:80").expect("an answer");
    assert!(!world.answers(CART), "portolan is first");
    assert!(agent.stop().success());
    assert!(!world.answers(CART), "and stays it when the agent ends");
    wait(4 * SOON, "the rules serve", || world.answers(CART));
    assert_eq!(open.echo("still here"), "still here");
    assert!(!world.answers("172.30.1.2:80"), "the rules do not have it");
    let agent = world.start_by_packet(SOON_ABANDONED);
    wait(SOON, "an agent is back", || world.answers("172.30.1.2:80"));
    assert!(agent.stop().success());
}

/// Whether a command ends well.
fn has_ended(mut command: Child) -> bool {
    command.wait().expect("its end").success()
}

#[test]
fn draining_upgrades_and_downgrades_in_any_order_cut_no_connection() {
    let next = next_layout();
    let world = World::serving();
    assert!(world.start().stop().success());
    assert!(has_ended(world.cleanup(&["--drain"])), "without flows");
    assert!(!world.pins().exists());
    let first = world.start();
    let connect = || world.connect(CART).expect("an answer");
    let mut open: Vec<Open> = (0..20).map(|_| connect()).collect();
    assert!(first.stop().success());
    for (binary, is_drained) in [
        (next.as_path(), false),
        (Path::new(BINARY), true),
        (next.as_path(), true),
        (Path::new(BINARY), false),
    ] {
        let name = format!("{}, drained: {is_drained}", binary.display());
        if is_drained {
            // A binary of another version refuses to drain these maps, and changes nothing.
            assert!(!has_ended(world.cleanup_by(binary, &["--drain"])));
            connect();
            let drain = drain(&world, &["--drain"]);
            assert_eq!(open[0].echo("drained"), "drained");
            interrupt(drain);
        }
        let agent = world.start_other(binary);
        if !is_drained {
            agent.within(2 * SOON, "taken over", || world.generations() == 1);
            agent.says(&["took over from the maps before"]);
            assert!(!agent.log().contains("WARN"), "{}", agent.log());
        }
        for (number, open) in open.iter_mut().enumerate() {
            let said = open.echo(&name);
            assert_eq!(said, name, "connection {number}: {}", agent.log());
        }
        open.push(connect());
        assert!(agent.stop().success());
    }
}

/// Builds an agent with another layout of its maps; returns the path of its binary.
fn next_layout() -> PathBuf {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // As xtask's other builds, so that dependencies are not built once more.
    let words = "build --locked --workspace --exclude proxy-ebpf --bin portolan-next-layout \
                 --features proxy-user/next-layout";
    let status = Command::new(cargo)
        .args(words.split_whitespace())
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_remove("RUSTC_BOOTSTRAP")
        .status();
    assert!(status.expect("cargo").success(), "it is built");
    Path::new(BINARY).with_file_name("portolan-next-layout")
}

/// The processor time of a process's main thread.
fn processor_time(pid: u32) -> Duration {
    let times = fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("its times");
    let ran = times.split_whitespace().next().expect("the first of them");
    Duration::from_nanos(ran.parse().expect("nanoseconds"))
}
