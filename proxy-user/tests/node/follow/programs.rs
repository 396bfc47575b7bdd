// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs of others at interfaces and cgroups.

use lab::node::foreign::{CgroupHook, ChainPosition, DROP, Foreign};

use super::{CART, Node};

#[test]
fn tc_programs_of_others_are_named() {
    let node = Node::build();
    let world = &node.world;
    let (client, server) = (world.client_interface(), world.server_interface());
    for (interface, egress, at, words) in [
        (
            &client,
            false,
            ChainPosition::First,
            "tc ingress, interface",
        ),
        (&client, false, ChainPosition::Last, "tc ingress, interface"),
        (&server, true, ChainPosition::Last, "tc egress, interface"),
        (&server, true, ChainPosition::Filter, "tc egress, interface"),
    ] {
        let foreign = Foreign::new(world.node(), interface, egress, at, DROP).expect("attached");
        let said = node.follow(CART);
        said.was_lost(&format!("{words} {interface}: program "));
        said.was_lost("(foreign) drops it");
        drop(foreign);
        node.follow(CART).was_answered();
    }
}

#[test]
fn xdp_programs_of_others_are_named() {
    const XDP_DROP: i32 = 1;
    let node = Node::build();
    let world = &node.world;
    let client = world.client_interface();
    for generic in [false, true] {
        let foreign = Foreign::at_xdp_with(world.node(), &client, XDP_DROP, generic);
        let foreign = foreign.expect("attached");
        let said = node.follow(CART);
        said.was_lost("(foreign)");
        said.was_lost("XDP");
        drop(foreign);
        node.follow(CART).was_answered();
    }
}

#[test]
fn cgroup_programs_of_others_are_named() {
    let node = Node::by_socket();
    for (hook, words) in [
        (CgroupHook::Connect, "the client's socket: program "),
        (CgroupHook::Egress, "the cgroup's egress hook"),
    ] {
        let foreign = Foreign::refusing(node.world.cgroup().path(), hook).expect("attached");
        let said = node.follow(CART);
        said.was_lost(words);
        said.was_lost("(foreign)");
        drop(foreign);
        node.follow(CART).was_answered();
    }
}
