// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the tree of a filter to what the kernel evaluates: terms (conditions), and clauses
//! (sets of terms). The caller looks up names.

use std::net::IpAddr;

use anyhow::Result;
use ipnet::IpNet;
use proxy_common::{
    Addr, V4, V6,
    trace::{
        Filter,
        filter::{CLAUSES, Clause, TERMS, Term},
    },
};

use super::words::{Tree, Verdict, Word};
use crate::{BadInput, args::ServiceArg};

/// Looks up the names that a filter contains.
pub(super) trait Lookup {
    /// Returns the index of the interface with this name.
    fn interface(&self, name: &str) -> Result<u32>;
    /// Returns the ids of the service ports that this argument means.
    fn service(&self, service: &ServiceArg) -> Result<Vec<u32>>;
    /// Returns the addresses of the pod with this name.
    fn pod(&mut self, namespace: &str, name: &str) -> Result<Vec<IpAddr>>;
}

/// Whether the filter is evaluated where the reason of a refusal is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Exact {
    Yes,
    /// For socket calls in the kernel, where the reason is not known: a word about outcomes is
    /// true, and so is its negation.
    No,
}

/// Compiles a filter. Without a word about outcomes, it matches only events that concern a service,
/// unless `untouched` is true.
pub(super) fn compile(
    tree: Option<&Tree>,
    untouched: bool,
    exact: Exact,
    lookup: &mut impl Lookup,
) -> Result<Filter> {
    let says_outcome =
        tree.is_some_and(|tree| asks(tree, &|word| matches!(word, Word::Outcomes(_))));
    let outcomes = if untouched || says_outcome {
        u64::MAX
    } else {
        !(Verdict::Untouched.outcomes())
    };
    let mut filter = Filter::all(outcomes);
    let Some(tree) = tree else {
        return Ok(filter);
    };
    let mut terms = Vec::new();
    let clauses = clauses(tree, true, exact, &mut terms, lookup)?;
    if clauses.len() > CLAUSES {
        return Err(too_long());
    }
    filter.terms[..terms.len()].copy_from_slice(&terms);
    filter.term_count = terms.len() as u32;
    filter.clauses[..clauses.len()].copy_from_slice(&clauses);
    filter.clause_count = clauses.len() as u32;
    Ok(filter)
}

fn too_long() -> anyhow::Error {
    BadInput(format!(
        "filter: too long: at most {TERMS} different words and {CLAUSES} alternatives"
    ))
    .into()
}

/// Returns whether the condition holds for any word of the tree.
pub(super) fn asks(tree: &Tree, is_it: &dyn Fn(&Word) -> bool) -> bool {
    match tree {
        Tree::Word(word) => is_it(word),
        Tree::Not(one) => asks(one, is_it),
        Tree::And(one, other) | Tree::Or(one, other) => asks(one, is_it) || asks(other, is_it),
    }
}

/// Returns clauses for a tree: at least one clause is true exactly if the tree evaluates to
/// `truth`.
fn clauses(
    tree: &Tree,
    truth: bool,
    exact: Exact,
    terms: &mut Vec<Term>,
    lookup: &mut impl Lookup,
) -> Result<Vec<Clause>> {
    match tree {
        Tree::Word(Word::Outcomes(_)) if exact == Exact::No => Ok(vec![Clause::default()]),
        Tree::Not(one) => clauses(one, !truth, exact, terms, lookup),
        Tree::Word(word) => of_word(word, truth, terms, lookup),
        Tree::And(one, other) | Tree::Or(one, other) => {
            let one = clauses(one, truth, exact, terms, lookup)?;
            let other = clauses(other, truth, exact, terms, lookup)?;
            let all = matches!(tree, Tree::And(..)) == truth;
            if all {
                both(&one, &other)
            } else {
                either(one, other)
            }
        }
    }
}

/// How many clauses there may be during compilation. More than a compiled filter can have, because
/// many may turn out contradictory.
const WORKING: usize = 4096;

fn either(mut one: Vec<Clause>, other: Vec<Clause>) -> Result<Vec<Clause>> {
    for clause in other {
        if !one.contains(&clause) {
            one.push(clause);
        }
    }
    if one.len() > WORKING {
        return Err(too_long());
    }
    Ok(one)
}

fn both(one: &[Clause], other: &[Clause]) -> Result<Vec<Clause>> {
    let mut found = Vec::new();
    for a in one {
        for b in other {
            let common = a.mask & b.mask;
            // Both clauses cannot be true at once: drop the pair.
            if a.value & common != b.value & common {
                continue;
            }
            let clause = Clause {
                mask: a.mask | b.mask,
                value: a.value | b.value,
            };
            if !found.contains(&clause) {
                found.push(clause);
            }
            if found.len() > WORKING {
                return Err(too_long());
            }
        }
    }
    Ok(found)
}

/// Returns the clauses of one word: usually one, but one for each address of a pod and for each
/// port of a service.
fn of_word(
    word: &Word,
    truth: bool,
    terms: &mut Vec<Term>,
    lookup: &mut impl Lookup,
) -> Result<Vec<Clause>> {
    let plain = |kind, sides, low, high| Term {
        kind,
        sides,
        low,
        high,
        ..Term::NONE
    };
    let own = match word {
        Word::Net(sides, range) => vec![net(*sides, range)],
        Word::Ports(sides, low, high) => {
            vec![plain(Term::PORT, *sides, (*low).into(), (*high).into())]
        }
        Word::Protocol(protocol) => vec![plain(Term::PROTOCOL, 0, protocol.0.into(), 0)],
        Word::Family(family) => vec![plain(Term::FAMILY, 0, (*family).into(), 0)],
        Word::Hooks(bits) => vec![plain(Term::HOOK, 0, *bits, 0)],
        Word::Interface(name) => vec![plain(Term::INTERFACE, 0, lookup.interface(name)?, 0)],
        Word::Process(id) => vec![plain(Term::PROCESS, 0, *id, 0)],
        Word::Service(service) => {
            let ids = lookup.service(service)?;
            let terms = ids.into_iter().map(|id| plain(Term::SERVICE, 0, id, 0));
            terms.collect()
        }
        Word::Outcomes(bits) => {
            let halves = (*bits as u32, (*bits >> 32) as u32);
            vec![plain(Term::OUTCOME, 0, halves.0, halves.1)]
        }
        Word::Pod(sides, namespace, name) => {
            let addresses = lookup.pod(namespace, name)?;
            addresses
                .into_iter()
                .map(|address| net(*sides, &address.into()))
                .collect()
        }
    };
    let mut found = Vec::new();
    for term in own {
        let place = terms.iter().position(|known| *known == term);
        let place = place.unwrap_or_else(|| {
            terms.push(term);
            terms.len() - 1
        });
        if place >= TERMS {
            return Err(too_long());
        }
        let mask = 1 << place;
        found.push(Clause {
            mask,
            value: if truth { mask } else { 0 },
        });
    }
    if truth || found.len() < 2 {
        return Ok(found);
    }
    // A negated word with several terms means that none of the terms is true.
    let mask = found.iter().fold(0, |mask, clause| mask | clause.mask);
    Ok(vec![Clause { mask, value: 0 }])
}

fn net(sides: u32, range: &IpNet) -> Term {
    let (address, bits) = match range {
        IpNet::V4(range) => (
            V4::from(range.network()).widened(),
            96 + u32::from(range.prefix_len()),
        ),
        IpNet::V6(range) => (V6::from(range.network()), u32::from(range.prefix_len())),
    };
    let ones = match bits {
        0 => 0,
        bits => u128::MAX << (128 - bits),
    };
    let mask = V6 {
        octets: ones.to_be_bytes(),
    };
    Term {
        kind: Term::NET,
        sides,
        address: address.masked(mask),
        mask,
        ..Term::NONE
    }
}

#[cfg(test)]
#[path = "compile_tests.rs"]
mod tests;
