// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What only reads, asked of one agent on one node, part by part: first the names of pods in lists,
//! the exact numbers of `top`, and the types of every map; at the end, without the agent.

use std::{
    io::{self, BufRead, BufReader},
    process::Stdio,
};

use control::testing::rows;
use proxy_common::maps::{ALL, LAYOUT_VERSION};
use serde_json::Value;

use crate::{
    agent::Agent,
    commands::{self, fields_are},
    connection::{answer_questions, asking, sleep_in},
    objects::{Service, pod_endpoint, questions},
    observe, terminal, trace,
    world::{CART, World},
};

/// The cluster IP and port of a service without endpoints.
pub(crate) const EMPTY: &str = "172.30.1.2:80";

#[test]
fn lists_top_trace_metrics_and_bpftool_agree_with_what_clients_did() {
    let world = World::build();
    let pod = pod_endpoint("10.40.1.20", "cart-a", [true, true, false]);
    for service in [
        Service::new("cart", "172.30.1.1")
            .sticky()
            .endpoints(vec![pod]),
        Service::new("empty", "172.30.1.2").endpoints(Vec::new()),
        Service::new("local", "172.30.1.3").local().on("node-b"),
        questions(),
    ] {
        world.publish(service);
    }
    world.write("web.yaml", include_str!("web.yaml"));
    let (code, said) = world.refused("services");
    assert_eq!(code, Some(1), "no agent has run on this node: {said}");
    let (_, said) = world.refused(&format!("explain --from 10.40.1.10 --to {EMPTY}"));
    assert!(said.contains("no portolan is set up here"), "{said}");
    let config = "portolan: {forwarding: stack, logPackets: true, maps: {frontends: 64, memory: 1}}
ipvs: {scheduler: rr}
";
    let agent = world.start_configured(config);
    // The first ones count every packet of a service.
    lists_name_the_pods_of_endpoints_and_clients(&world);
    top_agrees_exactly_with_what_clients_counted(&world);
    observe::metrics_count_packets_changes_and_services_clients(&world, &agent);
    bpftool_reads_every_map_with_the_names_of_its_fields(&world);
    commands::status_and_warnings_show_what_the_agent_says(&world, &agent);
    a_service_refused_by_a_full_map_is_named_and_the_node_is_healthy(&world, &agent);
    commands::test_connects_to_every_address(&world);
    terminal::bad_input_is_named(&world);
    terminal::a_closed_pipe_is_no_error(&world);
    terminal::tables_fit_the_terminal(&world);
    trace::trace_shows_packets_and_calls_before_and_after_translation(&world);
    trace::trace_applies_its_flags_its_count_and_its_rate(&world);
    trace::a_second_trace_is_refused_but_not_after_the_first_was_killed(&world);
    observe::every_packet_of_a_client_behind_a_tunnel_is_logged(&world, &agent);
    observe::a_packet_that_cannot_be_rewritten_is_dropped_and_named(&world, &agent);
    assert!(agent.stop().success());
    commands::commands_say_that_no_agent_answers(&world);
    commands::a_canary_is_found_by_other_addresses_and_serves_its_services_alone(&world);
}

fn a_service_refused_by_a_full_map_is_named_and_the_node_is_healthy(world: &World, agent: &Agent) {
    let many =
        (101..=160).map(|n| Service::new(&format!("s{n}"), &format!("172.30.2.{n}")).to_string());
    world.write("many.yaml", many.collect::<Vec<_>>().join("---\n"));
    agent.logs("is full");
    // The map holds the services that come first by name.
    let named =
        r#"{"object":"Service shop/s160","reason":"not published, the map frontends_v4 is full"#;
    // The log reports it before /healthz does.
    agent.eventually("it is named", || agent.reports(named));
    assert_eq!(agent.health().0, 200, "other services are served");
    assert!(agent.is_alive(), "a new agent would find the same");
    agent.logs("portolan.maps.memory allows 1 MiB");
    assert_eq!(world.generations(), 1);
    world.write("many.yaml", "# nothing\n");
    agent.eventually("there is room", || agent.reports(r#""faultCount":0"#));
}

fn lists_name_the_pods_of_endpoints_and_clients(world: &World) {
    // One connection is translated packet by packet, one at its socket. The client of the latter is
    // known only by its network namespace.
    let _packets = world.connect(CART).expect("served");
    let _socket = world.connect_at_socket(CART);
    let _process = sleep_in(&world.client);
    commands::lists_are_filtered_and_formatted(world);

    let named = format!("--manifests {}", world.manifests());
    let rows = |command: &str| world.json(&format!("{command} cart {named}"));
    fields_are(&rows("backends"), "0/pod=shop/cart-a");
    let expected = "0/clientPod=shop/web-a 0/backendPod=shop/cart-a";
    fields_are(&rows("flows"), expected);
    let affinity = rows("affinity");
    let of_namespace = affinity.as_array().expect("rows").iter().find(|row| {
        let client = row["client"].as_str().expect("a client");
        client.starts_with("netns:")
    });
    let of_namespace = of_namespace.unwrap_or_else(|| panic!("{affinity}"));
    let expected = "clientAddress=10.40.1.10 clientPod=shop/web-a endpointPod=shop/cart-a";
    fields_are(of_namespace, expected);
    let by_address = world.told("affinity --address 10.40.1.10");
    assert!(by_address.contains("10.40.1.10 (netns:"), "{by_address}");

    let wide = world.told(&format!("backends -o wide {named}"));
    assert!(wide.contains("shop/cart-a"), "{wide}");
    let mut nobody = world.asking("backends -o wide --manifests /nonexistent");
    let output = nobody.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("portolan: pods are not named: "), "{said}");
    assert!(output.status.success(), "the rows are there");
}

fn top_agrees_exactly_with_what_clients_counted(world: &World) {
    answer_questions(&world.server);
    let mut sent = 0;
    for client in 0..3_usize {
        let socket = asking(&world.client);
        for length in 1..=10 + client {
            socket.send(&vec![b'?'; length]).expect("sent");
            let mut answer = [0; 64];
            assert_eq!(socket.recv(&mut answer).expect("answered"), length);
            sent += 1;
        }
    }
    for _ in 0..4 {
        assert!(!world.answers(EMPTY), "it is rejected");
    }

    for line in ["top questions", "top questions --backends"] {
        let seen = world.json(line);
        assert_eq!(seen.as_array().map(Vec::len), Some(1), "{seen}");
        // Totals are shown without waiting.
        let totals = format!("connections=3 packetsIn={sent} packetsOut={sent} rates=null");
        fields_are(&seen[0], &totals);
    }
    let refused = &world.json("top empty")[0]["refused"];
    assert_eq!(refused["rejected_no_endpoint"], 4, "{refused}");
    let reasons = world.json("top --reasons");
    let mut rows = reasons.as_array().into_iter().flatten();
    let row = rows.find(|row| row["reason"] == "rejected_no_endpoint");
    let expected = "count=4 page=docs/runbooks.md#no-endpoint";
    fields_are(row.expect("its row"), expected);

    let mut command = world.asking("top --watch --interval 0.2 -o json");
    let mut watching = world.begin(command.stdout(Stdio::piped()));
    let mut lines = BufReader::new(watching.stdout.take().expect("piped")).lines();
    let has_rates = |line: io::Result<String>| line.expect("text").contains("\"rates\"");
    assert!(lines.any(has_rates), "from the second look on");
    watching.kill().expect("killed");
    watching.wait().expect("its end");
}

fn bpftool_reads_every_map_with_the_names_of_its_fields(world: &World) {
    let _open = world.connect(CART).expect("served");
    // Fields that bpftool must name.
    let fields: Vec<[String; 2]> = rows(include_str!("map_fields.txt"));
    for map in ALL {
        let pin = world.pins().join(format!("v{LAYOUT_VERSION}/{map}"));
        let bpftool = |verb: &str, rest: &str| -> Value {
            let words = format!("-j map {verb} pinned {} {rest}", pin.display());
            serde_json::from_str(&world.tool("bpftool", &words)).expect("JSON")
        };
        let about = bpftool("show", "");
        assert!(about["btf_id"].is_u64(), "{map} has no types: {about}");
        let kind = about["type"].as_str().expect("a type");
        // Of arrays one element: many are large.
        let shown = match kind.ends_with("array") {
            true => bpftool("lookup", "key 0 0 0 0"),
            false => bpftool("dump", ""),
        };
        let shown = shown.to_string();
        let named = fields.iter().find(|[name, _]| name == map);
        for field in named.into_iter().flat_map(|[_, fields]| fields.split(' ')) {
            let is_named = shown.contains(&format!("\"{field}\":"));
            assert!(is_named, "{map}: {field}: {shown}");
        }
    }
}
