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

/// Returns how the packet was answered, or a finding about the station that lost it.
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
            return Err(Finding::of("nothing-came", &[]));
        }
    }
    let by_a_station = refused_by_us(facts).or_else(|| freed(facts));
    if let Some(loss) = by_a_station.or_else(|| refused_by_a_rule(facts)) {
        return Err(loss);
    }
    match &facts.ending {
        Ending::Denied => Err(denied(facts)),
        Ending::Refused => Err(refused(facts)),
        Ending::Failed(error) if !was_sent(facts) => Err(Finding::of("not-sent", &[error])),
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

/// Whether an answer came to a client on this node, which has no socket for it: ours was injected.
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
        None => Finding::of("refused-beyond", &[&endpoint_of(facts)]),
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
    let Some(last) = last.filter(|_| was_sent(facts)) else {
        return Err(Finding::of("sends-nothing", &[]));
    };
    let reached = endpoint_of(facts);
    let endpoint = facts.endpoint.as_ref();
    let whose = whose(last.direction);
    Err(match (&last.host, &last.did) {
        (Host::Other(_), Did::Received { .. }) => match endpoint {
            Some(one) if facts.is_datagram && one.listens => {
                let sentence = "it need not answer this datagram";
                return Ok(format!("reached the process at {reached}; {sentence}"));
            }
            Some(one) if one.full_queue => Finding::of("queue-full", &[&reached]),
            _ => Finding::of("nobody-answers", &[&reached]),
        },
        (Host::Client, Did::Received { .. }) => Finding::of("answer-at-client", &[]),
        (Host::Client, Did::Sent { interface, .. }) => {
            let found = match facts.foreign.as_slice() {
                [] => "it does not arrive here".to_owned(),
                programs => format!("an XDP program takes it: {}", programs.join(", ")),
            };
            Finding::of("lost-before-node", &[interface, &found])
        }
        (Host::Node, Did::Sent { interface, .. }) => Finding::of("lost-beyond-node", &[interface]),
        (Host::Other(_), Did::Sent { interface, .. }) => {
            Finding::of("lost-behind-endpoint", &[interface, &whose])
        }
        (_, did) => {
            let seen = match did {
                Did::Sent { .. } => "sent",
                Did::Received { .. } => "received",
                Did::Ours(_) => "portolan",
                Did::Rule(_) => "a rule",
                Did::Freed(_) => "freed",
            };
            Finding::of("lost-in-node", &[&whose, &seen])
        }
    })
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
