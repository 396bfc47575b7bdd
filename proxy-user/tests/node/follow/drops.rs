// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan trace --drops` shows what the kernel frees of services, and nothing else.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

use serde_json::Value;

use super::{CART, Node};

#[test]
fn freed_packets_of_a_service_are_shown_with_reason_and_place() {
    let node = Node::build();
    let world = &node.world;
    world.nft("table inet firewall {\n chain filter { type filter hook forward priority 0; policy accept;\n tcp dport { 8080, 9090 } drop\n }\n}\n");
    let words = [
        "trace",
        "--drops",
        "--duration",
        "60",
        "--output",
        "json",
        "--service",
        "shop/cart",
    ];
    let mut command = world.asking(&words);
    let mut watching = world.begin(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut said = BufReader::new(watching.stderr.take().expect("piped")).lines();
    assert!(said.any(|line| line.expect("text").contains("watching")));
    // No service has this port.
    assert!(world.connect("10.40.1.20:9090").is_err());
    assert!(world.connect(CART).is_err());
    let lines = BufReader::new(watching.stdout.take().expect("piped")).lines();
    let mut lines = lines.map(|line| serde_json::from_str::<Value>(&line.expect("text")));
    // Other tests' nodes have the same addresses in other namespaces.
    let line = lines.find(|line| line.as_ref().is_ok_and(|line| line["namespace"].is_null()));
    let line = line.expect("a line of this node").expect("JSON");
    watching.kill().expect("killed");
    watching.wait().expect("its end");
    assert_eq!(line["reason"], "NETFILTER_DROP", "{line:#}");
    assert_eq!(line["service"], "shop/cart");
    assert_eq!(line["from"]["address"], "10.40.1.10");
    assert_eq!(line["to"]["port"], 8080);
    assert_eq!(line["interface"], world.client_interface());
}
