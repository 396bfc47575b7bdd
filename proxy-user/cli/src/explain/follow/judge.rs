// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names the station at which the followed packet was lost, in one sentence, with the remedy. Pure.

use std::net::SocketAddr;

use proxy_common::trace::follow::Direction;

use super::{
    endpoint::EndpointFacts,
    refusals::{denied, freed, no_socket, refused_by_a_rule, refused_by_us, whose},
    rules::LegacyRule,
    send::Ending,
    stations::{Did, Host, Station},
};
use crate::{finding::Finding, packets::reasons::is_harmless};

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

/// Returns where the packet's way ended: how it was answered, or a finding about the station that
/// lost it.
pub(super) fn judge(facts: &Facts) -> Result<String, Finding> {
    if let Ending::Answered(after) = facts.ending {
        let after = after.as_secs_f64() * 1000.0;
        return Ok(format!("was answered, after {after:.1} ms"));
    }
    if facts.ending == Ending::NoSocket {
        if answer_left(facts) {
            return Ok("was answered: the answer left for the client".to_owned());
        }
        if answer_came(facts) {
            return Ok("was answered: the answer came to the client's pod".to_owned());
        }
        if facts.stations.is_empty() {
            return Err(Finding::in_the_way(
                "the network before this node",
                "no such packet came",
                "see whether the client sends, and which node its route leads to",
            ));
        }
    }
    let by_a_station = refused_by_us(facts).or_else(|| freed(facts));
    if let Some(loss) = by_a_station.or_else(|| refused_by_a_rule(facts)) {
        return Err(loss);
    }
    match &facts.ending {
        Ending::Denied => Err(denied(facts)),
        Ending::Refused => Err(refused(facts)),
        Ending::Failed(error) if !was_sent(facts) => Err(Finding::in_the_way(
            "the client's own network stack",
            format!("it does not send it: {error}"),
            "correct the routes and addresses there: `ip route get ADDRESS` in the client's network namespace",
        )),
        _ => unanswered(facts),
    }
}

/// Whether an answer left the node for the client, and none was lost.
fn answer_left(facts: &Facts) -> bool {
    let answers = facts.stations.iter();
    let mut answers = answers.filter(|one| one.direction == Direction::Answer);
    let is_sent = |one: &Station| one.host == Host::Node && matches!(one.did, Did::Sent { .. });
    answers.clone().any(is_sent) && !answers.any(|one| loses(&one.did))
}

/// Whether an answer came to a client on this node, which has no socket for it: the packet was put
/// into its interface.
fn answer_came(facts: &Facts) -> bool {
    facts.stations.iter().any(|one| {
        one.direction == Direction::Answer
            && matches!(one.host, Host::Other(_))
            && matches!(&one.did, Did::Freed(freed) if freed.reason == "NO_SOCKET")
    })
}

/// Whether this ends the packet's way.
pub(super) fn loses(did: &Did) -> bool {
    matches!(did, Did::Freed(freed) if !is_harmless(&freed.reason))
}

/// Whether a packet was sent; the client's call alone is none.
fn was_sent(facts: &Facts) -> bool {
    let is_call = |did: &Did| matches!(did, Did::Ours(line) if line.interface.is_none());
    facts.stations.iter().any(|station| !is_call(&station.did))
}

/// Returns the loss if the attempt was refused and no rule of this node did it.
fn refused(facts: &Facts) -> Finding {
    let hosts = facts.stations.iter().map(|station| &station.host);
    match { hosts }.rfind(|host| matches!(host, Host::Other(_))) {
        Some(host) => no_socket(facts, host),
        None if is_here(facts) => no_socket(facts, &Host::Node),
        None => Finding::in_the_way(
            format!("beyond this node, towards {}", endpoint_of(facts)),
            "the endpoint or something before it refuses: a reset or an ICMP error came back",
            "see on the endpoint's node: `portolan explain --follow` there",
        ),
    }
}

/// Whether the packet never left the node.
fn is_here(facts: &Facts) -> bool {
    facts.stations.iter().all(|station| match &station.did {
        Did::Sent { interface, .. } if station.host == Host::Node => interface == "lo",
        _ => true,
    })
}

/// The endpoint that the packet reached, or else the destination that the client asked for.
pub(super) fn endpoint_of(facts: &Facts) -> String {
    let endpoint = facts.endpoint.as_ref().map(|facts| facts.address);
    endpoint.unwrap_or(facts.to).to_string()
}

/// Returns the end of a packet that nobody freed and nobody answered.
fn unanswered(facts: &Facts) -> Result<String, Finding> {
    let last = facts.stations.iter().rfind(|station| {
        station.direction != Direction::Error && !matches!(station.did, Did::Rule(_))
    });
    let lost = |about, found: &str, remedy| Err(Finding::in_the_way(about, found, remedy));
    let Some(last) = last.filter(|_| was_sent(facts)) else {
        return lost(
            "the client's own network stack".to_owned(),
            "it sends nothing",
            "see its routes, and its neighbours: `ip neighbour` in the client's network namespace",
        );
    };
    let endpoint = facts.endpoint.as_ref();
    let at_endpoint = || format!("the endpoint {}", endpoint_of(facts));
    let whose = whose(last.direction);
    match (&last.host, &last.did) {
        (Host::Other(_), Did::Received { .. })
            if facts.is_datagram && endpoint.is_some_and(|one| one.listens) =>
        {
            Ok(format!(
                "reached the process at {}; it need not answer this datagram",
                endpoint_of(facts)
            ))
        }
        (Host::Other(_), Did::Received { .. }) if endpoint.is_some_and(|one| one.full_queue) => {
            lost(
                at_endpoint(),
                "its queue of connections is full (ListenOverflows or ListenDrops rose): the process does not accept them fast enough",
                "see the process; a longer queue needs listen's backlog and net.core.somaxconn, and net.ipv4.tcp_syncookies answers a full one",
            )
        }
        (Host::Other(_), Did::Received { .. }) => lost(
            at_endpoint(),
            "it got the packet, and nobody answers",
            "see the pod's log: its process does not answer, or another program in its network namespace takes the packet",
        ),
        (Host::Client, Did::Received { .. }) => lost(
            "the client's own network stack".to_owned(),
            "it got the answer, and its process did not",
            "see the rules and routes in the client's network namespace",
        ),
        (Host::Client, Did::Sent { interface, .. }) => lost(
            format!("between the client's {interface} and this node"),
            &match facts.foreign.as_slice() {
                [] => "it does not arrive here".to_owned(),
                programs => format!("an XDP program takes it: {}", programs.join(", ")),
            },
            "see the link's other end: `ip -d link`, and `bpftool net`",
        ),
        (Host::Node, Did::Sent { interface, .. }) => lost(
            format!("beyond interface {interface}"),
            "this node did all of its part: the packet left, and no answer came back",
            "follow it where it goes: `portolan explain --follow --next` on the next node, or see the endpoint's log",
        ),
        (Host::Other(_), Did::Sent { interface, .. }) => lost(
            format!("between the endpoint's {interface} and this node{whose}"),
            "it does not arrive here",
            "see the link's other end: `ip -d link`, and `bpftool net`",
        ),
        (_, did) => {
            let seen = match did {
                Did::Sent { .. } => "sent",
                Did::Received { .. } => "received",
                Did::Ours(_) => "portolan",
                Did::Rule(_) => "a rule",
                Did::Freed(_) => "freed",
            };
            lost(
                format!("this node's network stack{whose}"),
                &format!("after \"{seen}\" it was seen no more, and nobody freed it"),
                "it may wait for a neighbour, or in a queue of netfilter (`nft list ruleset`, queue): see `ip neighbour`",
            )
        }
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
