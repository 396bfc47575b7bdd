// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether the node's rules do anything but accept packets that it forwards, by nfnetlink; those of
//! iptables are among them if it is of the kind nf_tables. Chains that translate addresses do not
//! count: portolan translates its own packets. Called by `agent`.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::ControlFlow,
};

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::{
    netlink::{Connection, attribute, attributes},
    nftables::{BRIDGE, GENERIC, NftChain, family_name, nft_chains, text, word},
};

/// `NFNL_SUBSYS_NFTABLES`.
const SUBSYSTEM: u16 = 10;
const GET_RULE: u16 = SUBSYSTEM << 8 | 7;
const GET_GENERATION: u16 = SUBSYSTEM << 8 | 16;

/// Family, table and name of a chain.
type ChainName = (&'static str, String, String);

/// What a rule can do to a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Does {
    /// Accept it, or nothing.
    Passes,
    /// Hand it to another chain of its table.
    Jumps(String),
    /// Anything else.
    Interferes,
}

/// The number of the rules' generation: it changes with every change of a rule. `None` without
/// nf_tables.
pub fn rules_generation() -> io::Result<Option<u32>> {
    let connection = match Connection::open(NETLINK_NETFILTER) {
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => return Ok(None),
        connection => connection?,
    };
    let mut found = None;
    let asked = connection.ask(GET_GENERATION, 0, &[0; GENERIC], |answer| {
        found = answer
            .get(GENERIC..)
            .and_then(|rest| attribute(rest, 1))
            .and_then(word);
        ControlFlow::Break(())
    });
    match asked {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
            Ok(None)
        }
        asked => asked.map(|()| found),
    }
}

/// The first chain that does more than accept forwarded packets, as nft spells it, and what.
pub fn interfering_chain() -> io::Result<Option<String>> {
    let chains = nft_chains()?;
    if !chains.iter().any(sees_forwarded) {
        return Ok(None);
    }
    let mut rules: BTreeMap<ChainName, Vec<Does>> = BTreeMap::new();
    let connection = Connection::open(NETLINK_NETFILTER)?;
    connection.list(GET_RULE, &[0; GENERIC], |answer| {
        if let Some((chain, does)) = answer.split_at_checked(GENERIC).and_then(rule) {
            rules.entry(chain).or_default().push(does);
        }
    })?;
    Ok(interfering(&chains, &rules))
}

/// A base chain that forwarded packets pass and that does not translate addresses.
fn sees_forwarded(chain: &NftChain) -> bool {
    const PREROUTING: u32 = 0;
    const FORWARD: u32 = 2;
    const POSTROUTING: u32 = 4;
    match chain.hook {
        None => false,
        // Frames come to the node and leave it, as well, by the ports of its bridges.
        Some(_) if chain.family == BRIDGE => true,
        Some(hook) => !chain.nat && [PREROUTING, FORWARD, POSTROUTING].contains(&hook),
    }
}

fn interfering(chains: &[NftChain], rules: &BTreeMap<ChainName, Vec<Does>>) -> Option<String> {
    for base in chains.iter().filter(|chain| sees_forwarded(chain)) {
        let named = format!("chain {} {} {}", base.family, base.table, base.name);
        if base.drops {
            return Some(format!("{named} drops by its policy"));
        }
        let mut seen = BTreeSet::new();
        let mut left = vec![base.name.clone()];
        while let Some(name) = left.pop() {
            if !seen.insert(name.clone()) {
                continue;
            }
            let place = (base.family, base.table.clone(), name.clone());
            for does in rules.get(&place).into_iter().flatten() {
                match does {
                    Does::Passes => {}
                    Does::Jumps(to) => left.push(to.clone()),
                    Does::Interferes if name == base.name => {
                        return Some(format!("{named} has rules that do more than accept"));
                    }
                    Does::Interferes => {
                        return Some(format!(
                            "{named} leads to {name}, which does more than accept"
                        ));
                    }
                }
            }
        }
    }
    None
}

fn rule((header, rest): (&[u8], &[u8])) -> Option<(ChainName, Does)> {
    const TABLE: u16 = 1;
    const CHAIN: u16 = 2;
    const EXPRESSIONS: u16 = 4;
    let family = family_name(*header.first()?)?;
    let chain = (
        family,
        text(attribute(rest, TABLE)?),
        text(attribute(rest, CHAIN)?),
    );
    let mut does = Does::Passes;
    for (_, expression) in attribute(rest, EXPRESSIONS)
        .into_iter()
        .flat_map(attributes)
    {
        match of_expression(expression) {
            Does::Passes => {}
            Does::Interferes => return Some((chain, Does::Interferes)),
            jumps => does = jumps,
        }
    }
    Some((chain, does))
}

/// What one expression of a rule can do. What is not known here may do anything.
fn of_expression(expression: &[u8]) -> Does {
    const NAME: u16 = 1;
    const DATA: u16 = 2;
    let Some(name) = attribute(expression, NAME).map(text) else {
        return Does::Interferes;
    };
    let data = attribute(expression, DATA).unwrap_or_default();
    // The attribute with which an expression that reads would write.
    let writes = match &*name {
        "counter" | "cmp" | "bitwise" | "byteorder" | "range" | "match" | "limit" | "fib" => None,
        "payload" => Some(5),
        "meta" | "lookup" => Some(3),
        "ct" => Some(4),
        "immediate" => return of_immediate(data),
        _ => return Does::Interferes,
    };
    if writes.is_some_and(|kind| attribute(data, kind).is_some()) {
        Does::Interferes
    } else {
        Does::Passes
    }
}

fn of_immediate(data: &[u8]) -> Does {
    const REGISTER: u16 = 1;
    const VALUE: u16 = 2;
    const VERDICT: u16 = 2;
    const CODE: u16 = 1;
    const CHAIN: u16 = 2;
    // `NF_ACCEPT`, and `enum nft_verdicts`.
    const ACCEPT: u32 = 1;
    const CONTINUE: u32 = -1_i32 as u32;
    const JUMP: u32 = -3_i32 as u32;
    const GOTO: u32 = -4_i32 as u32;
    const RETURN: u32 = -5_i32 as u32;
    // A register of data, which another expression uses.
    if attribute(data, REGISTER).and_then(word) != Some(0) {
        return Does::Passes;
    }
    let verdict = attribute(data, VALUE).and_then(|value| attribute(value, VERDICT));
    let Some(verdict) = verdict else {
        return Does::Interferes;
    };
    match attribute(verdict, CODE).and_then(word) {
        Some(ACCEPT | CONTINUE | RETURN) => Does::Passes,
        Some(JUMP | GOTO) => match attribute(verdict, CHAIN) {
            Some(chain) => Does::Jumps(text(chain)),
            None => Does::Interferes,
        },
        _ => Does::Interferes,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::netlink::encode, *};

    fn expression(name: &str, data: &[u8]) -> Vec<u8> {
        let name = [name.as_bytes(), &[0]].concat();
        [encode(1, &name), encode(2 | 0x8000, data)].concat()
    }

    fn verdict(code: i32, chain: Option<&str>) -> Vec<u8> {
        let mut verdict = encode(1, &code.to_be_bytes());
        if let Some(chain) = chain {
            verdict.extend(encode(2, &[chain.as_bytes(), &[0]].concat()));
        }
        let value = encode(2, &verdict);
        expression(
            "immediate",
            &[encode(1, &[0; 4]), encode(2, &value)].concat(),
        )
    }

    #[test]
    fn accepting_counting_and_jumping_do_nothing_themselves_and_all_else_may() {
        assert_eq!(of_expression(&verdict(1, None)), Does::Passes);
        assert_eq!(of_expression(&verdict(-5, None)), Does::Passes);
        assert_eq!(
            of_expression(&verdict(-3, Some("MORE"))),
            Does::Jumps("MORE".into())
        );
        assert_eq!(of_expression(&verdict(0, None)), Does::Interferes);
        assert_eq!(of_expression(&expression("counter", &[])), Does::Passes);
        assert_eq!(
            of_expression(&expression("meta", &encode(2, &[0; 4]))),
            Does::Passes
        );
        let sets_mark = encode(3, &[0; 4]);
        assert_eq!(
            of_expression(&expression("meta", &sets_mark)),
            Does::Interferes
        );
        for name in ["target", "reject", "queue", "nat", "dynset", "notrack"] {
            assert_eq!(
                of_expression(&expression(name, &[])),
                Does::Interferes,
                "{name}"
            );
        }
        assert_eq!(of_expression(&[]), Does::Interferes);
    }

    fn base(hook: u32, nat: bool, drops: bool) -> NftChain {
        NftChain {
            family: "ip",
            table: "filter".into(),
            name: "BASE".into(),
            forward: hook == 2,
            drops,
            hook: Some(hook),
            nat,
        }
    }

    fn found(base: NftChain, rules: &[(&str, Does)]) -> Option<String> {
        let mut all: BTreeMap<ChainName, Vec<Does>> = BTreeMap::new();
        for (chain, does) in rules {
            let place = ("ip", "filter".to_owned(), (*chain).to_owned());
            all.entry(place).or_default().push(does.clone());
        }
        interfering(&[base], &all)
    }

    #[test]
    fn a_base_chain_interferes_by_its_policy_its_rules_or_those_that_it_leads_to() {
        let jumps = ("BASE", Does::Jumps("MORE".into()));
        let back = ("MORE", Does::Jumps("BASE".into()));
        let drops = ("MORE", Does::Interferes);
        assert_eq!(found(base(2, false, false), &[]), None);
        assert_eq!(
            found(base(2, false, false), &[jumps.clone(), back]),
            None,
            "round and round"
        );
        assert_eq!(
            found(base(2, false, false), std::slice::from_ref(&drops)),
            None,
            "nobody leads there"
        );
        assert_eq!(
            found(base(2, false, true), &[]).as_deref(),
            Some("chain ip filter BASE drops by its policy")
        );
        assert_eq!(
            found(base(0, false, false), &[jumps.clone(), drops.clone()]).as_deref(),
            Some("chain ip filter BASE leads to MORE, which does more than accept")
        );
        assert_eq!(
            found(base(4, false, false), &[("BASE", Does::Interferes)]).as_deref(),
            Some("chain ip filter BASE has rules that do more than accept")
        );
        assert_eq!(
            found(base(4, true, false), &[jumps.clone(), drops.clone()]),
            None,
            "of addresses"
        );
        assert_eq!(
            found(base(1, false, true), &[jumps, drops]),
            None,
            "of the node's own packets"
        );
        let bridged = NftChain {
            family: BRIDGE,
            ..base(1, false, true)
        };
        assert_eq!(
            found(bridged, &[]).as_deref(),
            Some("chain bridge filter BASE drops by its policy")
        );
    }
}
