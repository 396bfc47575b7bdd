// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts the rules of nf_tables that may judge a packet: those in the base chains that it passes,
//! and in the chains that these jump to. Does not evaluate them. Called by `portolan explain`.

use std::{collections::HashSet, io};

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::{
    answers::text,
    netlink::{Connection, attribute, elements},
    nft_encode::{SUBSYSTEM, named},
    nft_forward::{EXPRESSIONS, GET_RULE, own_rule},
    nftables::{GENERIC, NftChain, nft_chains},
};

/// `NFT_MSG_GETSETELEM`.
const GET_ELEMENTS: u16 = SUBSYSTEM << 8 | 13;

/// A chain with rules of others than portolan and kube-proxy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChainRules {
    pub chain: NftChain,
    pub rules: usize,
}

/// Where a rule sends packets, besides its own verdict.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Rule {
    /// The chains to which it jumps.
    chains: Vec<String>,
    /// The names of its verdict maps, whose elements may name more chains.
    maps: Vec<String>,
}

/// Returns the chains with rules of others, among the base chains that `passes` accepts and the
/// chains that these jump to.
pub fn rules_of_others(passes: impl Fn(&NftChain) -> bool) -> io::Result<Vec<ChainRules>> {
    let all = nft_chains()?;
    let bases = all
        .iter()
        .filter(|chain| chain.hook.is_some() && passes(chain));
    let mut waiting: Vec<_> = bases.filter(|chain| !chain.is_kube_proxys()).collect();
    waiting.reverse();
    let mut known = HashSet::new();
    let mut found = Vec::new();
    while let Some(chain) = waiting.pop() {
        if !known.insert((chain.family, &chain.table, &chain.name)) {
            continue;
        }
        let mut rules = 0;
        for rule in rules_in(chain)? {
            let targets = rule.targets(chain)?;
            let named = |name: &String| {
                let is_it = |one: &&NftChain| {
                    (one.family, &one.table, &one.name) == (chain.family, &chain.table, name)
                };
                all.iter().find(is_it)
            };
            let chains: Vec<_> = targets.iter().filter_map(named).collect();
            // Kube-proxy's rules are jumps to its chains.
            if !chains.is_empty() && chains.iter().all(|one| one.is_kube_proxys()) {
                continue;
            }
            rules += 1;
            waiting.extend(chains.into_iter().filter(|one| !one.is_kube_proxys()));
        }
        if rules > 0 {
            found.push(ChainRules {
                chain: chain.clone(),
                rules,
            });
        }
    }
    Ok(found)
}

/// Returns the rules of a chain, without portolan's.
fn rules_in(chain: &NftChain) -> io::Result<Vec<Rule>> {
    let mut found = Vec::new();
    let connection = Connection::open(NETLINK_NETFILTER)?;
    connection.list(GET_RULE, &chain.named_in_message(), |answer| {
        let attributes = answer.get(GENERIC..).unwrap_or_default();
        if own_rule(attributes).is_none() {
            found.push(rule(attributes));
        }
    })?;
    Ok(found)
}

impl Rule {
    /// Returns the names of all chains to which the rule may jump.
    fn targets(self, chain: &NftChain) -> io::Result<Vec<String>> {
        const TABLE: u16 = 1;
        const SET: u16 = 2;
        const ELEMENTS: u16 = 3;
        const DATA: u16 = 2;
        let mut found = self.chains;
        for map in self.maps {
            let generic = [chain.family_number(), 0, 0, 0];
            let request = [&generic, &*named(TABLE, &chain.table), &named(SET, &map)].concat();
            let connection = Connection::open(NETLINK_NETFILTER)?;
            connection.list(GET_ELEMENTS, &request, |answer| {
                let attributes = answer.get(GENERIC..).unwrap_or_default();
                let list = attribute(attributes, ELEMENTS).unwrap_or_default();
                let chains = elements(list).filter_map(|one| target(attribute(one, DATA)?));
                found.extend(chains);
            })?;
        }
        Ok(found)
    }
}

/// Parses the attributes of a rule.
fn rule(attributes: &[u8]) -> Rule {
    const NAME: u16 = 1;
    const DATA: u16 = 2;
    let mut found = Rule::default();
    let expressions = attribute(attributes, EXPRESSIONS).unwrap_or_default();
    for expression in elements(expressions) {
        let Some(data) = attribute(expression, DATA) else {
            continue;
        };
        match attribute(expression, NAME).map(text).as_deref() {
            Some("immediate") => found.chains.extend(attribute(data, DATA).and_then(target)),
            Some("lookup") => found.maps.extend(verdict_map(data)),
            _ => {}
        }
    }
    found
}

/// Returns the chain that a verdict jumps to; None if it jumps to none. `data`: `nft_data`.
fn target(data: &[u8]) -> Option<String> {
    const VERDICT: u16 = 2;
    const CHAIN: u16 = 2;
    Some(text(attribute(attribute(data, VERDICT)?, CHAIN)?))
}

/// Returns the set of a look-up whose result is the verdict.
fn verdict_map(data: &[u8]) -> Option<String> {
    const SET: u16 = 1;
    const RESULT: u16 = 3;
    const VERDICT_REGISTER: [u8; 4] = [0; 4];
    let is_verdict = attribute(data, RESULT)? == VERDICT_REGISTER;
    is_verdict.then(|| attribute(data, SET).map(text))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{encode, nested, tests::cut_off_anywhere};

    fn expression(name: &str, data: &[u8]) -> Vec<u8> {
        nested(1, &[named(1, name), nested(2, data)].concat())
    }

    #[test]
    fn the_chains_and_verdict_maps_of_a_rule_are_parsed() {
        let jump = [encode(1, &[255, 255, 255, 253]), named(2, "policies")].concat();
        let immediate = [encode(1, &[0; 4]), nested(2, &nested(2, &jump))].concat();
        let map = [named(1, "__map0"), encode(3, &[0; 4])].concat();
        let set = [named(1, "__set0"), encode(2, &[0, 0, 0, 1])].concat();
        let all = [
            expression("lookup", &set),
            expression("lookup", &map),
            expression("immediate", &immediate),
            expression("counter", &[]),
        ];
        let whole = nested(EXPRESSIONS, &all.concat());
        let found = rule(&whole);
        assert_eq!(
            (found.chains, found.maps),
            (vec!["policies".to_owned()], vec!["__map0".to_owned()])
        );
        cut_off_anywhere(&whole, |bytes| _ = rule(bytes));
    }

    #[test]
    fn rules_can_be_counted() {
        _ = rules_of_others(|_| true).expect("the kernel answers");
    }
}
