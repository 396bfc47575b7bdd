// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules of others that drop or reject.

use super::{CART, Node};

#[test]
fn rules_of_nftables_and_iptables_are_named() {
    let node = Node::build();
    let table = |family: &str, hook: &str, verdict: &str| {
        let rule = "tcp dport 8080";
        format!(
            "table {family} firewall {{\n chain filter {{ type filter hook {hook} priority 0; policy accept;\n {rule} {verdict}\n }}\n}}\n"
        )
    };
    for family in ["ip", "inet"] {
        for (hook, verdict) in [
            ("forward", "drop"),
            ("forward", "reject"),
            ("prerouting", "drop"),
        ] {
            node.names(
                &format!("chain {family} firewall filter: `tcp dport 8080 {verdict}"),
                |world| world.nft(&table(family, hook, verdict)),
                |world| world.nft(&format!("delete table {family} firewall\n")),
            );
        }
    }
    _ = CART;
}
