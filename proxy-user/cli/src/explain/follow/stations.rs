// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stations of the followed packet, in the order in which it passed them: from what the kernel,
//! portolan's programs and nf_tables reported, each in its own order. Pure.

use linux::NftVerdict;
use proxy_common::trace::follow::Direction;
use serde::Serialize;

use crate::packets::{Freed, line::Line};

/// In which network namespace a station is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Host {
    Node,
    /// The client's pod.
    Client,
    /// Another namespace of this node, by inode number.
    Other(u32),
}

impl Host {
    fn name(&self) -> String {
        match self {
            Self::Node => "node".to_owned(),
            Self::Client => "client's pod".to_owned(),
            Self::Other(inode) => format!("pod with network namespace {inode}"),
        }
    }
}

/// A rule or policy of nf_tables that the packet met.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Rule {
    /// Family, table and chain as nft spells them.
    pub(super) chain: String,
    /// None for the chain's policy.
    pub(super) handle: Option<u64>,
    pub(super) verdict: NftVerdict,
    /// The rule in nft's words; None if nft is not here.
    pub(super) words: Option<String>,
}

impl Rule {
    /// Returns chain and handle, and the rule in nft's words.
    pub(super) fn name(&self) -> String {
        let Self { chain, words, .. } = self;
        match (self.handle, words) {
            (None, _) => format!("the policy of chain {chain}"),
            (Some(handle), Some(words)) => format!("rule {handle} of chain {chain}: `{words}`"),
            (Some(handle), None) => {
                format!("rule {handle} of chain {chain} (`nft -a list chain {chain}` shows it)")
            }
        }
    }
}

/// What happened to the packet at a station.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Did {
    Sent {
        interface: String,
        /// The Ethernet destination.
        receiver: [u8; 6],
    },
    Received {
        interface: String,
    },
    /// One of portolan's programs, or socket hooks, saw it.
    Ours(Box<Line>),
    Rule(Rule),
    Freed(Freed),
}

/// A station.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Station {
    pub(super) host: Host,
    pub(super) direction: Direction,
    pub(super) did: Did,
}

impl Station {
    pub(super) fn new(host: Host, direction: Direction, did: Did) -> Self {
        Self {
            host,
            direction,
            did,
        }
    }

    /// Whether the same happened there to a packet before; a repetition's flow is known.
    fn repeats(&self, known: &Self) -> bool {
        let is_alike = match (&self.did, &known.did) {
            (Did::Ours(line), Did::Ours(known)) => {
                (line.hook, &line.interface, line.verdict)
                    == (known.hook, &known.interface, known.verdict)
            }
            (did, known) => did == known,
        };
        is_alike && (&self.host, self.direction) == (&known.host, known.direction)
    }

    pub(super) fn row(&self) -> StationRow {
        StationRow {
            packet: match self.direction {
                Direction::Request => "request",
                Direction::Answer => "answer",
                Direction::Error => "error",
            },
            host: self.host.name(),
            did: self.did.text(),
        }
    }
}

/// A station with the time at which it was seen, in nanoseconds of the monotonic clock.
pub(super) type Timed = (u64, Station);

/// Puts the stations in order: `seen` by their times, and the rules of each direction, which have
/// none, behind the first program or interface of the node that saw the packet come. What happened
/// again to a repetition is left out.
pub(super) fn in_order(mut seen: Vec<Timed>, rules: Vec<(Direction, Rule)>) -> Vec<Station> {
    seen.sort_by_key(|(time, _)| *time);
    for direction in Direction::ALL {
        let of_direction =
            |(_, station): &&Timed| station.direction == direction && station.host == Host::Node;
        let mut here = seen.iter().filter(of_direction);
        let entered = |(_, station): &&Timed| matches!(&station.did, Did::Ours(line) if line.hook == "ingress");
        let came =
            |(_, station): &&Timed| matches!(station.did, Did::Received { .. } | Did::Ours(_));
        let first = here.clone().find(entered).or_else(|| here.find(came));
        let after = first.map_or(0, |(time, _)| *time);
        let own = rules.iter().filter(|(of, _)| *of == direction);
        let own = own.map(|(_, rule)| {
            let did = Did::Rule(rule.clone());
            (after, Station::new(Host::Node, direction, did))
        });
        let own: Vec<_> = own.collect();
        let place = seen.partition_point(|(time, _)| *time <= after);
        seen.splice(place..place, own);
    }
    let mut stations: Vec<Station> = Vec::new();
    for (_, station) in seen {
        if !stations.iter().any(|known| station.repeats(known)) {
            stations.push(station);
        }
    }
    stations
}

/// A station as the report shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::explain) struct StationRow {
    /// `request`, `answer` or `error` (an ICMP error about a request).
    pub(in crate::explain) packet: &'static str,
    pub(in crate::explain) host: String,
    pub(in crate::explain) did: String,
}

impl Did {
    fn text(&self) -> String {
        match self {
            Self::Sent {
                interface,
                receiver: [0, 0, 0, 0, 0, 0],
            } => format!("sent by {interface}"),
            Self::Sent {
                interface,
                receiver,
            } => {
                let receiver = receiver.map(|byte| format!("{byte:02x}")).join(":");
                format!("sent by {interface} to {receiver}")
            }
            Self::Received { interface } => format!("received by {interface}"),
            Self::Ours(line) => {
                let error = line.error.iter();
                let error: String = error.map(|error| format!(" ({error})")).collect();
                let (at, outcome, ends) = (line.hook_label(), line.outcome, line.ends());
                format!("portolan, {at}: {outcome}{error}: {ends}")
            }
            Self::Rule(rule) => {
                let verdict = match &rule.verdict {
                    NftVerdict::Next => "next",
                    NftVerdict::Accept => "accept",
                    NftVerdict::Drop => "drop",
                    NftVerdict::Jump(chain) => &format!("jump {chain}"),
                    NftVerdict::Queue => "queue",
                };
                format!("nftables, {}: {verdict}", rule.name())
            }
            Self::Freed(freed) => {
                let at = match freed.interface.as_str() {
                    "" => String::new(),
                    name => format!(" at {name}"),
                };
                format!("freed{at}: {}, in {}", freed.reason, freed.place)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(interface: &str) -> Did {
        let interface = interface.to_owned();
        Did::Received { interface }
    }

    fn rule(handle: u64, verdict: NftVerdict) -> Rule {
        Rule {
            chain: "inet firewall forward".to_owned(),
            handle: Some(handle),
            verdict,
            words: None,
        }
    }

    #[test]
    fn rules_come_behind_the_interface_that_received_and_repetitions_are_left_out() {
        let request = |did| Station::new(Host::Node, Direction::Request, did);
        let freed = Did::Freed(Freed {
            interface: "pod0".into(),
            reason: "NETFILTER_DROP".into(),
            place: "nf_hook_slow".into(),
        });
        let seen = vec![
            (30, request(freed.clone())),
            (10, request(received("pod0"))),
            (50, request(received("pod0"))),
            (70, request(freed.clone())),
        ];
        let rules = vec![
            (Direction::Request, rule(3, NftVerdict::Next)),
            (Direction::Request, rule(4, NftVerdict::Drop)),
        ];
        let stations = in_order(seen, rules);
        let rows: Vec<_> = stations.iter().map(|station| station.row().did).collect();
        assert_eq!(rows.len(), 4, "{rows:?}");
        assert_eq!(rows[0], "received by pod0");
        let chain = "chain inet firewall forward";
        let rule = format!("nftables, rule 3 of {chain} (`nft -a list {chain}` shows it): next");
        assert!(rows[1] == rule && rows[2].ends_with("drop"), "{rows:?}");
        assert_eq!(rows[3], "freed at pod0: NETFILTER_DROP, in nf_hook_slow");
    }
}
