// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stations of the followed packet, in the order in which it passed them: from what the kernel,
//! portolan's programs and nf_tables reported, each in its own order. Pure.

use linux::NftVerdict;
use proxy_common::trace::follow::Direction;
use serde::Serialize;

use crate::trace::verdict::Verdict;

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
    Ours {
        hook: &'static str,
        /// None for a socket call.
        interface: Option<String>,
        verdict: Verdict,
        outcome: &'static str,
        meaning: &'static str,
        /// The documentation page about the outcome.
        page: Option<&'static str>,
        /// Source and destination, and what they became.
        ends: String,
        /// The error that a socket call got.
        error: Option<String>,
    },
    Rule(Rule),
    Freed {
        /// Empty if the packet was at no interface.
        interface: String,
        reason: String,
        /// The function that freed it.
        place: String,
    },
}

/// A station.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Station {
    pub(super) host: Host,
    pub(super) direction: Direction,
    pub(super) did: Did,
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
        let entered = seen.iter().filter(of_direction).find(|(_, station)| {
            matches!(
                station.did,
                Did::Ours {
                    hook: "ingress",
                    ..
                }
            )
        });
        let entered = entered.or_else(|| {
            let received = |(_, station): &&Timed| {
                matches!(station.did, Did::Received { .. } | Did::Ours { .. })
            };
            seen.iter().filter(of_direction).find(received)
        });
        let after = entered.map_or(0, |(time, _)| *time);
        let own = rules.iter().filter(|(of, _)| *of == direction);
        let own = own.map(|(_, rule)| {
            let station = Station {
                host: Host::Node,
                direction,
                did: Did::Rule(rule.clone()),
            };
            (after, station)
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

impl Station {
    /// Whether the same happened there to a packet before. To a repetition, portolan's programs say
    /// that they know its flow.
    fn repeats(&self, known: &Self) -> bool {
        let is_alike = match (&self.did, &known.did) {
            (
                Did::Ours {
                    hook,
                    interface,
                    verdict,
                    ..
                },
                Did::Ours {
                    hook: known_hook,
                    interface: known_interface,
                    verdict: known_verdict,
                    ..
                },
            ) => (hook, interface, verdict) == (known_hook, known_interface, known_verdict),
            (did, known) => did == known,
        };
        is_alike && (&self.host, self.direction) == (&known.host, known.direction)
    }
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

impl Station {
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

impl Did {
    fn text(&self) -> String {
        match self {
            Self::Sent {
                interface,
                receiver,
            } => match receiver {
                [0, 0, 0, 0, 0, 0] => format!("sent by {interface}"),
                mac => format!("sent by {interface} to {}", mac_text(*mac)),
            },
            Self::Received { interface } => format!("received by {interface}"),
            Self::Ours {
                hook,
                interface,
                outcome,
                ends,
                error,
                ..
            } => {
                let at = interface.iter().map(|name| format!(" of {name}"));
                let at: String = at.collect();
                let error: String = error.iter().map(|error| format!(" ({error})")).collect();
                format!("portolan, {hook}{at}: {outcome}{error}: {ends}")
            }
            Self::Rule(rule) => {
                let verdict = match &rule.verdict {
                    NftVerdict::Next => "next".to_owned(),
                    NftVerdict::Accept => "accept".to_owned(),
                    NftVerdict::Drop => "drop".to_owned(),
                    NftVerdict::Jump(chain) => format!("jump {chain}"),
                    NftVerdict::Queue => "queue".to_owned(),
                };
                format!("nftables, {}: {verdict}", rule.name())
            }
            Self::Freed {
                interface,
                reason,
                place,
            } => {
                let at = if interface.is_empty() {
                    String::new()
                } else {
                    format!(" at {interface}")
                };
                format!("freed{at}: {reason}, in {place}")
            }
        }
    }
}

fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn station(direction: Direction, did: Did) -> Station {
        Station {
            host: Host::Node,
            direction,
            did,
        }
    }

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
        let request = |did| station(Direction::Request, did);
        let freed = Did::Freed {
            interface: "pod0".into(),
            reason: "NETFILTER_DROP".into(),
            place: "nf_hook_slow".into(),
        };
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
        let rows: Vec<_> = in_order(seen, rules)
            .iter()
            .map(|station| station.row().did)
            .collect();
        assert_eq!(rows.len(), 4, "{rows:?}");
        assert_eq!(rows[0], "received by pod0");
        assert!(rows[1].starts_with("nftables, rule 3") && rows[2].ends_with("drop"));
        assert_eq!(rows[3], "freed at pod0: NETFILTER_DROP, in nf_hook_slow");
    }

    #[test]
    fn a_rule_is_named_in_nfts_words_or_by_the_command_that_shows_it() {
        let unknown = rule(4, NftVerdict::Drop);
        assert!(
            unknown
                .name()
                .contains("nft -a list chain inet firewall forward")
        );
        let known = Rule {
            words: Some("tcp dport 80 drop".into()),
            ..unknown.clone()
        };
        assert!(known.name().ends_with("`tcp dport 80 drop`"));
        let policy = Rule {
            handle: None,
            ..unknown
        };
        assert_eq!(policy.name(), "the policy of chain inet firewall forward");
    }
}
