// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names the station at which the followed packet was lost, in one sentence, with the remedy. Pure.

use std::net::SocketAddr;

use linux::NftVerdict;
use proxy_common::trace::follow::Direction;

use super::{
    endpoint::EndpointFacts,
    rules::LegacyRule,
    send::Ending,
    stations::{Did, Host, Rule, Station},
};
use crate::{
    freed::reasons::{is_harmless, meaning},
    trace::words::Verdict,
};

/// Everything that is known about the followed packet.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) stations: Vec<Station>,
    pub(super) ending: Ending,
    pub(super) to: SocketAddr,
    pub(super) is_datagram: bool,
    /// Rules of legacy iptables that refused packets meanwhile.
    pub(super) legacy: Vec<LegacyRule>,
    /// Entries and capacity of nf_conntrack, if it is full.
    pub(super) conntrack_full: Option<u64>,
    /// Programs of others at the hook of the interface at which the packet was lost.
    pub(super) foreign: Vec<String>,
    /// Programs of others at the cgroups of the client that see its calls and packets.
    pub(super) cgroup: Vec<String>,
    /// What is known about the namespace that the packet reached.
    pub(super) endpoint: Option<EndpointFacts>,
}

/// The end of the packet's way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Judgement {
    Answered(String),
    Lost(Loss),
    /// Nothing of it was lost on this node.
    Left(Loss),
}

/// Where the packet was lost, why, and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Loss {
    pub(super) station: String,
    pub(super) why: String,
    pub(super) remedy: String,
}

impl Loss {
    fn new(station: impl Into<String>, why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            station: station.into(),
            why: why.into(),
            remedy: remedy.into(),
        }
    }
}

/// Returns where the packet's way ended.
pub(super) fn judge(facts: &Facts) -> Judgement {
    if let Ending::Answered(after) = facts.ending {
        let after = after.as_secs_f64() * 1000.0;
        return Judgement::Answered(format!("was answered, after {after:.1} ms"));
    }
    if matches!(facts.ending, Ending::NoSocket) && answer_left(facts) {
        return Judgement::Answered("was answered: the answer left for the client".to_owned());
    }
    if facts.stations.is_empty() && facts.ending == Ending::NoSocket {
        return Judgement::Lost(Loss::new(
            "the network before this node",
            "no such packet came",
            "see whether the client sends, and which node its route leads to",
        ));
    }
    if let Some(loss) = refused_by_us(facts).or_else(|| freed(facts)) {
        return Judgement::Lost(loss);
    }
    if let Some(loss) = refused_by_a_rule(facts) {
        return Judgement::Lost(loss);
    }
    match &facts.ending {
        Ending::Denied => return Judgement::Lost(denied(facts)),
        Ending::Refused => return Judgement::Lost(refused(facts)),
        Ending::Failed(error) if !was_sent(facts) => {
            return Judgement::Lost(Loss::new(
                "the client's own network stack",
                format!("it does not send it: {error}"),
                "correct the routes and addresses there: `ip route get ADDRESS` in the client's network namespace",
            ));
        }
        _ => {}
    }
    unanswered(facts)
}

fn answer_left(facts: &Facts) -> bool {
    facts.stations.iter().any(|station| {
        station.direction == Direction::Answer
            && station.host == Host::Node
            && matches!(station.did, Did::Sent { .. })
    }) && !facts
        .stations
        .iter()
        .any(|station| station.direction == Direction::Answer && loses(&station.did))
}

fn loses(did: &Did) -> bool {
    matches!(did, Did::Freed { reason, .. } if !is_harmless(reason))
}

/// Whether a packet was sent; the client's call alone is none.
fn was_sent(facts: &Facts) -> bool {
    let is_packet = |did: &Did| {
        !matches!(
            did,
            Did::Ours {
                interface: None,
                ..
            }
        )
    };
    facts.stations.iter().any(|station| is_packet(&station.did))
}

/// Returns the loss if one of portolan's programs dropped or rejected the packet.
fn refused_by_us(facts: &Facts) -> Option<Loss> {
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
fn freed(facts: &Facts) -> Option<Loss> {
    let of = |is_error: bool| {
        let mut stations = facts.stations.iter();
        stations.find(|one| loses(&one.did) && (one.direction == Direction::Error) == is_error)
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

/// Returns the rule that dropped the packet although nothing said that the kernel freed it: one that
/// rejects keeps it for the error that it sends.
fn refused_by_a_rule(facts: &Facts) -> Option<Loss> {
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

fn denied(facts: &Facts) -> Loss {
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

/// Returns the loss if the attempt was refused and no rule of this node did it.
fn refused(facts: &Facts) -> Loss {
    let reached = facts.stations.iter().rev().find_map(|station| {
        let at_pod = matches!(station.host, Host::Other(_));
        at_pod.then_some(&station.host)
    });
    match reached {
        Some(host) => no_socket(facts, host),
        None if is_here(facts) => no_socket(facts, &Host::Node),
        None => Loss::new(
            format!("beyond this node, towards {}", endpoint_of(facts)),
            "the endpoint or something before it refuses: a reset or an ICMP error came back",
            "see on the endpoint's node: `portolan explain --follow` there",
        ),
    }
}

/// Whether the packet never left the node.
fn is_here(facts: &Facts) -> bool {
    let sent = facts
        .stations
        .iter()
        .filter_map(|station| match &station.did {
            Did::Sent { interface, .. } if station.host == Host::Node => Some(interface),
            _ => None,
        });
    sent.into_iter().all(|interface| interface == "lo")
}

fn endpoint_of(facts: &Facts) -> String {
    let endpoint = facts.endpoint.as_ref().map(|facts| facts.address);
    endpoint.unwrap_or(facts.to).to_string()
}

fn no_socket(facts: &Facts, host: &Host) -> Loss {
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
        _ => {
            "correct the Service's targetPort or the port that the process listens at, and see the pod's log"
        }
    };
    Loss::new(station, why, remedy)
}

/// Returns the end of a packet that nobody freed and nobody answered.
fn unanswered(facts: &Facts) -> Judgement {
    let last = facts.stations.iter().rfind(|station| {
        station.direction != Direction::Error && !matches!(station.did, Did::Rule(_))
    });
    let Some(last) = last.filter(|_| was_sent(facts)) else {
        return Judgement::Lost(Loss::new(
            "the client's own network stack",
            "it sends nothing",
            "see its routes, and its neighbours: `ip neighbour` in the client's network namespace",
        ));
    };
    let whose = match last.direction {
        Direction::Request => "",
        Direction::Answer | Direction::Error => " (of the answer)",
    };
    match (&last.host, &last.did) {
        (Host::Other(_), Did::Received { .. })
            if facts.is_datagram && facts.endpoint.as_ref().is_some_and(|one| one.listens) =>
        {
            Judgement::Answered(format!(
                "reached the process at {}; it need not answer this datagram",
                endpoint_of(facts)
            ))
        }
        (Host::Other(_), Did::Received { .. }) => Judgement::Lost(at_the_endpoint(facts)),
        (Host::Client, Did::Received { .. }) => Judgement::Lost(Loss::new(
            "the client's own network stack",
            "it got the answer, and its process did not",
            "see the rules and routes in the client's network namespace",
        )),
        (Host::Client, Did::Sent { interface, .. }) => Judgement::Lost(Loss::new(
            format!("between the client's {interface} and this node"),
            match facts.foreign.as_slice() {
                [] => "it does not arrive here".to_owned(),
                programs => format!("an XDP program takes it: {}", programs.join(", ")),
            },
            "see the link's other end: `ip -d link`, and `bpftool net`",
        )),
        (Host::Node, Did::Sent { interface, .. }) => Judgement::Left(Loss::new(
            format!("beyond interface {interface}"),
            "this node did all of its part: the packet left, and no answer came back",
            "follow it where it goes: `portolan explain --follow --next` on the next node, or see the endpoint's log",
        )),
        (Host::Other(_), Did::Sent { interface, .. }) => Judgement::Lost(Loss::new(
            format!("between the endpoint's {interface} and this node{whose}"),
            "it does not arrive here",
            "see the link's other end: `ip -d link`, and `bpftool net`",
        )),
        (_, did) => Judgement::Lost(Loss::new(
            format!("this node's network stack{whose}"),
            format!(
                "after \"{}\" it was seen no more, and nobody freed it",
                last_words(did)
            ),
            "it may wait for a neighbour, or in a queue of netfilter (`nft list ruleset`, queue): see `ip neighbour`",
        )),
    }
}

fn last_words(did: &Did) -> &'static str {
    match did {
        Did::Sent { .. } => "sent",
        Did::Received { .. } => "received",
        Did::Ours { .. } => "portolan",
        Did::Rule(_) => "a rule",
        Did::Freed { .. } => "freed",
    }
}

fn at_the_endpoint(facts: &Facts) -> Loss {
    let station = format!("the endpoint {}", endpoint_of(facts));
    let endpoint = facts.endpoint.as_ref();
    if endpoint.is_some_and(|endpoint| endpoint.full_queue) {
        return Loss::new(
            station,
            "its queue of connections is full (ListenOverflows or ListenDrops rose): the process does not accept them fast enough",
            "see the process; a longer queue needs listen's backlog and net.core.somaxconn, and net.ipv4.tcp_syncookies answers a full one",
        );
    }
    Loss::new(
        station,
        "it got the packet, and nobody answers",
        "see the pod's log: its process does not answer, or another program in its network namespace takes the packet",
    )
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
