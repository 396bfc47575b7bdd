// SPDX-License-Identifier: Apache-2.0 OR MIT
use std::time::Duration;

use control::testing::rows;
use linux::NftVerdict;

use super::*;
use crate::{
    explain::follow::{rules::LegacyCounters, stations::Rule},
    packets::Freed,
};

/// Returns a station: its host, what happened there, to whom or why, and perhaps of which packet.
/// A rule is a number and perhaps its chain, or a policy.
fn station(words: &str) -> Station {
    let words: Vec<_> = words.split(' ').collect();
    let word = words[2].to_owned();
    let host = match words[0] {
        "node" => Host::Node,
        "client" => Host::Client,
        _ => Host::Other(7),
    };
    let did = match words[1] {
        "sent" => Did::Sent {
            interface: word,
            receiver: [0; 6],
        },
        "received" => Did::Received { interface: word },
        "rule" => {
            let (number, chain) = word.split_once('@').unwrap_or((word.as_str(), "forward"));
            Did::Rule(Rule {
                chain: format!("inet firewall {chain}"),
                handle: number.parse().ok(),
                verdict: NftVerdict::Drop,
                words: Some("tcp dport 8080 drop".into()),
            })
        }
        _ => Did::Freed(Freed {
            interface: "pod0".into(),
            reason: word,
            place: "somewhere".into(),
        }),
    };
    let direction = match words.get(3) {
        None => Direction::Request,
        Some(&"answer") => Direction::Answer,
        _ => Direction::Error,
    };
    Station::new(host, direction, did)
}

fn facts(stations: &str, ending: &str, known: &str) -> Facts {
    let list = |word: &str, name: &str| Vec::from_iter((word == known).then(|| name.to_owned()));
    let stations = stations.split(", ").filter(|words| !words.is_empty());
    let endpoint = EndpointFacts {
        address: "10.0.1.1:8080".parse().expect("an end"),
        only_at: list("only", "127.0.0.1"),
        ports: Vec::from_iter((known == "others").then_some(9090)),
        listens: known == "listens",
        full_queue: known == "full",
    };
    let is_endpoint = matches!(known, "only" | "others" | "listens" | "full");
    Facts {
        stations: stations.map(station).collect(),
        ending: match ending {
            "answered" => Ending::Answered(Duration::from_micros(1500)),
            "refused" => Ending::Refused,
            "denied" => Ending::Denied,
            "unsent" => Ending::NoSocket,
            _ => Ending::Silent,
        },
        to: "10.0.0.1:80".parse().expect("an end"),
        is_datagram: known == "listens",
        legacy: match known {
            "legacy" => LegacyCounters::parse("*filter\n:FORWARD DROP [1:60]\n")
                .refused_since(&LegacyCounters::default()),
            _ => Vec::new(),
        },
        conntrack_full: (known == "conntrack").then_some(9),
        foreign: list("foreign", "program 7 (police)"),
        cgroup: list("deny", "program 9 (deny)"),
        endpoint: is_endpoint.then_some(endpoint),
    }
}

/// Stations, how the attempt ended, what else is known, and the beginning of what is said: what
/// lost the packet and how, or how it was answered.
const JUDGED: &str = include_str!("judged.txt");

#[test]
fn the_station_that_lost_the_packet_is_named_unless_it_was_answered() {
    for [stations, ending, known, expected] in rows(JUDGED) {
        let judged = judge(&facts(&stations, &ending, &known));
        let said = judged.unwrap_or_else(|loss| format!("{}: {}", loss.about, loss.found));
        assert!(said.starts_with(&expected), "{stations}, {ending}: {said}");
    }
}

#[test]
fn a_port_of_the_node_without_a_listener_is_no_pods() {
    let loss = judge(&facts("node freed NO_SOCKET", "refused", "")).expect_err("lost");
    assert!(loss.remedy.contains("the node's process"), "{loss:?}");
}
