// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A firewall whose policy drops forwarded packets: the agent names it, and with `acceptForward`
//! adds rules that it removes later.

use crate::{agent::eventually, world::World};

/// A node port, because a pod's packets to it are masqueraded.
const NODE_PORT: &str = "10.40.0.1:30001";
const ACCEPTS: &str = "portolan: {acceptForward: true, forwarding: stack}\n";
const NFT: &str = "table inet firewall {
    chain forward {
        type filter hook forward priority 0; policy drop;
        ip saddr 192.0.2.1 accept
    }
}
";

#[test]
fn dropping_chains_of_nftables_and_iptables_nft_are_logged_or_get_accept_rules() {
    let world = World::serving();
    world.nft(NFT);
    world.tool("iptables-nft", "--policy FORWARD DROP");
    let rules = || world.tool("nft", "--stateless list ruleset");
    let is_served = || world.connect(NODE_PORT).is_ok();
    let before = rules();
    let agent = world.start_by_stack(7);
    for chain in ["inet firewall forward", "ip filter FORWARD"] {
        agent.says(&[
            "WARN",
            chain,
            "its policy drops",
            "acceptForward: true",
            "0x4000",
        ]);
    }
    assert!(!is_served(), "it drops");
    assert_eq!(agent.health().0, 200);
    assert!(agent.stop().success());
    assert_eq!(rules(), before, "nobody has asked for rules");

    let agent = world.start_configured(7, ACCEPTS);
    eventually("it is accepted", &agent, is_served);
    assert!(!agent.log().contains("WARN"), "{}", agent.log());
    let with_rules = rules();
    assert_eq!(with_rules.matches("portolan: ").count(), 4, "{with_rules}");
    for (tool, words) in [
        ("iptables-nft", "--flush FORWARD"),
        ("nft", "flush chain inet firewall forward"),
    ] {
        world.tool(tool, words);
        assert!(!is_served(), "it drops after {words}");
        eventually("it is accepted again", &agent, is_served);
    }
    assert!(agent.stop().success());
    // The next agent finds the rules of the first.
    let with_rules = rules();
    let agent = world.start_configured(7, ACCEPTS);
    assert!(is_served());
    assert!(!agent.log().contains("its policy drops"), "{}", agent.log());
    assert_eq!(rules(), with_rules);
    assert!(agent.stop().success());

    let is_free = || !rules().contains("portolan: ");
    let agent = world.start_by_stack(7);
    eventually("they go with the setting", &agent, is_free);
    assert!(agent.stop().success());
    let agent = world.start_configured(7, ACCEPTS);
    eventually("they are there", &agent, || rules() == with_rules);
    assert!(agent.stop().success());
    assert!(world.cleanup(&[]).wait().expect("it ends").success());
    assert!(is_free(), "{}", rules());
}

#[test]
fn a_dropping_iptables_legacy_chain_is_logged_with_the_command_to_run() {
    let world = World::serving();
    let agent = world.start_configured(7, ACCEPTS);
    assert!(world.connect(NODE_PORT).is_ok());
    assert!(!agent.log().contains("WARN"), "{}", agent.log());
    assert!(agent.stop().success());
    world.tool("iptables-legacy", "--policy FORWARD DROP");
    let agent = world.start_configured(7, ACCEPTS);
    let command = "iptables-legacy -I FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT";
    agent.says(&["WARN", "iptables-legacy chain FORWARD", command]);
    assert!(world.connect(NODE_PORT).is_err(), "it drops");
    for rule in [
        "-m mark --mark 0x4000/0x4000",
        "-m conntrack --ctstate RELATED,ESTABLISHED",
    ] {
        world.tool("iptables-legacy", &format!("-I FORWARD {rule} -j ACCEPT"));
    }
    assert!(world.connect(NODE_PORT).is_ok());
}
