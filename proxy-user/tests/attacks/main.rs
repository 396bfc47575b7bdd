// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests what clients still get while a node is attacked: the attacks of `lab::attacks`, for
//! seconds and on small tables. Needs root. The limits are generous, for a busy machine: without
//! the tested protection the numbers would be far worse. The rows without a proxy show that what
//! the others measure is the proxy, not a limit of clients or servers.

use std::{
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use lab::{
    attacks::{
        kinds::{self, Closes, From},
        proxies::{Proxy, Served},
        world::World,
    },
    node::topology::Plumbing,
};
use rstest::rstest;

/// Configures a flow table so small that an attack of seconds fills it.
const SMALL_TABLE: &str = "portolan: {maps: {flows: 65536}}\n";

/// Configures so few masquerade ports that a client uses them up in a second.
const FEW_PORTS: &str = "portolan: {masqueradePorts: [10000-11999]}\n";

const FLOOD: Duration = Duration::from_secs(2);
/// In milliseconds; a client repeats its SYN after a second.
const BEFORE_THE_SECOND_SYN: f64 = 900.0;

/// How many packets are a flood: with portolan, those that fill the small flow table.
fn enough(proxy: Proxy) -> u64 {
    match proxy {
        Proxy::Direct => 5_000,
        _ => 25_000,
    }
}

/// Runs `attack` on a new node with `proxy` and its configuration; returns the attack's result. One
/// runs at a time, because each attack uses the whole machine.
fn attacked<T>(
    proxy: Proxy,
    config: &str,
    attack: impl FnOnce(&mut Served<'_>) -> anyhow::Result<T>,
) -> T {
    static ONE: Mutex<()> = Mutex::new(());
    let _turn = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let binary = Path::new(env!("CARGO_BIN_EXE_portolan"));
    let world = World::new(Plumbing::Bridge).expect("a node");
    let mut served = Served::start(&world, proxy, binary, config).expect("it serves");
    attack(&mut served).expect("an attack")
}

#[rstest]
#[case::without_a_proxy(Proxy::Direct, From::Outside, 0.95)]
#[case::from_outside(Proxy::Portolan, From::Outside, 0.97)]
#[case::of_a_pod(Proxy::Portolan, From::Pod, 0.97)]
#[case::without_an_agent(Proxy::PortolanAlone, From::Outside, 0.97)]
#[case::of_a_pod_without_an_agent(Proxy::PortolanAlone, From::Pod, 0.97)]
fn a_syn_flood_breaks_no_connection_and_new_ones_succeed(
    #[case] proxy: Proxy,
    #[case] from: From,
    #[case] share: f64,
) {
    let seen = attacked(proxy, SMALL_TABLE, |served| {
        kinds::syn_flood(served, from, 200, FLOOD)
    });
    assert!(seen.sent > enough(proxy), "a flood: {seen:?}");
    assert_eq!((seen.lost, seen.open), (0, 200), "{seen:?}");
    assert!(seen.during.share() >= share, "new ones: {seen:?}");
    // The endpoint may have a half-open connection from the flood with a client's masquerade port;
    // then the client must repeat its SYN. It keeps about 1000 of them, for 28 000 ports.
    if proxy != Proxy::Direct {
        assert!(seen.during.took(0.85) < BEFORE_THE_SECOND_SYN, "{seen:?}");
        assert_eq!(seen.after.made, seen.after.asked, "afterwards: {seen:?}");
    }
}

#[rstest]
fn queries_are_answered_during_a_flood_of_datagrams(
    #[values(Proxy::Direct, Proxy::Portolan, Proxy::PortolanAlone)] proxy: Proxy,
) {
    let seen = attacked(proxy, SMALL_TABLE, |served| {
        kinds::datagram_flood(served, FLOOD)
    });
    assert!(seen.sent > enough(proxy), "a flood: {seen:?}");
    assert!(seen.queries.share() >= 0.95, "{seen:?}");
}

#[rstest]
#[case::without_a_proxy(Proxy::Direct, "", Closes::Client, 2, 1, 0.3)]
#[case::that_the_server_closes_without_a_proxy(Proxy::Direct, "", Closes::Server, 2, 1, 0.3)]
#[case::with_few_ports(Proxy::PortolanAlone, FEW_PORTS, Closes::Client, 4, 1, 0.4)]
// In the last time window, clients need ports with which the endpoint is still in TIME_WAIT.
#[case::that_the_server_closes(Proxy::PortolanAlone, "", Closes::Server, 4, 2, 0.4)]
fn short_connections_do_not_use_up_the_masquerade_ports(
    #[case] proxy: Proxy,
    #[case] config: &str,
    #[case] closes: Closes,
    #[case] windows: u32,
    #[case] seconds: u64,
    #[case] kept: f64,
) {
    let seen = attacked(proxy, config, |served| {
        kinds::short(served, closes, windows, Duration::from_secs(seconds))
    });
    assert_eq!(seen.failed, 0, "{seen:?}");
    assert!(seen.kept() > kept, "{seen:?}");
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
