// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules and programs of others that may judge the packet: nothing is claimed about them.

use lab::node::foreign::ChainPosition;

use super::{CLIENT, Said, ask};
use crate::world::World;

const CART: &str = "172.30.1.1:80";

fn build() -> World {
    let world = World::serving();
    assert!(world.start_by_stack(7).stop().success());
    ask(&world, CLIENT, CART, &[]).is_clean();
    world
}

/// Expects that nothing is claimed, because of what `words` says.
#[track_caller]
fn leaves_open(said: &Said, words: &str) {
    assert_eq!(said.status, 4, "{:#}", said.report);
    assert!(said.is_answered(), "{:#}", said.report);
    let summary = format!(
        "portolan's part is in order; {words} of others may judge this packet: `--follow` asks them"
    );
    assert_eq!(said.report["summary"], summary);
    said.finds("note", words);
}

#[test]
fn no_answer_is_promised_where_rules_of_others_may_judge() {
    let world = build();
    // The rule with which this project began.
    world.nft(
        "add table inet firewall
add chain inet firewall forward { type filter hook forward priority 0; policy accept; }
add rule inet firewall forward ip daddr 10.40.1.20 tcp dport 8080 drop
",
    );
    let said = ask(&world, CLIENT, CART, &[]);
    leaves_open(&said, "1 chain with 1 rule");
    said.finds("note", "inet firewall forward (1)");
    assert!(world.connect(CART).is_err());
    world.nft("delete table inet firewall\n");

    world.nft(
        "add table inet policies
add chain inet policies one
add chain inet policies two
add chain inet policies forward { type filter hook forward priority 0; }
add map inet policies pods { type ipv4_addr : verdict; elements = { 10.40.1.20 : jump two }; }
add rule inet policies one accept
add rule inet policies two accept
add rule inet policies two drop
add rule inet policies forward ct state new jump one
add rule inet policies forward ip daddr vmap @pods
add chain inet policies unused
add rule inet policies unused drop
",
    );
    leaves_open(&ask(&world, CLIENT, CART, &[]), "3 chains with 5 rules");
    world.nft("delete table inet policies\n");

    world.tool("iptables-legacy", "-N MINE");
    world.tool("iptables-legacy", "-A MINE -p tcp -j ACCEPT");
    world.tool("iptables-legacy", "-A FORWARD -j MINE");
    world.tool("iptables-legacy", "-A INPUT -p udp -j ACCEPT");
    let said = ask(&world, CLIENT, CART, &[]);
    leaves_open(&said, "2 chains with 2 rules");
    said.finds("note", "iptables-legacy filter (2)");
    world.tool("iptables-legacy", "-F");
    ask(&world, CLIENT, CART, &[]).is_clean();
}

#[test]
fn rules_that_the_packet_does_not_pass_do_not_count() {
    let world = build();
    let [client, other] = [world.client_interface(), "late".to_owned()];
    world.add_uplink("192.0.2.9/24");
    let table = |device: &str| {
        format!(
            "add table netdev early
add chain netdev early ingress {{ type filter hook ingress device {device} priority 0; }}
add rule netdev early ingress ip protocol tcp drop
"
        )
    };
    world.nft(&table(&other));
    world.nft(
        "add table ip6 six
add chain ip6 six forward { type filter hook forward priority 0; }
add rule ip6 six forward drop
add table ip four
add chain ip four input { type filter hook input priority 0; }
add rule ip four input drop
add chain ip four forward { type filter hook forward priority 0; }
add rule ip four forward accept comment \"portolan: a rule of its own\"
add table bridge two
add chain bridge two forward { type filter hook forward priority 0; }
add rule bridge two forward drop
add table ip nat
add chain ip nat KUBE-SERVICES
add rule ip nat KUBE-SERVICES accept
add chain ip nat PREROUTING { type nat hook prerouting priority dstnat; }
add rule ip nat PREROUTING counter jump KUBE-SERVICES
",
    );
    let said = ask(&world, CLIENT, CART, &[]);
    said.finds("differs", "rules of kube-proxy's mode iptables");
    assert_eq!(said.report.get("unasked"), None, "{:#}", said.report);
    world.nft("delete table ip nat\n");
    ask(&world, CLIENT, CART, &[]).is_clean();
    world.nft(&format!("delete table netdev early\n{}", table(&client)));
    leaves_open(&ask(&world, CLIENT, CART, &[]), "1 chain with 1 rule");
}

#[test]
fn programs_of_others_behind_portolans_leave_the_answer_open() {
    let world = build();
    let client = world.client_interface();
    let foreign = world.foreign(&client, false, ChainPosition::Last);
    let said = ask(&world, CLIENT, CART, &[]);
    leaves_open(&said, "1 program");
    said.finds("note", &format!("at ingress of {client}"));
    drop(foreign);
    ask(&world, CLIENT, CART, &[]).is_clean();
}
