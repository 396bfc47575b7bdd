// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan check` on a node where portolan serves: missing programs, maps that do not agree, and
//! what the check repairs.

use std::{fs, net::Ipv4Addr};

use datapath::maps::tables::Table;
use nix::sys::signal::Signal;
use proxy_common::{Backend, FrontendKey, Port, Protocol, V4, maps};
use serde_json::Value;

use crate::{
    check::{beside_pins, check, differs, in_the_way, migration, notes, report},
    objects::service,
    repair::{detach, table},
    world::World,
};

/// Runs a check without settings of its own while an agent runs: it uses the agent's settings.
fn check_agent(world: &World, flags: &[&str]) -> (i32, Vec<Value>) {
    report(&world.ask(&[&["check", "--output", "json"], flags].concat()))
}

#[test]
fn check_uses_the_agents_settings_and_reports_missing_programs() {
    let world = World::serving();
    let agent = world.start(7);
    let (status, findings) = check_agent(&world, &["--drift"]);
    assert_eq!(status, 0, "{findings:#?}");
    notes(&findings, "settings: those of the agent (process");
    notes(&findings, "services: 1 are served as the objects say");
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

#[test]
fn check_drift_reports_dangling_map_references_and_wrong_services() {
    let world = World::serving();
    world.write("search.yaml", service("search", "172.30.1.2"));
    let agent = world.start(7);
    assert!(agent.stop().success());
    let flags = migration(&world);
    let flags = [flags[1].as_str(), flags[2].as_str(), "--drift"];
    let (_, findings) = check(&world, world.pins(), &flags);
    notes(&findings, "services: 2 are served as the objects say");
    // The agent is stopped and does not see the changed manifest. The other two changes are made in
    // the maps.
    world.write("cart.yaml", service("cart", "172.30.1.3"));
    let frontends: Table<FrontendKey<V4>, u32> = table(&world, maps::FRONTENDS_V4);
    let search = FrontendKey::new(
        "172.30.1.2".parse::<Ipv4Addr>().expect("it").into(),
        Port::from_host(80),
        Protocol::TCP,
    );
    let id = frontends
        .lookup(&search)
        .expect("read")
        .expect("an element");
    frontends.update(&search, &(id + 1000)).expect("written");
    let backends: Table<u32, Backend<V4>> = table(&world, maps::BACKENDS_V4);
    let all = backends.entries().expect("read").into_iter();
    let (at, mut cart) = all
        .filter(|(_, backend)| backend.service.0 != 0)
        .min_by_key(|(_, backend)| backend.service)
        .expect("an endpoint");
    cart.service.0 += 500;
    backends.update(&at, &cart).expect("written");
    let (status, findings) = check(&world, world.pins(), &flags);
    assert_eq!(status, 3, "{findings:#?}");
    let record = id + 1000;
    let words = format!("frontend 172.30.1.2:80/TCP leads to the record {record}, which is not");
    in_the_way(&findings, &words);
    in_the_way(
        &findings,
        "frontend 172.30.1.1:80/TCP its internal slots lead to backends that are not its own: 1 of 1",
    );
    differs(&findings, "which has no name");
    differs(&findings, "Service shop/cart: not served: ");
    differs(&findings, "Service shop/search: not served: ");
}

#[test]
fn check_fix_sets_kernel_parameters_and_removes_leftover_pins() {
    let world = World::serving();
    let parameter = "nf_conntrack_tcp_timeout_established";
    let agent = world.start(7);
    let (_, findings) = check(&world, world.pins(), &[]);
    notes(
        &findings,
        &format!("{parameter}: is 432000, and the settings"),
    );
    world.set("ipv4/ip_forward", "0");
    // No process has this number.
    let left = beside_pins(&world, "check-99999999");
    fs::create_dir_all(left.join("v3")).expect("made");
    let (status, findings) = check(&world, world.pins(), &[]);
    assert_eq!(status, 3);
    differs(&findings, "was left by a check whose process has gone");
    let (status, findings) = check(&world, world.pins(), &["--fix"]);
    notes(&findings, "fixed, net.ipv4.ip_forward: was 0, and is 1 now");
    notes(
        &findings,
        &format!("fixed, {parameter}: was 432000, and is 86400 now"),
    );
    notes(&findings, "was left by a process that has gone; removed");
    assert!(!left.exists());
    // The size of nf_conntrack's table does not belong to this network namespace: on some machines
    // it cannot be changed, and the check reports that.
    let is_fine = |one: &Value| one["level"] == "note" || one["about"] == "nf_conntrack_max";
    assert!(status <= 1 && findings.iter().all(is_fine), "{findings:#?}");
    let (_, findings) = check(&world, world.pins(), &[]);
    let about = |one: &Value| {
        one["about"]
            .as_str()
            .is_some_and(|about| about == parameter)
    };
    assert!(!findings.iter().any(about), "{findings:#?}");
    assert!(world.connect("172.30.1.1:80").is_ok());
    assert!(agent.stop().success());
}
