// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rules that a packet met, in the words of the tools that show them: `nft` for nf_tables,
//! `iptables-legacy-save` for legacy tables. Legacy rules are found by their counters, which is
//! what they leave without a rule of ours beside them.

use std::{collections::HashMap, process::Command};

/// Asks `nft` for rules in its own words; each chain once.
#[derive(Default)]
pub(super) struct NftsWords(HashMap<[String; 3], String>);

impl NftsWords {
    /// Returns a rule by its number in a chain (family, table, name), if there is an `nft` here.
    pub(super) fn rule(&mut self, chain: [&str; 3], number: u64) -> Option<String> {
        let listed = self.0.entry(chain.map(str::to_owned));
        rule_in(listed.or_insert_with(|| listing(chain)), number)
    }
}

/// Returns nft's listing of a chain; empty if there is none.
fn listing(chain: [&str; 3]) -> String {
    let mut nft = Command::new("nft");
    let output = nft.args(["--handle", "list", "chain"]).args(chain).output();
    let listed = output.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&listed).into_owned()
}

/// Finds a rule in nft's listing of its chain.
fn rule_in(listing: &str, number: u64) -> Option<String> {
    let end = format!("# handle {number}");
    let mut rules = listing.lines();
    let rule = rules.find_map(|line| line.trim().strip_suffix(&end))?;
    Some(rule.trim().to_owned())
}

/// The rules of legacy iptables with the packets that each has counted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct LegacyCounters(Vec<LegacyRule>);

/// A rule, or the policy of a chain, of legacy iptables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LegacyRule {
    pub(super) table: String,
    /// As `iptables-legacy-save` prints it: `-A FORWARD -j DROP`, or a policy as `:FORWARD DROP`.
    pub(super) text: String,
    packets: u64,
}

impl LegacyCounters {
    /// Reads the tables of one IP family. An error says why that was not possible.
    pub(super) fn read(v6: bool) -> Result<Self, String> {
        let program = format!("ip{}tables-legacy-save", if v6 { "6" } else { "" });
        let output = Command::new(&program).arg("--counters").output();
        match output {
            Ok(output) if output.status.success() => {
                Ok(Self::parse(&String::from_utf8_lossy(&output.stdout)))
            }
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Err(format!("{program}: {error}")),
        }
    }

    pub(super) fn parse(text: &str) -> Self {
        let mut table = String::new();
        let mut rules = Vec::new();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                name.clone_into(&mut table);
            }
            let counted = line.strip_prefix('[');
            let counted = counted.and_then(|rest| rest.split_once("] "));
            let policy = line.strip_prefix(':').and(line.strip_suffix(']'));
            let policy = policy.and_then(|line| line.rsplit_once(" ["));
            let (counts, text) = match (counted, policy) {
                (Some((counts, text)), _) => (counts, text),
                (_, Some((text, counts))) => (counts, text),
                _ => continue,
            };
            let packets = counts.split(':').next();
            let packets = packets.and_then(|count| count.parse().ok());
            rules.push(LegacyRule {
                table: table.clone(),
                text: text.to_owned(),
                packets: packets.unwrap_or(0),
            });
        }
        Self(rules)
    }

    /// Returns the rules and policies that dropped or rejected packets since `before`.
    pub(super) fn refused_since(&self, before: &Self) -> Vec<LegacyRule> {
        let refuses = |rule: &&LegacyRule| {
            let is_policy = rule.text.starts_with(':') && rule.text.ends_with(" DROP");
            is_policy || rule.text.contains("-j DROP") || rule.text.contains("-j REJECT")
        };
        let was = |rule: &LegacyRule| {
            let same = |old: &&LegacyRule| old.table == rule.table && old.text == rule.text;
            before.0.iter().find(same).map_or(0, |old| old.packets)
        };
        let rules = self.0.iter().filter(refuses);
        let rules = rules.filter(|rule| rule.packets > was(rule));
        rules.cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_found_in_nfts_listing_by_its_handle() {
        let listing = include_str!("chain.txt");
        let rule = "ip daddr 10.40.1.20 tcp dport 8080 drop";
        for (number, rule) in [
            (14, Some(rule)),
            (1, Some("table inet firewall {")),
            (5, None),
        ] {
            assert_eq!(rule_in(listing, number).as_deref(), rule);
        }
    }

    #[test]
    fn legacy_rules_that_refused_a_packet_are_those_whose_counters_rose() {
        let of = |drop: u32, policy: u32| {
            LegacyCounters::parse(&format!(
                "# Generated by iptables-save\n*filter\n:INPUT ACCEPT [9:9]\n:FORWARD DROP [{policy}:60]\n:KUBE - [0:0]\n\
                 [7:70] -A FORWARD -j KUBE\n[{drop}:60] -A KUBE -d 10.0.0.1/32 -j DROP\nCOMMIT\n"
            ))
        };
        for (now, before, refused) in [
            (of(3, 0), of(2, 0), &["-A KUBE -d 10.0.0.1/32 -j DROP"][..]),
            (of(3, 1), of(3, 0), &[":FORWARD DROP"]),
            (of(3, 1), of(3, 1), &[]),
        ] {
            let rules = now.refused_since(&before).into_iter();
            assert_eq!(Vec::from_iter(rules.map(|rule| rule.text)), refused);
        }
    }
}
