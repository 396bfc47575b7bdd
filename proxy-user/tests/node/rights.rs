// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The examples of every command, with the rights of the agent's container. What needs more says
//! which capability, and how to get it.

use std::process::Command;

use lab::node::rights;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    objects::Service,
    trace::Tracing,
    world::{BINARY, CART, World},
};

/// A unit test there checks that every command has some.
const EXAMPLES: &str = include_str!("../../cli/src/examples.txt");
/// Commands that no operator runs in the container, or that would not leave the node as it is.
const ELSEWHERE: &str = "run controller init mount-bpffs wait cleanup completions";
/// What a refused system call is called.
const REFUSALS: [&str; 4] = ["(os error 1)", "(os error 13)", "EPERM", "not permitted"];
/// How to get what is lacking.
const REMEDY: &str = "`kubectl portolan --debug";

/// A command with the rights of the agent's container.
fn in_container(world: &World, arguments: &[&str]) -> Command {
    let mut command = rights::command(BINARY.as_ref());
    command.args(arguments).arg("--pin-dir").arg(world.pins());
    command.env_remove("KUBECONFIG");
    command
}

/// A word of an example, for this node, whose pods have no names. Nothing is watched for ever.
fn for_node(world: &World, word: &str) -> String {
    match word {
        "--kubeconfig" => "--manifests".to_owned(),
        "FILE" | "~/.kube/config" => world.manifests(),
        "node-a.tar.gz" => world.path(word),
        "30" => "1".to_owned(),
        word if word.starts_with("pod/") => "10.40.1.10".to_owned(),
        word if word.starts_with("shop/") && word.contains(':') => "shop/cart:80".to_owned(),
        word if word.starts_with("shop/") => "shop/cart".to_owned(),
        word => word.replace('\'', ""),
    }
}

/// Runs a command in the container; it must not be refused anything without a word about it.
fn run(world: &World, arguments: &[&str]) -> String {
    let output = world.output(&mut in_container(world, arguments));
    let said = [output.stdout.as_slice(), &output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    eprintln!("== {arguments:?}: {:?}\n{said}", output.status.code());
    let is_refused = REFUSALS.iter().any(|refusal| said.contains(refusal));
    let is_named = !is_refused || said.contains(REMEDY);
    assert!(is_named, "{arguments:?}: {said}");
    said
}

#[test]
fn every_command_works_with_the_containers_rights_or_says_what_it_lacks() {
    let world = World::serving();
    world.confine();
    world.publish(Service::new("sticky", "172.30.1.3").sticky());
    let _agent = world.start();
    let _open = world.connect_at_socket(CART).expect("served");
    let _held = world.connect_at_socket("172.30.1.3:80").expect("served");
    let mut ran = 0;
    let examples = EXAMPLES.lines();
    let examples = examples.filter_map(|line| line.strip_prefix("  portolan "));
    // The explanation comes behind more blanks than one.
    for example in examples.filter_map(|line| line.split("  ").next()) {
        let words = example.split(' ').filter(|word| *word != "--watch");
        let words: Vec<_> = words.map(|word| for_node(&world, word)).collect();
        let mut words: Vec<_> = words.iter().map(String::as_str).collect();
        if ELSEWHERE.split(' ').any(|one| one == words[0]) {
            continue;
        }
        if words[0] == "trace" && !words.contains(&"--duration") {
            words.extend(["--duration", "1"]);
        }
        run(&world, &words);
        ran += 1;
    }
    assert!(ran > 30, "{ran}");

    let command = in_container(&world, &["trace", "-o", "json"]);
    let trace = Tracing::begin(&world, command, "", "watching packets");
    let is = |outcome: &'static str| move |line: &Value| line["outcome"] == outcome;
    let _packets = world.connect(CART).expect("served");
    trace.wait("the SYN", is("forwarded_new"));
    let _call = world.connect_at_socket(CART).expect("served");
    trace.wait("the call", is("socket_translated"));
    trace.end(Signal::SIGINT);
    let follow = ["explain", "--from", "10.40.1.10", "--to", CART, "--follow"];
    let said = run(&world, &follow);
    assert!(said.contains("\nwas answered"), "{said}");
    assert!(said.contains("portolan, ingress of"), "{said}");
    for (arguments, lacks) in [
        (&follow[..], "CAP_SYS_ADMIN"),
        (&["affinity"], "CAP_SYS_ADMIN"),
        (&["sockets"], "CAP_SYS_PTRACE"),
        (&["trace", "--drops", "--duration", "1"], "CAP_SYSLOG"),
    ] {
        let said = run(&world, arguments);
        let is_named = said.contains(lacks) && said.contains(REMEDY);
        assert!(is_named, "{arguments:?}: {said}");
    }
}
