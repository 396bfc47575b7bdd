// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who refused the followed packet: portolan, the kernel, a rule, a program of another, or a host
//! without a listener. Pure; called by `judge`.

use linux::NftVerdict;
use proxy_common::trace::follow::Direction;

use super::{
    endpoint::EndpointFacts,
    judge::{Facts, endpoint_of, loses},
    send::Ending,
    stations::{Did, Host, Rule, Station},
};
use crate::{finding::Finding, packets::reasons::meaning};

/// Returns the loss if one of portolan's programs dropped or rejected the packet.
pub(super) fn refused_by_us(facts: &Facts) -> Option<Finding> {
    let lines = facts.stations.iter().filter_map(|one| match &one.did {
        Did::Ours(line) => Some(line),
        _ => None,
    });
    let line = { lines }.find(|line| matches!(line.verdict, "drop" | "reject"))?;
    Some(Finding::in_the_way(
        format!("portolan, {}", line.hook_label()),
        format!("{}: {}", line.outcome, line.reason),
        format!("see {}", line.page.unwrap_or("docs/metrics.md")),
    ))
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
        "NETFILTER_DROP" => Finding::in_the_way(
            at("netfilter"),
            "a rule in the pod's own network namespace drops it",
            "see its rules: `nsenter -t PID -n nft list ruleset`, `iptables-save`",
        ),
        "TC_INGRESS" | "TC_EGRESS" | "XDP" | "BPF_CGROUP_EGRESS" => {
            let (name, programs) = match hook {
                "TC_INGRESS" => ("tc ingress", &facts.foreign),
                "TC_EGRESS" => ("tc egress", &facts.foreign),
                "XDP" => ("XDP", &facts.foreign),
                _ => ("the cgroup's egress hook", &facts.cgroup),
            };
            Finding::in_the_way(
                at(name),
                one_of(programs, "drops it", "a program drops it"),
                "see who attached it, `bpftool net` and `bpftool prog show id ID`, and that program's own policy",
            )
        }
        "NO_SOCKET" => no_socket(facts, &station.host),
        _ => {
            let meaning = meaning(reason, place);
            Finding::in_the_way(
                at("the kernel"),
                format!("{} ({reason}, in {place})", meaning.means),
                meaning.remedy,
            )
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
        return Finding::in_the_way(
            format!("iptables-legacy, table {}", first.table),
            format!("`{}` refuses it{others}", first.text),
            "accept the packet before that rule, or remove it; a network policy's rules come from its controller",
        );
    }
    if let Some(entries) = facts.conntrack_full {
        return Finding::in_the_way(
            "nf_conntrack",
            format!("its table is full ({entries} connections), and new ones are dropped"),
            "raise net.netfilter.nf_conntrack_max, and see who holds so many: `conntrack -L`",
        );
    }
    Finding::in_the_way(
        at,
        "a hook drops it that is no rule of nf_tables or iptables: conntrack, IPVS, or a module",
        "see `portolan check` for what is at the node's netfilter hooks",
    )
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
    let remedy = match rule.handle {
        None => "accept the packet by a rule of that chain, or set portolan.acceptForward: true for what portolan masquerades".to_owned(),
        Some(handle) => format!(
            "accept the packet before it, or remove it (`nft delete rule {} handle {handle}`); a network policy's rules come from its controller",
            rule.chain
        ),
    };
    Finding::in_the_way("nftables", format!("{} {refuses}", rule.name()), remedy)
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
    Finding::in_the_way(
        "the client's socket",
        one_of(&facts.cgroup, "does not permit the call", unknown),
        "see who attached it, `bpftool cgroup tree`, and that program's own policy; seccomp and security modules deny calls, too",
    )
}

/// Returns the loss if the packet reached a host where nobody listens at its port.
pub(super) fn no_socket(facts: &Facts, host: &Host) -> Finding {
    let station = match host {
        Host::Node => "this node's own sockets".to_owned(),
        _ => format!("the endpoint {}", endpoint_of(facts)),
    };
    let nobody = "no process listens at that port";
    let at_the_port = match host {
        Host::Node => "correct the port, or start the node's process that should listen at it",
        _ => {
            "correct the Service's targetPort or the port that the process listens at, and see the pod's log"
        }
    };
    let (why, remedy) = match &facts.endpoint {
        Some(EndpointFacts { only_at, .. }) if !only_at.is_empty() => {
            let only = only_at.join(", ");
            (
                format!("no process listens at this address: at that port only at {only}"),
                "have the process listen at 0.0.0.0 or [::]",
            )
        }
        Some(EndpointFacts { ports, .. }) if !ports.is_empty() => {
            let ports: Vec<_> = ports.iter().map(u16::to_string).collect();
            let ports = ports.join(", ");
            (format!("{nobody}; listened at are {ports}"), at_the_port)
        }
        _ => (nobody.to_owned(), at_the_port),
    };
    Finding::in_the_way(station, why, remedy)
}
