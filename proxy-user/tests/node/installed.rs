// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan check` on a node where portolan serves: missing programs, what differs, and what
//! killed checks have left.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    check::{beside_pins, check, differs, in_the_way, notes, report},
    repair::detach,
    world::World,
};

/// Runs a check without settings of its own while an agent runs: it uses the agent's settings.
fn check_agent(world: &World, flags: &[&str]) -> (i32, Vec<Value>) {
    report(&world.ask(&[&["check", "--output", "json"], flags].concat()))
}

#[test]
fn check_uses_the_agents_settings_and_reports_missing_programs_and_parameters() {
    let world = World::serving();
    let agent = world.start(7);
    let (status, findings) = check_agent(&world, &[]);
    assert_eq!(status, 0, "{findings:#?}");
    notes(&findings, "settings: those of the agent (process");
    // What a killed check has left is removed.
    let left = beside_pins(&world, "check-99999999");
    fs::create_dir_all(left.join("v3")).expect("made");
    let (_, findings) = check(&world, world.pins(), &[]);
    let parameter = "nf_conntrack_tcp_timeout_established";
    let said = format!("{parameter}: is 432000, and the settings");
    notes(&findings, &said);
    assert!(!left.exists());
    // A running agent would attach the programs again.
    agent.signal(Signal::SIGSTOP);
    let interface = world.client_interface();
    let index = world.index(&interface);
    detach(&world, &format!("{index}-ingress"));
    detach(&world, "cgroup-connect_v4");
    let (status, findings) = check_agent(&world, &[]);
    assert_eq!(status, 3, "{findings:#?}");
    let words = format!("none is attached at ingress of {interface}: packets");
    in_the_way(&findings, &words);
    in_the_way(&findings, "not attached: connect_v4;");
    differs(&findings, "agent: one runs, and does not answer");
    agent.signal(Signal::SIGCONT);
    assert!(agent.stop().success());
    let (_, findings) = check(&world, world.pins(), &[]);
    differs(&findings, "agent: none runs: what the maps hold is served");
}
