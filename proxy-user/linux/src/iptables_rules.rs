// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts the rules of legacy iptables that may judge a packet: those in the chains of the hooks
//! that it passes, and in the chains that these jump to. Called by `portolan explain`.

use std::{
    collections::{BTreeSet, HashMap},
    io,
};

use super::{
    answers::{text, word},
    iptables::{FAMILIES, Info},
    nftables::is_kube_proxys,
};

/// The rules of one table of legacy iptables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LegacyRules {
    /// The program and the table, as `iptables-legacy filter`.
    pub table: String,
    /// The number of chains with rules.
    pub chains: usize,
    pub rules: usize,
}

/// Returns the tables with rules for IPv6 (if `v6`) or IPv4 (if not) at these hooks, by their
/// numbers. Rules of kube-proxy do not count.
pub fn legacy_rules(v6: bool, hooks: &[u32]) -> io::Result<Vec<LegacyRules>> {
    let mut found = Vec::new();
    for family in FAMILIES.iter().filter(|family| family.is_v6() == v6) {
        for table in family.tables() {
            let info = family.info(&table)?;
            let entries = family.entries(&table, info.size)?;
            let (chains, rules) = count(&entries, &info, family.target, hooks);
            if rules > 0 {
                found.push(LegacyRules {
                    table: format!("{} {table}", family.program),
                    chains,
                    rules,
                });
            }
        }
    }
    Ok(found)
}

/// An entry of a table: a rule, or a mark between chains.
struct Entry {
    next: usize,
    /// The name of the chain that begins behind this entry.
    heads: Option<String>,
    /// The offset of the entry to which the rule jumps.
    jumps: Option<usize>,
}

/// Counts the chains with rules, and their rules.
fn count(entries: &[u8], info: &Info, target: usize, hooks: &[u32]) -> (usize, usize) {
    let mut all = HashMap::new();
    let mut names = HashMap::new();
    let mut at = 0;
    while let Some(entry) = entry(entries, at, target) {
        let next = entry.next;
        if let Some(name) = &entry.heads {
            names.insert(next, name.clone());
        }
        all.insert(at, entry);
        at = next;
    }
    let is_kube_proxys = |start: &usize| names.get(start).is_some_and(|name| is_kube_proxys(name));
    let bases = hooks.iter().filter_map(|hook| {
        let hook = *hook as usize;
        let start = *info.starts.get(hook)?;
        Some((start? as usize, Some(info.policies[hook] as usize)))
    });
    let mut waiting: Vec<(usize, Option<usize>)> = bases.collect();
    let mut known = BTreeSet::new();
    let (mut chains, mut count) = (0, 0);
    while let Some((start, policy)) = waiting.pop() {
        if !known.insert(start) {
            continue;
        }
        let mut rules = 0;
        let mut at = start;
        while let Some(entry) = all.get(&at).filter(|entry| entry.heads.is_none()) {
            // The last entry of a chain is its policy, or the return to the chain before.
            let is_last = match policy {
                Some(policy) => at == policy,
                None => all.get(&entry.next).is_none_or(|next| next.heads.is_some()),
            };
            if is_last {
                break;
            }
            match entry.jumps {
                Some(to) if is_kube_proxys(&to) => {}
                jumps => {
                    rules += 1;
                    waiting.extend(jumps.map(|to| (to, None)));
                }
            }
            at = entry.next;
        }
        chains += usize::from(rules > 0);
        count += rules;
    }
    (chains, count)
}

fn entry(entries: &[u8], at: usize, target_field: usize) -> Option<Entry> {
    /// Length of `struct xt_entry_target`: its size, its name, a revision.
    const TARGET: usize = 32;
    let short = |at: usize| {
        let bytes = entries.get(at..)?.first_chunk()?;
        Some(usize::from(u16::from_ne_bytes(*bytes)))
    };
    let target = at + short(at + target_field)?;
    let next = at + short(at + target_field + 2)?;
    let name = text(entries.get(target + 2..target + TARGET)?);
    let verdict = word(entries, target + TARGET).map(u32::cast_signed);
    let jump = verdict.and_then(|verdict| usize::try_from(verdict).ok());
    (next > at).then(|| Entry {
        next,
        heads: (name == "ERROR").then(|| text(&entries[target + TARGET..next.min(entries.len())])),
        // A rule without a target goes on with the next one.
        jumps: jump.filter(|to| name.is_empty() && *to != next),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELD: usize = 4;
    const ACCEPT: i32 = -2;
    const RETURN: i32 = -5;

    /// An entry whose target is behind eight bytes.
    fn entry(name: &str, data: &[u8]) -> Vec<u8> {
        let next = (8 + 32 + data.len()) as u16;
        let mut bytes = [
            &[0; 4][..],
            &8_u16.to_ne_bytes(),
            &next.to_ne_bytes(),
            &[0; 2],
        ]
        .concat();
        bytes.extend(name.as_bytes());
        bytes.resize(8 + 32, 0);
        [&*bytes, data].concat()
    }

    fn rule(verdict: i32) -> Vec<u8> {
        entry("", &verdict.to_ne_bytes())
    }

    fn head(name: &str) -> Vec<u8> {
        let mut data = name.as_bytes().to_vec();
        data.resize(32, 0);
        entry("ERROR", &data)
    }

    #[test]
    fn rules_are_counted_with_those_of_the_chains_that_they_jump_to() {
        const RULE: usize = 44;
        const HEAD: usize = 72;
        // The chain of hook 2 jumps to a user's chain, to kube-proxy's, and has one plain rule.
        let (own, kubes) = (5 * RULE + HEAD, 5 * RULE + 2 * HEAD + 3 * RULE);
        let all = [
            rule(own as i32),
            rule(kubes as i32),
            rule(ACCEPT),
            // A rule without a target.
            rule(4 * RULE as i32),
            rule(ACCEPT),
            head("MINE"),
            rule(ACCEPT),
            entry("DNAT", &[0; 8]),
            rule(RETURN),
            head("KUBE-FORWARD"),
            rule(ACCEPT),
            rule(RETURN),
            head("ERROR"),
        ];
        let mut whole = all.concat();
        // The rule of another target is four bytes longer than the others.
        let kubes_now = kubes + 4;
        whole[RULE + 40..RULE + 44].copy_from_slice(&(kubes_now as u32).to_ne_bytes());
        let mut starts = [None; 5];
        starts[2] = Some(0);
        let info = Info {
            starts,
            policies: [4 * RULE as u32; 5],
            size: whole.len() as u32,
        };
        assert_eq!(count(&whole, &info, FIELD, &[0, 2, 4]), (2, 5));
        assert_eq!(count(&whole, &info, FIELD, &[0, 4]), (0, 0));
        for length in 0..whole.len() {
            _ = count(&whole[..length], &info, FIELD, &[2]);
        }
    }

    #[test]
    fn legacy_rules_can_be_counted() {
        _ = legacy_rules(false, &[2]).expect("the kernel answers");
    }
}
