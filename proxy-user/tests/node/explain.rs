// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan explain` on a node: from the maps alone, and with what the API server knows. What it
//! says of every flow is compared with real packets by the conformance cases.

use std::{io::ErrorKind, process::Output};

use crate::{
    agent::Agent,
    commands::Report,
    connection::serve,
    objects::{Service, endpoint, pod_endpoint},
    repair::detach,
    server::Server,
    world::{CART, CLIENT, NODE_PORT, SERVER, World},
};

/// The address of a client outside the node that is no pod.
pub(crate) const OUTSIDE: &str = "198.51.100.7";

pub(crate) fn run(world: &World, flags: &str) -> Output {
    let mut command = world.asking(&format!("explain {flags}"));
    world.output(command.env_remove("KUBECONFIG"))
}

fn explain(world: &World, from: &str, to: &str, flags: &str) -> Report {
    let line = format!("--from {from} --to {to} --output json {flags}");
    Report::of(&run(world, &line))
}

impl Report {
    /// Expects that something is in the way, in these words.
    #[track_caller]
    fn finds(&self, words: &str) {
        assert!(self.count("in-the-way", words) > 0, "{words}: {:#}", self.1);
    }
    /// Expects this outcome, and that portolan's part is in order.
    #[track_caller]
    fn is_clean(&self, outcome: &str) {
        let is_it = self.0 == 4 && self.1["outcome"] == outcome;
        assert!(is_it, "{outcome}, and not {}: {:#}", self.0, self.1);
    }
}

/// A service with more endpoints: one not ready, one terminating, one that is the client.
pub(crate) fn cart() -> Service {
    Service::new("cart", "172.30.1.1").endpoints(vec![
        pod_endpoint("10.40.1.31", "cart-new", [false, false, false]),
        pod_endpoint("10.40.1.32", "cart-old", [false, true, true]),
        pod_endpoint("10.40.1.10", "buyer", [false, false, false]),
        pod_endpoint("10.40.1.20", "cart-a", [true, true, false]),
    ])
}

#[test]
fn explain_reads_the_maps_without_an_agent() {
    let world = World::build();
    world.publish(cart());
    let sticky = Service::new("sticky", "172.30.1.5").sticky();
    let both = ["10.40.1.21", "10.40.1.20"].map(endpoint);
    world.publish(sticky.endpoints(both.into()));
    // The server pod answers at both.
    let add = "address add 10.40.1.21/32 dev eth0\n";
    world.server.ip(add).expect("an address");
    let interface = world.interface_to(SERVER);
    world.ip(&format!("route add 10.40.1.21/32 dev {interface}"));
    serve(&world.server, "10.40.1.21:8080");
    let _outside = world.pod(OUTSIDE);
    assert!(world.start_by_stack().stop().success());
    the_report_on_the_page_is_printed(&world);

    let to = "172.30.1.5:80";
    let mut open = world.connect(to).expect("served");
    explain(&world, CLIENT, to, "").is_clean("socket_translated");
    let incoming = format!("--interface {}", world.interface_to(CLIENT));
    let said = explain(&world, CLIENT, to, &incoming);
    said.is_clean("forwarded_new");
    let held = said.1["affinity"].as_str().expect("words").to_owned();
    let flow = world.flows().remove(0);
    let expected = format!("held to {}, for ", flow.backend);
    assert!(held.starts_with(&expected), "{held}");
    let from = flow.client.to_string();
    let said = explain(&world, &from, to, "");
    said.is_clean("forwarded_hit");
    assert_eq!(said.1["flow"]["state"], "established");
    assert_eq!(open.echo("still here"), "still here");

    let index = world.index(&world.interface_to(CLIENT));
    for hook in ["ingress", "egress"] {
        detach(&world, &format!("{index}-{hook}"));
        let missing = format!("no program of portolan's is attached at {hook}");
        let said = explain(&world, CLIENT, CART, &incoming);
        said.ends(3).finds(&missing);
    }
    detach(&world, "cgroup-connect_v4");
    explain(&world, "node", CART, "").finds("socket hooks: not attached: connect_v4");
}

fn the_report_on_the_page_is_printed(world: &World) {
    let folder = world.manifests();
    let question = format!("--from {OUTSIDE} --to {NODE_PORT} --manifests {folder}");
    let output = run(world, &question);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let incoming = world.interface_to(OUTSIDE);
    let text = text.replace(&format!("by {incoming}"), "by eth0");
    let page = include_str!("../../../docs/explain.md");
    // The text block after the line with the command.
    let command = "--from 198.51.100.7 --to 10.40.0.1:30001";
    let (_, shown) = page.split_once(command).expect("the command");
    let shown = shown.lines().skip(1);
    let shown = shown.take_while(|line| line.is_empty() || line.starts_with("    "));
    let shown = shown.map(|line| line.strip_prefix("    ").unwrap_or(line));
    let shown: Vec<_> = shown.collect();
    assert_eq!(text.trim(), shown.join("\n").trim(), "{text}");
}

/// Services of the API server whose pod is not ready, or that have none, and pods.
pub(crate) fn make_pods(server: &Server<'_>) {
    server.apply(include_str!("pods.yaml"));
    for (name, status) in [
        (
            "buyer",
            r#""podIPs":[{"ip":"10.40.1.10"}],"podIP":"10.40.1.10""#,
        ),
        (
            "unready",
            r#""phase":"Running","containerStatuses":[{"name":"one","image":"none","imageID":"","restartCount":0,"ready":false,"started":true,"state":{"running":{}}}]"#,
        ),
    ] {
        server.kubectl(&format!(
            r#"-n shop patch pod {name} --subresource=status --type=merge --patch {{"status":{{{status}}}}}"#
        ));
    }
}

/// The server has [`cart`] and what [`make_pods`] makes. `account` is the kubeconfig of the agent's
/// service account, which may not read pods.
pub(crate) fn pods_and_reasons_come_from_the_api_server(
    world: &World,
    server: &Server<'_>,
    agent: &Agent,
    account: &str,
) {
    let [unready, none] = ["172.30.2.7:80", "172.30.2.8:80"];
    agent.eventually("they are refused", || {
        [unready, none].iter().all(|to| {
            let said = world.connect(to).map(drop);
            said.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        })
    });
    let _open = world.connect(CART).expect("served");
    let kubeconfig = server.kubeconfig();
    let admin = kubeconfig.as_str();
    let flags = format!("--kubeconfig {admin}");
    let said = explain(world, "pod/shop/buyer", "service/shop/cart", &flags).ends(4);
    assert_eq!(said.1["client"], "pod/shop/buyer (10.40.1.10)");
    let rows = said.1["endpoints"].as_array().expect("endpoints");
    let names: Vec<_> = rows.iter().filter_map(|row| row["pod"].as_str()).collect();
    for name in ["shop/cart-a", "shop/cart-new"] {
        assert!(names.contains(&name), "{rows:?}");
    }
    let flows = world.json(&format!("flows cart {flags}"));
    assert_eq!(flows[0]["clientPod"], "shop/buyer", "{flows}");
    let probe = "not ready: the readiness probe of container one fails";
    for (account, to, words) in [
        (admin, unready, probe),
        (
            admin,
            none,
            "its selector app=none matches no pod of namespace shop",
        ),
        (account, unready, "pod shop/unready: not ready"),
        (account, none, "its EndpointSlices list no endpoint"),
    ] {
        explain(world, CLIENT, to, &format!("--kubeconfig {account}")).finds(words);
    }
}
