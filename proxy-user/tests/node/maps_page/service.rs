// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan services NAME --bpftool`: the test runs the printed commands, which lead from a
//! frontend to its endpoint.

use std::process::Command;

use super::{json::Json, login, questions, use_everything};
use crate::world::{World, at};

/// The answer to each printed command, with its comment; for a dumped map, its first element.
fn answers(world: &World, name: &str) -> Vec<(String, String, Json)> {
    let said = world.told(&["services", name, "--bpftool"]);
    let lines: Vec<_> = said.lines().skip(1).collect();
    let pairs = lines.chunks(2).map(|pair| {
        let [comment, command] = pair else {
            panic!("a comment without a command: {pair:?}")
        };
        assert!(comment.starts_with("# "), "{comment}");
        let output = Command::new("sh").args(["-c", command]).output();
        let output = output.expect("a shell");
        assert!(output.status.success(), "{command}: {output:?}");
        let answer: Json = serde_json::from_slice(&output.stdout).expect("types, so JSON");
        let answer = match answer {
            Json::Array(elements) => elements.into_iter().next().expect("an element"),
            element => element,
        };
        let map = command.split_whitespace().nth(4).expect("a path");
        let map = map.rsplit('/').next().expect("a name").to_owned();
        (map, (*comment).to_owned(), answer)
    });
    pairs.collect()
}

fn of<'a>(all: &'a [(String, String, Json)], map: &str, word: &str) -> &'a Json {
    let found = all
        .iter()
        .find(|(of, comment, _)| of == map && comment.contains(word));
    let (.., answer) = found.unwrap_or_else(|| panic!("no {map} with {word}: {all:?}"));
    // A per-CPU map has `values`, one for each CPU.
    let value = answer.get("value").or(answer.get("values"));
    value.expect("a value")
}

#[test]
fn services_bpftool_prints_commands_that_lead_from_frontend_to_endpoint() {
    let world = World::serving();
    world.write("login.yaml", login());
    world.write("questions.yaml", questions());
    let _agent = world.start(7);
    let _open = use_everything(&world);
    _ = world.client().enter(|| {
        let once = std::time::Duration::from_millis(200);
        std::net::TcpStream::connect_timeout(&at("198.51.100.2:443"), once).map(drop)
    });

    let all = answers(&world, "shop/login");
    let number = |json: &Json| json.number().expect("a number");
    let record = number(of(&all, "frontends_v4", "172.30.1.2:443/TCP"));
    let found = of(&all, "records_v4", &format!("record {record}:"));
    let key = found.get("key").expect("its key").line();
    assert!(key.contains("[172,30,1,2]"), "{key}");
    let block = number(found.get("internal").expect("a block"));
    assert_eq!(block & 0xffff_ffff, 1, "one endpoint");
    let backend = number(of(&all, "slots", "slot 1 of 1, the last"));
    let endpoint = of(
        &all,
        "backends_v4",
        &format!("backend {backend}, 10.40.1.20:8080"),
    );
    assert!(endpoint.line().contains("[10,40,1,20]"), "{endpoint:?}");
    assert!(
        of(&all, "names", "service port")
            .line()
            .contains("108,111,103,105,110")
    );
    of(&all, "traffic_v4", "10.40.1.20:8080");
    of(&all, "sources_v4", "203.0.113.0/24");
    let held = of(&all, "affinity_v4", "affinity of 10.40.1.10");
    assert_eq!(held.get("backend").and_then(Json::number), Some(backend));
    of(&all, "affinity_pods", "affinity of netns:");

    let of_cart = answers(&world, "cart");
    assert!(of_cart.iter().all(|(map, ..)| !map.starts_with("affinity")));
    of(&of_cart, "frontends_v4", "node-port");
    for (words, status) in [
        (&["--bpftool"][..], 2),
        (&["cart", "--bpftool", "-o", "json"], 2),
        (&["nosuch", "--bpftool"], 1),
    ] {
        let (code, said) = world.refused(&[&["services"], words].concat());
        assert_eq!(code, Some(status), "{said}");
    }
}
