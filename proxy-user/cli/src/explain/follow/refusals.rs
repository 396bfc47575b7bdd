// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who refused the followed packet, portolan and its host included. Pure; called by `judge`.

use std::fmt::Display;

use linux::NftVerdict;
use proxy_common::trace::follow::Direction;

use super::{
    endpoint::EndpointFacts,
    judge::{Facts, endpoint_of, loses},
    send::Ending,
    stations::{Did, Host, Rule, Station},
};
use crate::{
    finding::Finding,
    packets::reasons::{Meaning, meaning},
};

/// Returns the loss if one of portolan's programs dropped or rejected the packet.
pub(super) fn refused_by_us(facts: &Facts) -> Option<Finding> {
    let lines = facts.stations.iter().filter_map(|one| match &one.did {
        Did::Ours(line) => Some(line),
        _ => None,
    });
    let line = { lines }.find(|line| matches!(line.verdict, "drop" | "reject"))?;
    let page = line.page.unwrap_or("docs/metrics.md");
    let words: [&dyn Display; 4] = [&line.hook_label(), &line.outcome, &line.reason, &page];
    Some(Finding::of("refused-by-us", &words))
}

/// Returns the loss if the kernel freed the packet, or an answer to it.
pub(super) fn freed(facts: &Facts) -> Option<Finding> {
    let lost = facts.stations.iter();
    let lost = lost.filter(|one| loses(&one.did) && !is_own_error(facts, one));
    // An ICMP error tells less than the packet or the answer.
    let station = lost.min_by_key(|one| one.direction == Direction::Error)?;
    let Did::Freed(freed) = &station.did else {
        return None;
    };
    let (reason, place) = (&freed.reason, &freed.place);
    let whose = whose(station.direction);
    let host = match &station.host {
        Host::Node => "",
        Host::Client => " in the client's network namespace",
        Host::Other(_) => " in the endpoint's network namespace",
    };
    let at = |what: &str| match freed.interface.as_str() {
        "" => format!("{what}{host}{whose}"),
        name => format!("{what}{host}, interface {name}{whose}"),
    };
    let hook = match reason.as_str() {
        // Drivers give no reason.
        "NOT_SPECIFIED" if place.contains("_xdp_") => "XDP",
        reason => reason,
    };
    Some(match hook {
        "NETFILTER_DROP" if station.host == Host::Node => {
            netfilter(facts, station.direction, &at("netfilter"))
        }
        "NETFILTER_DROP" => Finding::of("netfilter-of-pod", &[&at("netfilter")]),
        "TC_INGRESS" | "TC_EGRESS" | "XDP" | "BPF_CGROUP_EGRESS" => {
            let (name, programs) = match hook {
                "TC_INGRESS" => ("tc ingress", &facts.foreign),
                "TC_EGRESS" => ("tc egress", &facts.foreign),
                "XDP" => ("XDP", &facts.foreign),
                _ => ("the cgroup's egress hook", &facts.cgroup),
            };
            let found = one_of(programs, "drops it", "a program drops it");
            Finding::of("dropped-by-program", &[&at(name), &found])
        }
        "NO_SOCKET" => no_socket(facts, &station.host),
        _ => {
            let Meaning { means, remedy } = meaning(reason, place);
            let at = at("the kernel");
            Finding::of("freed", &[&at, &means, reason, place, &remedy])
        }
    })
}

/// Returns which packet is meant, as an addition to its station.
pub(super) fn whose(direction: Direction) -> &'static str {
    match direction {
        Direction::Request => "",
        Direction::Answer => " (of the answer)",
        Direction::Error => " (of the ICMP error about it)",
    }
}

/// Names the programs of which one does something, with the verb. `unknown`: for no program.
fn one_of(programs: &[String], verb: &str, unknown: &str) -> String {
    match programs {
        [] => unknown.to_owned(),
        [one] => format!("{one} {verb}"),
        several => format!("one of these {verb}: {}", several.join(", ")),
    }
}

/// Whether portolan freed this ICMP error: redirects, which would lead clients past the node.
pub(super) fn is_own_error(facts: &Facts, station: &Station) -> bool {
    let is_at_tc = matches!(&station.did, Did::Freed(freed) if freed.reason.starts_with("TC_"));
    station.direction == Direction::Error && is_at_tc && facts.foreign.is_empty()
}

/// Returns the rule that dropped the packet: of nf_tables, else of legacy iptables, else none.
fn netfilter(facts: &Facts, direction: Direction, at: &str) -> Finding {
    if let Some(rule) = dropping_rule(facts, direction) {
        return of_rule(rule);
    }
    if let [first, rest @ ..] = facts.legacy.as_slice() {
        let others = match rest.len() {
            0 => String::new(),
            count => format!("; {count} other rules that refuse counted packets in this time"),
        };
        return Finding::of("legacy-rule", &[&first.table, &first.text, &others]);
    }
    match facts.conntrack_full {
        Some(entries) => Finding::of("conntrack-full", &[&entries]),
        None => Finding::of("netfilter-unknown", &[&at]),
    }
}

fn dropping_rule(facts: &Facts, direction: Direction) -> Option<&Rule> {
    let stations = facts.stations.iter();
    let mut stations = stations.filter(|station| station.direction == direction);
    stations.find_map(|station| match &station.did {
        Did::Rule(rule) if rule.verdict == NftVerdict::Drop => Some(rule),
        _ => None,
    })
}

fn of_rule(rule: &Rule) -> Finding {
    let refuses = match &rule.words {
        Some(words) if words.contains("reject") => "rejects it",
        _ => "drops it",
    };
    match rule.handle {
        None => Finding::of("nft-policy", &[&rule.name(), &refuses]),
        Some(handle) => Finding::of("nft-rule", &[&rule.name(), &refuses, &rule.chain, &handle]),
    }
}

/// Returns the rule that dropped the packet although nothing said that the kernel freed it: one
/// that rejects keeps it for the error that it sends.
pub(super) fn refused_by_a_rule(facts: &Facts) -> Option<Finding> {
    let directions = [Direction::Request, Direction::Answer].into_iter();
    if let Some(rule) = { directions }.find_map(|direction| dropping_rule(facts, direction)) {
        return Some(of_rule(rule));
    }
    let is_refused = matches!(facts.ending, Ending::Refused | Ending::Failed(_));
    let rejects = facts.legacy.iter().any(|rule| rule.text.contains("REJECT"));
    (is_refused && rejects).then(|| netfilter(facts, Direction::Request, "netfilter"))
}

pub(super) fn denied(facts: &Facts) -> Finding {
    let unknown = "the call is not permitted, and no program of another is at the client's cgroups";
    let found = one_of(&facts.cgroup, "does not permit the call", unknown);
    Finding::of("call-denied", &[&found])
}

/// Returns the loss if the packet reached a host where nobody listens at its port.
pub(super) fn no_socket(facts: &Facts, host: &Host) -> Finding {
    let station = match host {
        Host::Node => "this node's own sockets".to_owned(),
        _ => format!("the endpoint {}", endpoint_of(facts)),
    };
    let at_the_port = match host {
        Host::Node => "correct the port, or start the node's process that should listen at it",
        _ => {
            "correct the Service's targetPort or the port that the process listens at, and see the pod's log"
        }
    };
    let (only_at, ports) = match &facts.endpoint {
        Some(EndpointFacts { only_at, ports, .. }) => (&only_at[..], &ports[..]),
        None => Default::default(),
    };
    if !only_at.is_empty() {
        return Finding::of("listens-elsewhere", &[&station, &only_at.join(", ")]);
    }
    let ports: Vec<_> = ports.iter().map(u16::to_string).collect();
    let others = match ports.is_empty() {
        true => String::new(),
        false => format!("; listened at are {}", ports.join(", ")),
    };
    Finding::of("no-listener", &[&station, &others, &at_the_port])
}
