// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What of others may judge the packet, and was not asked: rules of firewalls and programs at the
//! hooks that it passes. They are counted, not evaluated. Pure.

use std::collections::BTreeSet;

use linux::{NftChain, Routed};
use serde::Serialize;

use super::{Endpoint, HookedInterface, Host};

// The numbers of netfilter's hooks.
const PREROUTING: u32 = 0;
const INPUT: u32 = 1;
const FORWARD: u32 = 2;
const OUTPUT: u32 = 3;
const POSTROUTING: u32 = 4;
/// The hook of family inet at one interface.
const INGRESS: u32 = 5;

/// The hooks of netfilter that the packet or its answer passes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::explain) struct PassedHooks {
    v6: bool,
    /// The hooks of IP, by their numbers.
    pub(in crate::explain) hooks: Vec<u32>,
    bridged: bool,
    /// The names of the interfaces that the packet passes.
    devices: BTreeSet<String>,
}

impl PassedHooks {
    /// Returns the hooks for the packet of this host; none if it is not sent on or passes the stack
    /// by.
    pub(in crate::explain) fn new(host: &Host) -> Self {
        let mut passed = Self {
            v6: host.v6,
            ..Self::default()
        };
        if host.redirected || host.endpoints.is_empty() {
            return passed;
        }
        let mut hooks = BTreeSet::new();
        for endpoint in &host.endpoints {
            let both: &[u32] = match (&host.incoming, &endpoint.routed) {
                (Some(_), Routed::Here) => &[PREROUTING, INPUT, OUTPUT, POSTROUTING],
                (Some(_), _) => &[PREROUTING, FORWARD, POSTROUTING],
                (None, _) => &[OUTPUT, POSTROUTING, PREROUTING, INPUT],
            };
            hooks.extend(both);
        }
        passed.hooks = hooks.into_iter().collect();
        for place in places(host) {
            passed.bridged |= place.link.is_bridge || place.index != place.stack_index;
            passed.devices.insert(place.link.name.clone());
            passed.devices.insert(place.stack_name.clone());
        }
        passed
    }

    /// Returns whether the packet passes a chain of nf_tables.
    pub(in crate::explain) fn contain(&self, chain: &NftChain) -> bool {
        let Some(hook) = chain.hook.filter(|_| !self.hooks.is_empty()) else {
            return false;
        };
        let is_of_device = || {
            chain
                .devices
                .iter()
                .any(|device| self.devices.contains(device))
        };
        match chain.family {
            "netdev" => is_of_device(),
            "inet" if hook == INGRESS => is_of_device(),
            "bridge" => self.bridged,
            "ip" if self.v6 => false,
            "ip6" if !self.v6 => false,
            _ => self.hooks.contains(&hook),
        }
    }
}

/// Returns the interfaces that the packet passes, each once.
pub(in crate::explain) fn places(host: &Host) -> Vec<&HookedInterface> {
    let outgoing = host
        .endpoints
        .iter()
        .filter_map(|one: &Endpoint| one.outgoing.as_ref());
    let mut found: Vec<&HookedInterface> = Vec::new();
    for place in host.incoming.iter().chain(outgoing) {
        if !found.iter().any(|known| known.index == place.index) {
            found.push(place);
        }
    }
    found
}

/// What of others may judge the packet, and was not asked.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::explain) struct Unasked {
    /// The number of chains with rules.
    pub(in crate::explain) chains: usize,
    pub(in crate::explain) rules: usize,
    /// Where the rules are, with their numbers.
    pub(in crate::explain) places: Vec<String>,
    /// The names of programs of others.
    pub(in crate::explain) programs: Vec<String>,
}

impl Unasked {
    pub(in crate::explain) fn new(host: &Host) -> Self {
        let mut found = Self::default();
        for one in &host.rules {
            let NftChain {
                family,
                table,
                name,
                ..
            } = &one.chain;
            found.chains += 1;
            found.rules += one.rules;
            found
                .places
                .push(format!("{family} {table} {name} ({})", one.rules));
        }
        for one in &host.legacy_rules {
            found.chains += one.chains;
            found.rules += one.rules;
            found.places.push(format!("{} ({})", one.table, one.rules));
        }
        found.programs = programs(host);
        found
    }

    pub(in crate::explain) fn is_empty(&self) -> bool {
        self.rules == 0 && self.programs.is_empty()
    }

    /// Returns what may judge the packet: `3 chains with 41 rules of others may judge this packet`.
    pub(in crate::explain) fn describe(&self) -> String {
        let mut parts = Vec::new();
        if self.rules > 0 {
            let chains = counted(self.chains, "chain");
            parts.push(format!("{chains} with {}", counted(self.rules, "rule")));
        }
        if !self.programs.is_empty() {
            parts.push(counted(self.programs.len(), "program"));
        }
        format!("{} of others may judge this packet", parts.join(" and "))
    }

    /// Returns where the rules and programs are.
    pub(in crate::explain) fn list(&self) -> String {
        let all: Vec<_> = self.places.iter().chain(&self.programs).collect();
        crate::some(all)
    }
}

fn counted(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

/// Returns the names of the programs of others, each with its hook.
fn programs(host: &Host) -> Vec<String> {
    let mut found: Vec<_> = host
        .at_sockets
        .iter()
        .map(|name| format!("{name} at a cgroup"))
        .collect();
    if host.endpoints.is_empty() {
        return found;
    }
    for place in places(host) {
        let name = &place.link.name;
        let at_tc =
            |hook: &'static str| move |program: &String| format!("{program} at {hook} of {name}");
        for (state, hook) in place.hooks.iter().zip(["ingress", "egress"]) {
            let was_asked = hook == "ingress" && place.verdicts.len() == state.before.len();
            let before = state.before.iter().filter(|_| !was_asked);
            let names = before.chain(&state.behind).map(|one| &one.name);
            found.extend(names.map(at_tc(hook)));
        }
        found.extend(place.xdp.iter().map(at_tc("XDP")));
    }
    found
}

#[cfg(test)]
#[path = "unasked_tests.rs"]
mod tests;
