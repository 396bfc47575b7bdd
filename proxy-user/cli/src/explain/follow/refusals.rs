// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who refused the followed packet: portolan, the kernel, a rule, a program of another, or a host
//! without a listener. Pure; called by `judge`.

use linux::NftVerdict;
use proxy_common::trace::follow::Direction;

use super::{
    judge::{Facts, Loss, endpoint_of, loses},
    rules::LegacyRule,
    send::Ending,
    stations::{Did, Host, Rule, Station},
};
use crate::{freed::reasons::meaning, trace::verdict::Verdict};

/// Returns the loss if one of portolan's programs dropped or rejected the packet.
pub(super) fn refused_by_us(facts: &Facts) -> Option<Loss> {
    facts
        .stations
        .iter()
        .find_map(|station| match &station.did {
            Did::Ours {
                hook,
                interface,
                verdict: Verdict::Drop | Verdict::Reject,
                outcome,
                meaning,
                page,
                ..
            } => {
                let at: String = interface.iter().map(|name| format!(" of {name}")).collect();
                Some(Loss::new(
                    format!("portolan, {hook}{at}"),
                    format!("{outcome}: {}", meaning.trim()),
                    format!("see {}", page.unwrap_or("docs/metrics.md")),
                ))
            }
            _ => None,
        })
}

/// Returns the loss if the kernel freed the packet, or an answer to it.
pub(super) fn freed(facts: &Facts) -> Option<Loss> {
    let of = |is_error: bool| {
        let mut stations = facts.stations.iter();
        stations.find(|one| {
            let is_own = is_own_error(facts, one);
            loses(&one.did) && (one.direction == Direction::Error) == is_error && !is_own
        })
    };
    let station = of(false).or_else(|| of(true))?;
    let Did::Freed {
        interface,
        reason,
        place,
    } = &station.did
    else {
        return None;
    };
    let whose = match station.direction {
        Direction::Request => "",
        Direction::Answer => " (of the answer)",
        Direction::Error => " (of the ICMP error about it)",
    };
    let at = |what: &str| {
        let interface = if interface.is_empty() {
            String::new()
        } else {
            format!(", interface {interface}")
        };
        format!("{what}{}{interface}{whose}", in_host(&station.host))
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
        "NETFILTER_DROP" => Loss::new(
            at("netfilter"),
            "a rule in the pod's own network namespace drops it",
            "see its rules: `nsenter -t PID -n nft list ruleset`, `iptables-save`",
        ),
        "TC_INGRESS" | "TC_EGRESS" | "XDP" | "BPF_CGROUP_EGRESS" => {
            let programs = if hook == "BPF_CGROUP_EGRESS" {
                &facts.cgroup
            } else {
                &facts.foreign
            };
            Loss::new(
                at(hook_name(hook)),
                match programs.as_slice() {
                    [] => "a program drops it".to_owned(),
                    [one] => format!("{one} drops it"),
                    several => format!("one of these drops it: {}", several.join(", ")),
                },
                "see who attached it, `bpftool net` and `bpftool prog show id ID`, and that program's own policy",
            )
        }
        "NO_SOCKET" => no_socket(facts, &station.host),
        _ => {
            let meaning = meaning(reason, place);
            Loss::new(
                at("the kernel"),
                format!("{} ({reason}, in {place})", meaning.means),
                meaning.remedy,
            )
        }
    })
}

/// Whether portolan freed this ICMP error: redirects, which would lead clients past the node.
pub(super) fn is_own_error(facts: &Facts, station: &Station) -> bool {
    let is_at_tc = matches!(&station.did, Did::Freed { reason, .. } if reason.starts_with("TC_"));
    station.direction == Direction::Error && is_at_tc && facts.foreign.is_empty()
}

fn in_host(host: &Host) -> &'static str {
    match host {
        Host::Node => "",
        Host::Client => " in the client's network namespace",
        Host::Other(_) => " in the endpoint's network namespace",
    }
}

fn hook_name(reason: &str) -> &'static str {
    match reason {
        "TC_INGRESS" => "tc ingress",
        "TC_EGRESS" => "tc egress",
        "XDP" => "XDP",
        _ => "the cgroup's egress hook",
    }
}

/// Returns the rule that dropped the packet: of nf_tables, else of legacy iptables, else none.
fn netfilter(facts: &Facts, direction: Direction, at: &str) -> Loss {
    if let Some(rule) = dropping_rule(facts, direction) {
        return of_rule(rule);
    }
    if let [first, rest @ ..] = facts.legacy.as_slice() {
        let others = match rest.len() {
            0 => String::new(),
            count => format!("; {count} other rules that refuse counted packets in this time"),
        };
        return Loss::new(
            format!("iptables-legacy, table {}", first.table),
            format!("`{}` refuses it{others}", first.text),
            "accept the packet before that rule, or remove it; a network policy's rules come from its controller",
        );
    }
    if let Some(entries) = facts.conntrack_full {
        return Loss::new(
            "nf_conntrack",
            format!("its table is full ({entries} connections), and new ones are dropped"),
            "raise net.netfilter.nf_conntrack_max, and see who holds so many: `conntrack -L`",
        );
    }
    Loss::new(
        at,
        "a hook drops it that is no rule of nf_tables or iptables: conntrack, IPVS, or a module",
        "see `portolan check` for what is at the node's netfilter hooks",
    )
}

fn dropping_rule(facts: &Facts, direction: Direction) -> Option<&Rule> {
    facts
        .stations
        .iter()
        .find_map(|station| match &station.did {
            Did::Rule(rule)
                if rule.verdict == NftVerdict::Drop && station.direction == direction =>
            {
                Some(rule)
            }
            _ => None,
        })
}

fn of_rule(rule: &Rule) -> Loss {
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
    Loss::new("nftables", format!("{} {refuses}", rule.name()), remedy)
}

/// Returns the rule that dropped the packet although nothing said that the kernel freed it: one
/// that rejects keeps it for the error that it sends.
pub(super) fn refused_by_a_rule(facts: &Facts) -> Option<Loss> {
    let rule = [Direction::Request, Direction::Answer]
        .into_iter()
        .find_map(|direction| dropping_rule(facts, direction));
    let is_legacy = |rule: &&LegacyRule| rule.text.contains("REJECT");
    match rule {
        Some(rule) => Some(of_rule(rule)),
        None if matches!(facts.ending, Ending::Refused | Ending::Failed(_))
            && facts.legacy.iter().any(|rule| is_legacy(&rule)) =>
        {
            Some(netfilter(facts, Direction::Request, "netfilter"))
        }
        None => None,
    }
}

/// Returns the loss if the client's own call was not permitted.
pub(super) fn denied(facts: &Facts) -> Loss {
    let why = match facts.cgroup.as_slice() {
        [] => "the call is not permitted, and no program of another is at the client's cgroups"
            .to_owned(),
        [one] => format!("{one} does not permit the call"),
        several => format!(
            "one of these does not permit the call: {}",
            several.join(", ")
        ),
    };
    Loss::new(
        "the client's socket",
        why,
        "see who attached it, `bpftool cgroup tree`, and that program's own policy; seccomp and security modules deny calls, too",
    )
}

/// Returns the loss if the packet reached a host where nobody listens at its port.
pub(super) fn no_socket(facts: &Facts, host: &Host) -> Loss {
    let station = match host {
        Host::Node => "this node's own sockets".to_owned(),
        _ => format!("the endpoint {}", endpoint_of(facts)),
    };
    let why = match &facts.endpoint {
        Some(endpoint) if !endpoint.only_at.is_empty() => format!(
            "no process listens at this address: at that port only at {}",
            endpoint.only_at.join(", ")
        ),
        Some(endpoint) if !endpoint.ports.is_empty() => format!(
            "no process listens at that port; listened at are {}",
            endpoint
                .ports
                .iter()
                .map(u16::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        ),
        _ => "no process listens at that port".to_owned(),
    };
    let remedy = match &facts.endpoint {
        Some(endpoint) if !endpoint.only_at.is_empty() => {
            "have the process listen at 0.0.0.0 or [::]"
        }
        _ if *host == Host::Node => {
            "correct the port, or start the node's process that should listen at it"
        }
        _ => {
            "correct the Service's targetPort or the port that the process listens at, and see the pod's log"
        }
    };
    Loss::new(station, why, remedy)
}
