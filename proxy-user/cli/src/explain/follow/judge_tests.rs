// SPDX-License-Identifier: Apache-2.0 OR MIT
use std::time::Duration;

use linux::NftVerdict;

use super::*;
use crate::{explain::follow::stations::Rule, packets::Freed};

fn at(host: Host, did: Did) -> Station {
    Station::new(host, Direction::Request, did)
}

fn freed(reason: &str) -> Did {
    Did::Freed(Freed {
        interface: "pod0".into(),
        reason: reason.into(),
        place: "somewhere".into(),
    })
}

fn sent(interface: &str) -> Did {
    Did::Sent {
        interface: interface.into(),
        receiver: [0; 6],
    }
}

fn received(interface: &str) -> Did {
    Did::Received {
        interface: interface.into(),
    }
}

fn facts(stations: Vec<Station>, ending: Ending) -> Facts {
    Facts {
        stations,
        ending,
        to: "10.0.0.1:80".parse().expect("an end"),
        is_datagram: false,
        legacy: Vec::new(),
        conntrack_full: None,
        foreign: Vec::new(),
        cgroup: Vec::new(),
        endpoint: None,
    }
}

fn endpoint(change: impl FnOnce(&mut EndpointFacts)) -> EndpointFacts {
    let mut facts = EndpointFacts {
        address: "10.0.1.1:8080".parse().expect("an end"),
        only_at: Vec::new(),
        ports: Vec::new(),
        listens: false,
        full_queue: false,
    };
    change(&mut facts);
    facts
}

#[track_caller]
fn loss(facts: &Facts) -> (String, String) {
    let loss = judge(facts).expect_err("a loss");
    (loss.about, loss.found)
}

#[test]
fn an_answer_needs_no_judgement() {
    let answered = Ending::Answered(Duration::from_micros(1500));
    let judged = judge(&facts(vec![at(Host::Node, freed("NO_SOCKET"))], answered));
    assert_eq!(judged, Ok("was answered, after 1.5 ms".into()));
}

#[test]
fn an_answer_to_a_pod_that_did_not_ask_is_an_answer() {
    let mut came = at(Host::Other(7), freed("NO_SOCKET"));
    came.direction = Direction::Answer;
    let judged = judge(&facts(vec![came.clone()], Ending::NoSocket));
    assert!(judged.is_ok(), "{judged:?}");
    // Nobody listens in the pod that was asked.
    came.direction = Direction::Request;
    let judged = judge(&facts(vec![came], Ending::NoSocket));
    assert!(judged.is_err(), "{judged:?}");
}

#[test]
fn a_netfilter_drop_names_the_rule_the_legacy_rule_or_a_full_conntrack() {
    let dropped = at(Host::Node, freed("NETFILTER_DROP"));
    let mut facts = facts(vec![dropped], Ending::Silent);
    let none = loss(&facts);
    assert!(
        none.1.contains("no rule of nf_tables or iptables"),
        "{none:?}"
    );
    facts.conntrack_full = Some(9);
    assert_eq!(loss(&facts).0, "nf_conntrack");
    let rule = Rule {
        chain: "inet firewall forward".into(),
        handle: Some(4),
        verdict: NftVerdict::Drop,
        words: Some("tcp dport 8080 drop".into()),
    };
    facts.stations.insert(0, at(Host::Node, Did::Rule(rule)));
    let named = loss(&facts);
    assert_eq!(named.0, "nftables");
    assert_eq!(
        named.1,
        "rule 4 of chain inet firewall forward: `tcp dport 8080 drop` drops it"
    );
}

#[test]
fn a_program_at_a_hook_is_named() {
    for (reason, station) in [("TC_INGRESS", "tc ingress"), ("XDP", "XDP")] {
        let mut facts = facts(vec![at(Host::Node, freed(reason))], Ending::Silent);
        facts.foreign = vec!["program 7 (police)".into()];
        let named = loss(&facts);
        assert_eq!(named.0, format!("{station}, interface pod0"));
        assert_eq!(named.1, "program 7 (police) drops it");
    }
    let mut denied = facts(Vec::new(), Ending::Denied);
    denied.cgroup = vec!["program 9 (deny)".into()];
    assert_eq!(loss(&denied).1, "program 9 (deny) does not permit the call");
}

#[test]
fn an_icmp_redirect_that_portolan_drops_is_not_what_lost_the_packet() {
    let mut error = at(Host::Node, freed("TC_EGRESS"));
    error.direction = Direction::Error;
    let sent = at(Host::Node, sent("eth1"));
    let mut facts = facts(vec![sent, error], Ending::Silent);
    assert_eq!(loss(&facts).0, "beyond interface eth1");
    facts.foreign = vec!["program 7 (police)".into()];
    assert_eq!(loss(&facts).1, "program 7 (police) drops it");
}

#[test]
fn a_port_of_the_node_without_a_listener_is_no_pods() {
    let facts = facts(vec![at(Host::Node, freed("NO_SOCKET"))], Ending::Refused);
    let loss = judge(&facts).expect_err("lost");
    assert!(loss.remedy.contains("the node's process"), "{loss:?}");
}

#[test]
fn a_port_without_a_listener_says_where_processes_listen() {
    let there = at(Host::Other(7), freed("NO_SOCKET"));
    let mut facts = facts(vec![there], Ending::Refused);
    assert_eq!(loss(&facts).1, "no process listens at that port");
    facts.endpoint = Some(endpoint(|one| one.only_at.push("127.0.0.1".into())));
    assert!(loss(&facts).1.ends_with("only at 127.0.0.1"));
    facts.endpoint = Some(endpoint(|one| one.ports.push(9090)));
    let named = loss(&facts);
    assert_eq!(named.0, "the endpoint 10.0.1.1:8080");
    assert!(named.1.ends_with("listened at are 9090"));
}

#[test]
fn a_packet_that_nobody_freed_was_lost_behind_its_last_station() {
    let way = |stations| facts(stations, Ending::Silent);
    let lost = loss(&way(vec![at(Host::Client, sent("eth0"))]));
    assert_eq!(lost.0, "between the client's eth0 and this node");
    let left = loss(&way(vec![at(Host::Node, sent("eth1"))]));
    assert_eq!(left.0, "beyond interface eth1");
    let mut reached = way(vec![at(Host::Other(7), received("eth0"))]);
    assert!(loss(&reached).1.contains("nobody answers"));
    reached.endpoint = Some(endpoint(|one| one.full_queue = true));
    assert!(loss(&reached).1.contains("queue of connections is full"));
    let nothing = loss(&way(Vec::new()));
    assert_eq!(nothing.1, "it sends nothing");
}

#[test]
fn a_datagram_that_reached_a_process_counts_as_answered() {
    let mut facts = facts(vec![at(Host::Other(7), received("eth0"))], Ending::Silent);
    facts.is_datagram = true;
    facts.endpoint = Some(endpoint(|one| one.listens = true));
    assert!(judge(&facts).is_ok());
}
