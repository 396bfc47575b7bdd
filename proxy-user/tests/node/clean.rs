// SPDX-License-Identifier: Apache-2.0 OR MIT
//! After a switch to portolan: when kube-proxy's rules can be removed, and by which commands.

use std::{
    process::{Child, Stdio},
    thread::sleep,
    time::Duration,
};

use nix::sys::signal::Signal;

use crate::{
    agent::send_signal,
    connection::serve,
    objects::Service,
    world::{CART, World},
};

/// Starts `portolan wait` for the pins of this node.
fn wait_for_foreign(world: &World) -> Child {
    let mut command = world.asking("wait --foreign-connections");
    world.begin(command.stdout(Stdio::null()))
}

#[test]
fn wait_ends_once_the_rules_may_go_and_cleanup_removes_what_its_dry_run_names() {
    let world = World::build();
    let [mut early, mut interrupted] = [(); 2].map(|()| wait_for_foreign(&world));
    world.publish(Service::new("cart", "172.30.1.1"));
    sleep(Duration::from_secs(2));
    assert_eq!(early.try_wait().expect("its state"), None, "no agent yet");
    send_signal(interrupted.id(), Signal::SIGTERM).expect("it runs");
    let code = interrupted.wait().expect("its end").code();
    assert_eq!(code, Some(143), "an init container runs again");
    const ACCEPTS: &str = "portolan: {acceptForward: true}\n";
    let agent = world.start_configured(ACCEPTS);
    assert!(early.wait().expect("it ends").success());
    assert!(agent.stop().success());
    assert!(world.cleanup(&[]).wait().expect("it ends").success());

    // A connection of another proxy, to an endpoint that the service does not have.
    let rules = "add table ip other
add chain ip other services { type nat hook prerouting priority dstnat; }
add rule ip other services ip daddr 172.30.1.1 tcp dport 80 dnat to 10.40.1.20:8099
";
    serve(&world.server, "10.40.1.20:8099");
    world.nft(rules);
    let mut open = world.connect(CART).expect("the other serves");
    let agent = world.start_configured(ACCEPTS);
    agent.says(&["live on in nf_conntrack"]);
    assert!(wait_for_foreign(&world).wait().expect("it ends").success());
    world.nft("delete table ip other");
    assert_eq!(open.echo("theirs"), "theirs");
    let plan = || world.told("cleanup --dry-run");
    let while_it_runs = plan();
    assert!(agent.stop().success());
    let planned = plan();
    assert_eq!(planned, while_it_runs);
    assert!(planned.lines().count() > 40, "maps and links: {planned}");
    let table = "the nftables table inet portolan";
    assert!(planned.contains(table), "{planned}");
    assert!(world.answers(CART), "nothing is gone");
    let removed = world.told("cleanup");
    assert_eq!(planned.replace("would remove ", "removed "), removed);
    let left = world.tool("nft", "list tables");
    assert!(!left.contains("portolan"), "{left}");
    let nothing = plan();
    assert!(nothing.starts_with("nothing to remove"), "{nothing}");
    assert_eq!(nothing.lines().count(), 1, "{nothing}");
}
