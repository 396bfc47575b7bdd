// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan init` sets nf_conntrack's parameters in its network namespace, and reports parameters
//! that it is not allowed to set.

use std::process::Command;

use crate::world::{BINARY, World};

/// Runs `portolan init` on the node with this configuration; returns its messages.
fn init(world: &World, config: &str) -> String {
    let file = world.configure(config);
    let mut command = Command::new(BINARY);
    command.args(["init", "--config", &file]);
    let output = world.output(&mut command);
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

fn parameter(world: &World, name: &str) -> u32 {
    let text = world.tool("cat", &format!("/proc/sys/net/netfilter/{name}"));
    text.trim().parse().expect("a number")
}

#[test]
fn init_sets_the_configured_nf_conntrack_parameters_and_reports_what_it_cannot_set() {
    let world = World::build();
    let names = [
        "nf_conntrack_tcp_be_liberal",
        "nf_conntrack_tcp_timeout_unacknowledged",
        "nf_conntrack_udp_timeout",
    ];
    let all = || names.map(|name| parameter(&world, name));
    for (name, value) in names.into_iter().zip(["0", "300"]) {
        world.set(&format!("netfilter/{name}"), value);
    }
    assert_eq!(all()[..2], [0, 300]);
    let said = init(
        &world,
        "{conntrack: {maxPerCore: 0, udpTimeout: 40s}, portolan: {forwarding: stack}}\n",
    );
    assert_eq!(all(), [0, 300, 40], "{said}");
    let is_said = said.contains("nf_conntrack_udp_timeout is 40 now");
    assert!(is_said, "{said}");
    // Connection tracking sees only some segments of a connection that bypasses the stack.
    let pins = format!("portolan: {{pinDirectory: {}}}\n", world.pins().display());
    let said = init(&world, &format!("{pins}conntrack: {{maxPerCore: 0}}\n"));
    assert_eq!(all(), [1, 7440, 40], "{said}");
    // What kube-proxy sets as well stays.
    let removed = world.told("cleanup");
    assert_eq!(all(), [0, 300, 40], "{removed}");
    assert!(removed.contains("which was 300"), "{removed}");

    // The limit would rise by one connection, for which the hash table is large enough.
    let most = parameter(&world, "nf_conntrack_max");
    let min = most + 1;
    let config = format!("{pins}conntrack: {{maxPerCore: 1, min: {min}, udpTimeout: 41s}}\n");
    let said = init(&world, &config);
    let named = "nf_conntrack: nf_conntrack_max cannot be set: ";
    assert!(said.contains(named), "{said}");
    assert_eq!(parameter(&world, "nf_conntrack_max"), most);
    assert_eq!(all()[2], 41);
}
