// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every verdict of the policy: `explain` must tell what then happens to a real connection.

use k8s_openapi::api::core::v1::{ClientIPConfig, SessionAffinityConfig};
use lab::node::netns::NetNs;

use super::{CLIENT, OUTSIDE, Said, explain, outside, serve_also};
use crate::{
    agent::eventually,
    connection::Open,
    objects::{Service, endpoint, node_with, questions},
    repair::detach,
    world::{OF_V6, World},
};

const CART: &str = "172.30.1.1:80";
const SERVER: &str = "10.40.1.20:8080";

/// Runs `explain`, makes the connection, and expects both to agree.
#[track_caller]
fn agree(world: &World, from: &str, pod: &NetNs, to: &str) -> Said {
    let said = explain(world, from, to, &[]);
    let connected = Open::connect(pod, to);
    assert_eq!(said.is_in_order(), connected.is_ok(), "{:#}", said.report);
    said
}

#[test]
fn every_verdict_agrees_with_a_real_connection() {
    let world = World::serving();
    world.write("empty.yaml", Service::new("empty", "172.30.1.2").alone());
    let local = Service::new("local", "172.30.1.3").local();
    let elsewhere = local.endpoints(vec![endpoint("10.40.1.21")]).on("node-b");
    world.write("local.yaml", elsewhere);
    let ranged = Service::new("ranged", "172.30.1.4").balanced("203.0.113.4");
    world.write("ranged.yaml", ranged.only_for(&["192.0.2.0/24"]));
    let fenced = Service::new("fenced", "172.30.1.5").balanced("203.0.113.5");
    let unreadable = fenced.only_for(&["10.40.1.500/32", "2001:db8:a::50/128"]);
    world.write("fenced.yaml", unreadable);
    serve_also(&world, "10.40.1.21");
    let outside = outside(&world);
    let agent = world.start_by_stack(7);
    let client = world.client();

    let said = agree(&world, CLIENT, client, CART);
    said.is_clean("forwarded_new");
    assert_eq!(said.endpoints(), [SERVER]);
    let source = said.report["source"].as_str().expect("words");
    assert!(
        source.starts_with("kept: a pod asks a cluster IP"),
        "{source}"
    );

    let said = agree(&world, OUTSIDE, &outside, "10.40.0.1:30001");
    said.is_clean("forwarded_new");
    let source = said.report["source"].as_str().expect("words");
    assert!(
        source.contains("masqueraded") && source.contains("169.254.1.1"),
        "{source}"
    );

    let said = agree(&world, CLIENT, client, "172.30.1.2:80");
    assert_eq!(said.outcome(), "rejected_no_endpoint");
    said.finds(
        "in-the-way",
        "Service shop/empty: no endpoint of it may be used",
    );

    let said = agree(&world, CLIENT, client, "172.30.1.1:81");
    assert_eq!(said.outcome(), "rejected_unserved_port");

    let said = agree(&world, OUTSIDE, &outside, "10.40.0.1:30003");
    assert_eq!(said.outcome(), "dropped_no_local_endpoint");
    said.finds("in-the-way", "no endpoint on this node serves");
    let left_out = &said.report["endpoints"][0];
    assert_eq!(
        left_out["because"],
        "on another node, and the traffic policy is Local"
    );
    // The Local policy does not apply to pods: their traffic is short-circuited.
    let said = agree(&world, CLIENT, client, "10.40.0.1:30003");
    assert_eq!(said.endpoints(), ["10.40.1.21:8080"]);

    let said = agree(&world, CLIENT, client, "203.0.113.4:80");
    assert_eq!(said.outcome(), "dropped_source_range");
    said.finds("in-the-way", "outside its loadBalancerSourceRanges");
    assert_eq!(
        said.report["service"]["policies"][0],
        "loadBalancerSourceRanges 192.0.2.0/24"
    );

    // If no range of its family is readable, no client is let in, although a range of the other
    // family is readable.
    for (from, client) in [(CLIENT, client), (OUTSIDE, &outside)] {
        let said = agree(&world, from, client, "203.0.113.5:80");
        assert_eq!(said.outcome(), "dropped_source_range");
        assert_eq!(
            said.report["service"]["policies"][0],
            "loadBalancerSourceRanges without a readable range: no client is let in"
        );
    }

    // The destination belongs to no service, and answers.
    let said = agree(&world, CLIENT, client, SERVER);
    assert_eq!(
        (said.status, said.outcome()),
        (1, "untouched"),
        "{:#}",
        said.report
    );
    said.finds("differs", "no service has this address");
    assert!(agent.stop().success());
}

#[test]
fn explain_covers_sockets_of_node_processes_and_of_pods() {
    let world = World::serving();
    world.write("questions.yaml", questions());
    world.write("empty.yaml", Service::new("empty", "172.30.1.2").alone());
    let agent = world.start_by_stack(7);
    for (to, answered) in [
        (CART, true),
        ("172.30.1.2:80", false),
        ("127.0.0.1:30001", true),
    ] {
        let said = explain(&world, "node", to, &[]);
        assert_eq!(said.is_in_order(), answered, "{:#}", said.report);
        assert_eq!(world.connect_from_node(to).is_ok(), answered, "{to}");
    }
    explain(&world, "10.40.0.1", CART, &[]).is_clean("socket_translated");
    explain(&world, CLIENT, CART, &["--socket"]).is_clean("socket_translated");
    assert!(world.connect_at_socket(CART).is_ok());
    let said = explain(&world, CLIENT, "172.30.1.9:53", &["--protocol", "udp"]);
    said.is_clean("forwarded_new");
    assert!(agent.stop().success());

    let agent = world.start_configured(7, "portolan: {socketBalancing: host, forwarding: stack}\n");
    let said = explain(&world, CLIENT, CART, &["--socket"]);
    said.finds(
        "note",
        "leave it to the packet path: pods' sockets are left",
    );
    said.is_clean("forwarded_new");
    assert!(agent.stop().success());
}

#[test]
fn explain_knows_affinity_and_open_connections_without_an_agent() {
    let world = World::build();
    let held = SessionAffinityConfig {
        client_ip: Some(ClientIPConfig {
            timeout_seconds: Some(600),
        }),
    };
    let sticky = Service::new("sticky", "172.30.1.5")
        .sticky()
        .spec(|spec| spec.session_affinity_config = Some(held))
        .endpoints(["10.40.1.21", "10.40.1.20"].map(endpoint).into());
    world.write("sticky.yaml", sticky);
    serve_also(&world, "10.40.1.21");
    assert!(world.start_by_stack(7).stop().success());
    let to = "172.30.1.5:80";
    let said = explain(&world, CLIENT, to, &[]);
    said.is_clean("forwarded_new");
    said.finds("note", "no agent runs");
    assert_eq!(said.endpoints(), [SERVER, "10.40.1.21:8080"]);
    assert_eq!(
        said.report["affinity"],
        "not held yet; its first connection will hold it for 600 s"
    );

    let mut open = world.connect(to).expect("served");
    let said = explain(&world, CLIENT, to, &[]);
    said.is_clean("forwarded_new");
    let held = said.report["affinity"].as_str().expect("words").to_owned();
    let flow = world.flows().remove(0);
    assert!(
        held.starts_with(&format!("held to {}, for ", flow.backend)),
        "{held}"
    );
    let from = flow.client.to_string();
    let said = explain(&world, &from, to, &[]);
    said.is_clean("forwarded_hit");
    assert_eq!(said.report["flow"]["state"], "established");
    assert_eq!(open.echo("still here"), "still here");
}

#[test]
fn explain_works_on_a_node_without_ipv4() {
    let world = World::build_without_v4();
    world.write("node.yaml", node_with(&[OF_V6[0]], Some(7)));
    world.write("six.yaml", Service::new("six", "fd00:30::1"));
    let config = world.configure(
        "healthzBindAddress: '[::1]:10256'
metricsBindAddress: '[::1]:10249'
portolan: {forwarding: stack}
",
    );
    let agent = world.spawn(&["--config", &config]);
    let to = "[fd00:30::1]:80";
    eventually("it is served", &agent, || world.connect(to).is_ok());
    let said = explain(&world, "fd00:40::10", "service/shop/six:80", &[]);
    said.is_clean("forwarded_new");
    assert_eq!(said.report["destination"], to);
    assert_eq!(said.endpoints(), ["[fd00:40::20]:8080"]);
    let said = explain(&world, "fd00:40::10", "[fd00:30::1]:81", &[]);
    assert_eq!((said.status, said.outcome()), (3, "rejected_unserved_port"));
}

#[test]
fn explain_names_the_hook_of_a_detached_program() {
    let world = World::serving();
    assert!(world.start_by_stack(7).stop().success());
    explain(&world, CLIENT, CART, &[]).is_clean("forwarded_new");
    let index = world.index(&world.client_interface());
    for hook in ["ingress", "egress"] {
        detach(&world, &format!("{index}-{hook}"));
        let said = agree(&world, CLIENT, world.client(), CART);
        said.finds(
            "in-the-way",
            &format!("no program of portolan's is attached at {hook}"),
        );
    }
    detach(&world, "cgroup-connect_v4");
    let said = explain(&world, "node", CART, &[]);
    said.finds("in-the-way", "socket hooks: not attached: connect_v4");
    assert!(world.connect_from_node(CART).is_err());
}
