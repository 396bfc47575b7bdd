// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests what clients still get while a node is attacked: the attacks of `lab::attacks`, for
//! seconds and on small tables. Needs root. The limits are generous, for a busy machine: without
//! the tested protection the numbers would be far worse.

use std::{
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use lab::attacks::{
    kinds::{self, Closes, From},
    world::{Proxy, Served, World},
};
use rstest::rstest;

/// Configures a flow table so small that an attack of seconds fills it.
const SMALL_TABLE: &str = "portolan: {maps: {flows: 32768}}\n";

/// Configures so few masquerade ports that a client uses them up in a second.
const FEW_PORTS: &str = "portolan: {masqueradePorts: [10000-11999]}\n";

const FLOOD: Duration = Duration::from_secs(2);
/// In milliseconds; a client repeats its SYN after a second.
const BEFORE_THE_SECOND_SYN: f64 = 900.0;

/// How many packets are a flood: those that fill the small flow table.
const ENOUGH: u64 = 25_000;

/// Runs an attack on a new node with this proxy and its configuration; returns its result. One runs
/// at a time, because each attack uses the whole machine.
fn attacked<T>(by: Proxy, config: &str, run: impl FnOnce(&Served<'_>) -> anyhow::Result<T>) -> T {
    static ONE: Mutex<()> = Mutex::new(());
    let _turn = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let binary = Path::new(env!("CARGO_BIN_EXE_portolan"));
    let world = World::new().expect("a node");
    let served = Served::start(&world, by, binary, config).expect("it serves");
    run(&served).expect("an attack")
}

#[rstest]
fn a_syn_flood_breaks_no_connection_and_new_ones_succeed(
    #[values(Proxy::Portolan, Proxy::PortolanAlone)] proxy: Proxy,
    #[values(From::Outside, From::Pod)] from: From,
) {
    let flood = |served: &Served<'_>| kinds::syn_flood(served, from, 200, FLOOD);
    let seen = attacked(proxy, SMALL_TABLE, flood);
    assert!(seen.sent > ENOUGH, "a flood: {seen:?}");
    assert_eq!((seen.lost, seen.open), (0, 200), "{seen:?}");
    assert!(seen.during.share() >= 0.97, "new ones: {seen:?}");
    // The endpoint may have a half-open connection from the flood with a client's masquerade port;
    // then the client must repeat its SYN. It keeps about 1000 of them, for 28 000 ports.
    assert!(seen.during.took(0.85) < BEFORE_THE_SECOND_SYN, "{seen:?}");
    assert_eq!(seen.after.made, seen.after.asked, "afterwards: {seen:?}");
}

#[rstest]
#[case::with_few_ports(FEW_PORTS, Closes::Client, 1)]
// In the last time window, clients need ports with which the endpoint is still in TIME_WAIT.
#[case::that_the_server_closes("", Closes::Server, 2)]
// The entries of closed connections give way, those of open ones do not.
#[case::with_a_small_table(SMALL_TABLE, Closes::Client, 1)]
fn short_connections_do_not_use_up_the_masquerade_ports(
    #[case] config: &str,
    #[case] closes: Closes,
    #[case] seconds: u64,
) {
    let window = Duration::from_secs(seconds);
    let short = |served: &Served<'_>| kinds::short(served, closes, 4, window);
    let seen = attacked(Proxy::PortolanAlone, config, short);
    assert_eq!((seen.failed, seen.lost), (0, 0), "{seen:?}");
    assert!(seen.kept() > 0.4, "{seen:?}");
}
