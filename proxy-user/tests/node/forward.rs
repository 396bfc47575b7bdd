// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A firewall whose policy drops forwarded packets: the agent names it, and with `acceptForward`
//! adds rules that it removes later.

use std::fs;

use crate::{
    objects::Service,
    world::{NODE_PORT, World},
};

const ACCEPTS: &str = "portolan: {acceptForward: true, forwarding: stack}\n";

#[test]
fn dropping_chains_are_logged_or_get_accept_rules_and_those_of_iptables_legacy_are_logged() {
    let world = World::serving();
    world.publish(Service::new("gone", "172.30.1.2"));
    world.nft(include_str!("firewall.nft"));
    world.tool("iptables-nft", "--policy FORWARD DROP");
    let rules = || world.tool("nft", "--stateless list ruleset");
    // A pod's packets to a node port are masqueraded.
    let is_served = || world.answers(NODE_PORT);
    let is_free = || !rules().contains("portolan: ");
    let before = rules();
    let agent = world.start_configured(ACCEPTS);
    agent.eventually("it is accepted", is_served);
    assert!(!agent.log().contains("WARN"), "{}", agent.log());
    let with_rules = rules();
    assert_eq!(with_rules.matches("portolan: ").count(), 4, "{with_rules}");
    for (tool, words) in [
        ("iptables-nft", "--flush FORWARD"),
        ("nft", "flush chain inet firewall forward"),
    ] {
        world.tool(tool, words);
        assert!(!is_served(), "it drops after {words}");
        agent.eventually("it is accepted again", is_served);
    }
    world.nft("add rule inet firewall forward ip saddr 192.0.2.1 accept\n");
    assert!(agent.stop().success());
    // The next agent finds the rules and maps of the first, and names what it cannot change.
    let with_rules = rules();
    world.tool("iptables-legacy", "--policy FORWARD DROP");
    let agent = world.start_configured(ACCEPTS);
    agent.logs("ready planned=2 written=0");
    assert_eq!(rules(), with_rules);
    let command = "iptables-legacy -I FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT";
    agent.says(&["WARN", "iptables-legacy chain FORWARD", command]);
    let log = agent.log();
    let mut named = log.lines().filter(|line| line.contains("its policy drops"));
    let is_legacy = named.all(|line| line.contains("iptables-legacy chain FORWARD"));
    assert!(is_legacy, "{log}");
    assert!(!is_served(), "it drops");
    for rule in [
        "-m mark --mark 0x4000/0x4000",
        "-m conntrack --ctstate RELATED,ESTABLISHED",
    ] {
        world.tool("iptables-legacy", &format!("-I FORWARD {rule} -j ACCEPT"));
    }
    assert!(is_served());
    assert!(agent.stop().success());
    world.tool("iptables-legacy", "--flush FORWARD");
    world.tool("iptables-legacy", "--policy FORWARD ACCEPT");

    fs::remove_file(world.path("manifests/gone.yaml")).expect("removed");
    let agent = world.start_by_stack();
    agent.eventually("what went meanwhile is gone", || !world.lists("shop/gone"));
    agent.eventually("they go with the setting", is_free);
    for chain in ["inet firewall forward", "ip filter FORWARD"] {
        let parts = ["its policy drops", "acceptForward: true", "0x4000"];
        agent.says(&[&["WARN", chain][..], &parts].concat());
    }
    assert!(!is_served(), "it drops");
    assert_eq!(agent.health().0, 200);
    assert!(agent.stop().success());
    assert_eq!(rules(), before, "nobody has asked for rules");

    let agent = world.start_configured(ACCEPTS);
    agent.eventually("they are there", || rules() == with_rules);
    assert!(agent.stop().success());
    assert!(world.cleanup(&[]).wait().expect("it ends").success());
    assert!(is_free(), "{}", rules());
}
