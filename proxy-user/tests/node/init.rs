// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan init` sets nf_conntrack's parameters in its network namespace, and reports parameters
//! that it is not allowed to set.

use std::{fs, path::Path, process::Command};

use lab::node::netns::NetNs;

use crate::world::{BINARY, World};

/// Runs `portolan init` on the node with this section `conntrack` and `forwarding: stack`; returns
/// its messages.
fn init(world: &World, section: &str) -> String {
    init_with(
        world,
        &format!("{{conntrack: {{{section}}}, portolan: {{forwarding: stack}}}}\n"),
    )
}

fn init_with(world: &World, config: &str) -> String {
    let file = world.configure(config);
    let mut command = Command::new(BINARY);
    command.args(["init", "--config", &file]);
    let output = world.output(&mut command);
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

fn parameter(node: &NetNs, name: &str) -> u32 {
    let file = Path::new("/proc/sys/net/netfilter").join(name);
    let text = node.enter(|| fs::read_to_string(&file)).expect("the node");
    let text = text.unwrap_or_else(|error| panic!("{name}: {error}"));
    text.trim().parse().expect("a number")
}

#[test]
fn init_sets_the_configured_nf_conntrack_parameters_and_no_others() {
    let world = World::build();
    let node = world.node();
    let names = [
        "nf_conntrack_tcp_timeout_established",
        "nf_conntrack_tcp_timeout_close_wait",
        "nf_conntrack_tcp_be_liberal",
        "nf_conntrack_udp_timeout",
        "nf_conntrack_udp_timeout_stream",
    ];
    let all = || names.map(|name| parameter(node, name));
    let before = all();
    assert_eq!(before[2], 0);
    let nothing = "maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s";
    init(&world, nothing);
    assert_eq!(all(), before);
    init(&world, "maxPerCore: 0");
    assert_eq!(all(), [86_400, 3600, 0, before[3], before[4]]);
    let said = init(
        &world,
        "maxPerCore: 0, tcpEstablishedTimeout: 1h, tcpCloseWaitTimeout: 90s, tcpBeLiberal: true, udpTimeout: 40s, udpStreamTimeout: 200s",
    );
    assert_eq!(all(), [3600, 90, 1, 40, 200], "{said}");
    assert!(
        said.contains("nf_conntrack_udp_timeout is 40 now"),
        "{said}"
    );
}

/// Connection tracking sees only some segments of a connection that bypasses the stack.
#[test]
fn by_default_init_sets_tcp_be_liberal_and_keeps_unacknowledged_connections_two_hours() {
    let world = World::build();
    let names = [
        "nf_conntrack_tcp_be_liberal",
        "nf_conntrack_tcp_timeout_unacknowledged",
    ];
    let both = || names.map(|name| parameter(world.node(), name));
    assert_eq!(both(), [0, 300]);
    let said = init_with(&world, "conntrack: {maxPerCore: 0}\n");
    assert_eq!(both(), [1, 7440], "{said}");
}

#[test]
fn init_reports_that_it_cannot_set_nf_conntrack_max_and_goes_on() {
    let world = World::build();
    let before = parameter(world.node(), "nf_conntrack_max");
    // The limit would rise by one connection, for which the hash table is large enough.
    let section = format!("maxPerCore: 1, min: {}, udpTimeout: 41s", before + 1);
    let said = init(&world, &section);
    let named = "nf_conntrack: nf_conntrack_max cannot be set: ";
    assert!(said.contains(named), "{said}");
    assert_eq!(parameter(world.node(), "nf_conntrack_max"), before);
    assert_eq!(parameter(world.node(), "nf_conntrack_udp_timeout"), 41);
}
