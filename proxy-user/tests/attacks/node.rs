// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds the node under attack for one test at a time.

use std::{
    path::Path,
    sync::{Mutex, PoisonError},
};

use lab::{
    attacks::{
        proxies::{Proxy, Served},
        world::World,
    },
    node::topology::Plumbing,
};

/// Runs `attack` on a new node with `proxy` and its configuration; returns the attack's result.
pub(crate) fn attacked<T>(
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
