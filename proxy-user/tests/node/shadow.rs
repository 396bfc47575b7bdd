// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan run --shadow` on a node with another proxy's rules, and `portolan shadow report`.

use std::{net::TcpStream, process::Output};

use lab::node::options::METRICS;
use proxy_common::Counter;
use serde_json::Value;

use crate::{connection::Open, objects::service, world::World};

/// Rules as kube-proxy would make them, except that `moved` leads to a port without an endpoint.
const RULES: &str = "add table ip kube-proxy
add chain ip kube-proxy services { type nat hook prerouting priority dstnat; }
add rule ip kube-proxy services ip daddr 172.30.1.1 tcp dport 80 dnat to 10.40.1.20:8080
add rule ip kube-proxy services ip daddr 172.30.1.2 tcp dport 80 dnat to 10.40.1.20:8081
";

fn report(world: &World, output: &str) -> Output {
    world.ask(&["shadow", "report", "--output", output])
}

fn write_services(world: &World) {
    for (name, address) in [
        ("cart", "172.30.1.1"),
        ("moved", "172.30.1.2"),
        ("quiet", "172.30.1.3"),
    ] {
        world.write(&format!("{name}.yaml"), service(name, address));
    }
}

#[test]
fn a_shadow_changes_no_connection_and_reports_different_backends() {
    let world = World::build();
    write_services(&world);
    world.serve(("10.40.1.20", 8081));
    world.nft(RULES);
    let mut before = world.connect("172.30.1.1:80").expect("the rules serve");

    let agent = world.start_with(7, &["--shadow"]);
    assert_eq!(before.echo("beside a shadow"), "beside a shadow");
    let known = world.count(Counter::ForwardedNew);
    let mut open = world.connect("172.30.1.1:80").expect("the rules serve");
    assert!(
        world.count(Counter::ForwardedNew) > known,
        "it would have begun a flow"
    );
    assert_eq!(open.echo("through the rules"), "through the rules");
    let from_node = world.connect_from_node("172.30.1.1:80");
    assert!(from_node.is_err(), "no hook at sockets, no rule at output");
    assert_eq!(world.flows().len(), 0, "no flow");
    let metrics = world.node().enter(|| TcpStream::connect(METRICS));
    let metrics = metrics.expect("enter the node");
    assert!(metrics.is_err(), "kube-proxy's port is free");
    let status = String::from_utf8(world.ask(&["status"]).stdout).expect("text");
    for words in [
        "0 of 0 socket hooks",
        "shadow that was not told where to serve /metrics",
    ] {
        assert!(status.contains(words), "{words}: {status}");
    }

    let output = report(&world, "json");
    let so_far: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(output.status.code(), Some(0), "{so_far}");
    let (same, never_seen) = (&so_far["summary"]["same"], &so_far["summary"]["neverSeen"]);
    assert_eq!((same, never_seen), (&1.into(), &2.into()), "{so_far}");
    let mut other = world.connect("172.30.1.2:80").expect("the rules serve");
    let output = report(&world, "table");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    for words in [
        &["shop/cart", "same"][..],
        &[
            "shop/moved",
            "different",
            "went to 10.40.1.20:8081; portolan: one of 10.40.1.20:8080",
        ],
        &["shop/quiet", "never seen"],
        &["forwarded_new"],
    ] {
        let has_all = |line: &str| words.iter().all(|word| line.contains(word));
        assert!(said.lines().any(has_all), "{words:?}: {said}");
    }
    assert_eq!(other.echo("elsewhere"), "elsewhere");

    assert!(agent.stop().success());
    assert!(!world.pins().exists(), "nothing is left");
    assert_eq!(open.echo("after it"), "after it");
    let serving = world.start(7);
    assert!(world.connect("172.30.1.3:80").is_ok(), "{}", serving.log());
    let output = report(&world, "json");
    assert_eq!(
        output.status.code(),
        Some(1),
        "its maps can be asked as well"
    );
    assert!(serving.stop().success());
}

#[test]
fn a_shadow_and_a_serving_agent_refuse_each_others_pins() {
    let world = World::serving();
    assert!(world.start(7).stop().success());
    let (status, said) = world.run(&["--shadow"]);
    assert!(
        !status.success() && said.contains("its programs serve"),
        "{said}"
    );
    assert!(
        world.connect("172.30.1.1:80").is_ok(),
        "they still do: {said}"
    );
    assert!(world.cleanup(&[]).wait().expect("its end").success());

    let shadow = world.start_with(7, &["--shadow"]);
    shadow.signal(nix::sys::signal::Signal::SIGKILL);
    let log = shadow.wait_for_end();
    let (status, said) = world.run(&[]);
    assert!(
        !status.success() && said.contains("only count"),
        "{said} {log}"
    );
    // The next shadow goes on with the same pins, and leaves nothing when it stops.
    assert!(world.start_with(7, &["--shadow"]).stop().success());
    assert!(!world.pins().exists());
}

#[test]
fn a_shadow_report_without_a_shadow_exits_with_2() {
    let world = World::build();
    let output = report(&world, "table");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("no portolan is set up here"), "{said}");
    assert!(Open::connect(world.client(), "172.30.1.1:80").is_err());
}
