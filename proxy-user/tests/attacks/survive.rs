// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every attack on a node with portolan's programs, with a running agent and without. The limits
//! are generous, for a busy machine: without the tested protection the numbers would be far worse.

use std::time::Duration;

use lab::attacks::{
    kinds::{self, Closes, From},
    proxies::Proxy,
};
use rstest::rstest;

use crate::node::attacked;

/// Configures a flow table so small that an attack of seconds fills it.
const SMALL_TABLE: &str = "portolan: {maps: {flows: 65536}}\n";

/// Configures so few masquerade ports that a client uses them up in a second.
const FEW_PORTS: &str = "portolan: {masqueradePorts: [10000-11999]}\n";

const FLOOD: Duration = Duration::from_secs(2);
/// A flood of at least so many packets fills the small flow table.
const PACKETS: u64 = 25_000;
/// In milliseconds; a client repeats its SYN after a second.
const BEFORE_THE_SECOND_SYN: f64 = 900.0;

#[rstest]
fn a_syn_flood_breaks_no_connection_and_new_ones_succeed(
    #[values(From::Outside, From::Pod)] from: From,
    #[values(Proxy::Portolan, Proxy::PortolanAlone)] proxy: Proxy,
) {
    let seen = attacked(proxy, SMALL_TABLE, |served| {
        kinds::syn_flood(served, from, 200, FLOOD)
    });
    assert!(seen.sent > PACKETS, "a flood: {seen:?}");
    assert_eq!(seen.lost, 0, "of {} open ones: {seen:?}", seen.open);
    assert!(seen.during.share() >= 0.97, "new ones: {seen:?}");
    // The endpoint may have a half-open connection from the flood with a client's masquerade port;
    // then the client must repeat its SYN. It keeps about 1000 of them, for 28 000 ports.
    assert!(seen.during.took(0.85) < BEFORE_THE_SECOND_SYN, "{seen:?}");
    assert_eq!(seen.after.made, seen.after.asked, "afterwards: {seen:?}");
}

#[rstest]
fn queries_are_answered_during_a_flood_of_datagrams(
    #[values(Proxy::Portolan, Proxy::PortolanAlone)] proxy: Proxy,
) {
    let seen = attacked(proxy, SMALL_TABLE, |served| {
        kinds::datagram_flood(served, FLOOD)
    });
    assert!(seen.sent > PACKETS, "a flood: {seen:?}");
    assert!(seen.queries.share() >= 0.95, "{seen:?}");
}

#[test]
fn short_connections_do_not_use_up_the_masquerade_ports() {
    let seen = attacked(Proxy::PortolanAlone, FEW_PORTS, |served| {
        kinds::short(served, Closes::Client, 4, Duration::from_secs(1))
    });
    assert_eq!(seen.failed, 0, "{seen:?}");
    assert!(seen.kept() > 0.4, "{seen:?}");
}

#[test]
fn connections_that_the_server_closes_do_not_use_up_masquerade_ports() {
    // In the last time window, clients need ports with which the endpoint is still in TIME_WAIT.
    let seen = attacked(Proxy::PortolanAlone, "", |served| {
        kinds::short(served, Closes::Server, 4, Duration::from_secs(2))
    });
    assert_eq!(seen.failed, 0, "{seen:?}");
    assert!(seen.kept() > 0.4, "{seen:?}");
}

#[test]
fn without_an_agent_closed_connections_are_evicted_for_new_ones() {
    let seen = attacked(Proxy::PortolanAlone, SMALL_TABLE, |served| {
        kinds::many(served, 2_000, 2_000, Duration::from_secs(5))
    });
    assert_eq!(seen.lost, 0, "of {} open ones: {seen:?}", seen.open);
    assert!(seen.new.share() >= 0.99, "{seen:?}");
    assert_eq!(seen.dropped.0, [], "{seen:?}");
}
