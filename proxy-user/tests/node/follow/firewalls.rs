// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules of others that drop or reject: in every family of nftables, by iptables of both kinds, by
//! sets, policies and the state of connections.

use super::{CART, CLIENT, Node, bridged, follow};

/// The rules of a table with one chain at a hook.
fn table(family: &str, hook: &str, rules: &str) -> String {
    format!(
        "table {family} firewall {{\n chain filter {{ type filter hook {hook} priority 0; policy accept;\n {rules}\n }}\n}}\n"
    )
}

#[test]
fn rules_of_nftables_are_named_with_chain_handle_and_words() {
    let node = Node::build();
    for (family, hook, verdict) in [
        ("ip", "forward", "drop"),
        ("ip", "forward", "reject"),
        ("inet", "forward", "drop"),
        ("inet", "forward", "reject with tcp reset"),
        ("inet", "prerouting", "drop"),
        ("inet", "postrouting", "drop"),
    ] {
        node.names(
            &format!("chain {family} firewall filter: `tcp dport 8080 {verdict}"),
            |world| world.nft(&table(family, hook, &format!("tcp dport 8080 {verdict}"))),
            |world| world.nft(&format!("delete table {family} firewall\n")),
        );
    }
    let client = node.world.client_interface();
    let hook = format!("ingress device {client}");
    node.names(
        "chain netdev firewall filter: `tcp dport 8080 drop`",
        |world| world.nft(&table("netdev", &hook, "tcp dport 8080 drop")),
        |world| world.nft("delete table netdev firewall\n"),
    );
}

#[test]
fn answers_sets_jumps_policies_and_states_that_drop_are_named() {
    let node = Node::build();
    let set = "table inet firewall {
 set pods { type ipv4_addr; elements = { 10.40.1.20 } }
 chain shop { ip daddr @pods drop
 }
 chain filter { type filter hook forward priority 0; policy accept;
 jump shop
 }
}
";
    let undo = |world: &crate::world::World| world.nft("delete table inet firewall\n");
    node.names(
        "chain inet firewall shop: `ip daddr @pods drop`",
        |world| world.nft(set),
        undo,
    );
    let answer = table("inet", "forward", "tcp sport 8080 drop");
    node.names(
        "chain inet firewall filter: `tcp sport 8080 drop`",
        |world| world.nft(&answer),
        undo,
    );
    let policy = "table inet firewall {\n chain filter { type filter hook forward priority 0; policy drop; }\n}\n";
    node.names(
        "the policy of chain inet firewall filter drops it",
        |world| world.nft(policy),
        undo,
    );
    // nf_conntrack has not seen the request, so the answer is of no connection.
    let state = "table inet firewall {
 chain untracked { type filter hook prerouting priority raw; policy accept;
 ip saddr 10.40.1.10 notrack
 }
 chain filter { type filter hook forward priority 0; policy accept;
 ct state invalid drop
 }
}
";
    node.names(
        "chain inet firewall filter: `ct state invalid drop`",
        |world| world.nft(state),
        undo,
    );
}

#[test]
fn rules_of_iptables_are_named() {
    let node = Node::build();
    let rule = "-p tcp -d 10.40.1.20 --dport 8080";
    for (words, add, delete) in [
        (
            "chain ip filter FORWARD",
            format!("iptables-nft -A FORWARD {rule} -j DROP"),
            format!("iptables-nft -D FORWARD {rule} -j DROP"),
        ),
        (
            "chain ip filter FORWARD",
            format!("iptables-nft -A FORWARD {rule} -j REJECT"),
            format!("iptables-nft -D FORWARD {rule} -j REJECT"),
        ),
        (
            "iptables-legacy, table filter: `-A FORWARD -d 10.40.1.20/32 -p tcp -m tcp --dport 8080 -j DROP` refuses it",
            format!("iptables-legacy -A FORWARD {rule} -j DROP"),
            format!("iptables-legacy -D FORWARD {rule} -j DROP"),
        ),
        (
            "iptables-legacy, table filter: `-A FORWARD",
            format!("iptables-legacy -A FORWARD {rule} -j REJECT"),
            format!("iptables-legacy -D FORWARD {rule} -j REJECT"),
        ),
        (
            "iptables-legacy, table filter: `:FORWARD DROP` refuses it",
            "iptables-legacy -P FORWARD DROP".to_owned(),
            "iptables-legacy -P FORWARD ACCEPT".to_owned(),
        ),
    ] {
        let tool = |world: &crate::world::World, line: &str| {
            let (program, words) = line.split_once(' ').expect("a program");
            world.tool(program, words);
        };
        node.names(
            words,
            |world| tool(world, &add),
            |world| tool(world, &delete),
        );
    }
}

/// kube-proxy's chains that were left behind: one refuses what its own conntrack calls invalid.
#[test]
fn leftover_rules_of_another_proxy_are_named() {
    let node = Node::build();
    let rules = "table ip nat { chain KUBE-SERVICES { }
}
table ip filter { chain KUBE-FIREWALL { tcp dport 8080 drop comment \"left\"
 }
 chain FORWARD { type filter hook forward priority 0; policy accept;
 jump KUBE-FIREWALL
 }
}
";
    node.names(
        "chain ip filter KUBE-FIREWALL: `tcp dport 8080 drop comment \"left\"`",
        |world| world.nft(rules),
        |world| world.nft("delete table ip nat\ndelete table ip filter\n"),
    );
}

#[test]
fn a_rule_of_a_bridge_is_named() {
    let bridged = bridged();
    let world = &bridged.world;
    let asked = || follow(world, "10.40.2.10", CART, &[]);
    // The client's port is found although the bridge has forgotten it.
    world.ip("link set br0 type bridge fdb_flush");
    let said = asked();
    said.was_answered();
    assert_eq!(said.0["hook"], "a packet that comes in by port10");
    // The node routes the request; the answer passes from port to port.
    world.nft(&table("bridge", "forward", "tcp sport 8080 drop"));
    asked().was_lost("chain bridge firewall filter: `tcp sport 8080 drop`");
    world.nft("delete table bridge firewall\n");
    asked().was_answered();
}

/// The kernel removes the rules with the process; programs are attached by its descriptors only.
#[test]
fn following_leaves_nothing_behind_when_it_is_killed() {
    let node = Node::build();
    let world = &node.world;
    let rules = table("inet", "forward", "tcp dport 8080 drop");
    world.nft(&rules);
    let before = world.tool("nft", "list ruleset");
    let words = [
        "explain", "--from", CLIENT, "--to", CART, "--follow", "--next",
    ];
    let mut waiting = world.begin(&mut world.asking(&words));
    let is_there = || {
        world
            .tool("nft", "list ruleset")
            .contains("portolan-follow")
    };
    while !is_there() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    waiting.kill().expect("killed");
    waiting.wait().expect("its end");
    assert_eq!(world.tool("nft", "list ruleset"), before);
}
