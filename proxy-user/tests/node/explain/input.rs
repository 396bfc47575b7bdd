// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bad input gets a one-line message that says what to write, and status 2. Also the text output.

use super::{CLIENT, run};
use crate::{objects::service, world::World};

#[test]
fn bad_input_of_explain_prints_one_line_and_good_input_a_short_text() {
    let world = World::build();
    let says = |flags: &[&str], words: &str| {
        let output = run(&world, flags);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {said}");
        assert!(output.stdout.is_empty());
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
        assert!(
            said.starts_with("portolan: ") && said.contains(words),
            "{flags:?}: {said}"
        );
    };
    let cart = ["--from", CLIENT, "--to", "172.30.1.1:80"];
    says(&cart, "no portolan is set up here");
    world.write("cart.yaml", service("cart", "172.30.1.1"));
    assert!(world.start_by_stack(7).stop().success());
    for (from, to, words) in [
        ("10.40.1", cart[3], "--from 10.40.1: write an address"),
        (
            CLIENT,
            "service/shop/none",
            "no address of Service shop/none",
        ),
        (CLIENT, "service/shop/cart:http", "has no such TCP port"),
        (CLIENT, "[fd00::1]:80", "of different IP families"),
        ("pod/shop/cart-1", cart[3], "the maps do not name pods"),
    ] {
        says(&["--from", from, "--to", to], words);
    }
    let nowhere = ["--interface", "nowhere0"];
    says(&[&cart[..], &nowhere].concat(), "--interface nowhere0");

    let text = |format: &str| {
        let named = ["--from", CLIENT, "--to", "service/shop/cart", "-o", format];
        let output = run(&world, &named);
        assert!(output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let plain = text("table");
    let interface = world.client_interface();
    let first = format!("10.40.1.10 -> 172.30.1.1:80/TCP, a packet that comes in by {interface}");
    let lines: Vec<_> = plain.lines().collect();
    let summary = "portolan's part is in order: `--follow` asks the rest";
    assert_eq!(lines[..3], [first.as_str(), summary, ""], "{plain}");
    for line in [
        "service     shop/cart, cluster IP 172.30.1.1:80",
        "answers     10.40.1.20:8080",
        "source      kept: a pod asks a cluster IP",
    ] {
        assert!(lines.contains(&line), "{line}: {plain}");
    }
    let yaml = text("yaml");
    assert!(yaml.contains("outcome: forwarded_new"), "{yaml}");
}
