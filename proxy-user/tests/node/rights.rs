// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every command that a page of docs names, with the rights of the agent's container. What needs
//! more says which capability, and how to get it.

use std::{collections::BTreeSet, fs, path::PathBuf, process::Command};

use clap::Parser;
use cli::Cli;
use lab::node::rights;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    attachments::CART,
    objects::Service,
    trace::Tracing,
    world::{BINARY, World},
};

/// Commands that no operator runs in the container, or that would not leave the node as it is.
const ELSEWHERE: [&str; 6] = [
    "run",
    "init",
    "mount-bpffs",
    "wait",
    "cleanup",
    "completions",
];
/// What a refused system call is called.
const REFUSALS: [&str; 4] = ["(os error 1)", "(os error 13)", "EPERM", "not permitted"];
/// How to get what is lacking.
const REMEDY: &str = "`kubectl portolan --debug";

/// A command with the rights of the agent's container.
fn in_container(world: &World, arguments: &[&str]) -> Command {
    let words = rights::with_capabilities();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg(BINARY).args(arguments);
    command.arg("--pin-dir").arg(world.pins());
    command.env_remove("KUBECONFIG");
    rights::confine(&mut command);
    command
}

/// The commands in the pages of docs, one of each kind: with the same flags, only the first.
fn of_the_pages() -> Vec<Vec<String>> {
    const STARTS: [&str; 3] = [
        "portolan ",
        "kubectl portolan ",
        "kubectl -n kube-system exec POD -- /portolan ",
    ];
    let docs = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs"));
    let pages = fs::read_dir(docs).expect("the pages").flatten();
    let pages = pages.filter_map(|page| fs::read_to_string(page.path()).ok());
    let mut kinds = BTreeSet::new();
    let mut found = Vec::new();
    for line in pages.flat_map(|page| page.lines().map(str::to_owned).collect::<Vec<_>>()) {
        let Some(line) = line.strip_prefix("    ") else {
            continue;
        };
        let line = line.trim_start_matches("$ ");
        let rest = STARTS.iter().find_map(|start| line.strip_prefix(start));
        let rest = rest.and_then(|rest| rest.split(" #").next());
        let words = rest.unwrap_or_default().split_whitespace();
        let words = words.map(|word| word.replace('\'', ""));
        // The plugin's own flags come first.
        let words = words.skip_while(|word| {
            word.starts_with('-') || word.starts_with("app=") || word == "node-a"
        });
        let words: Vec<_> = words.take_while(|word| word != ">").collect();
        let flags = words.iter().filter(|word| word.starts_with('-'));
        let kind: Vec<_> = words.iter().take(1).chain(flags).cloned().collect();
        let is_one = Cli::try_parse_from([&["portolan".to_owned()], &words[..]].concat()).is_ok();
        if is_one && kinds.insert(kind) {
            found.push(words);
        }
    }
    found
}

/// The command for this node, whose pods have no names.
fn for_node(world: &World, words: &[String]) -> Vec<String> {
    let manifests = world.manifests();
    let fits = |word: &String| match word.as_str() {
        "--kubeconfig" => "--manifests".to_owned(),
        "FILE" | "~/.kube/config" => manifests.clone(),
        "ADDRESS" => "10.40.1.10".to_owned(),
        "node-a.tar.gz" => world.path("dump.tar.gz"),
        word if word.starts_with("pod/") => "10.40.1.10".to_owned(),
        word if word.contains('/') && !word.contains(':') => "shop/cart".to_owned(),
        word if word.starts_with("shop/") => "shop/cart:80".to_owned(),
        word => word.to_owned(),
    };
    words.iter().map(fits).collect()
}

/// Runs a command in the container; it must not be refused anything without a word about it.
fn run(world: &World, arguments: &[&str]) -> String {
    let output = world.output(&mut in_container(world, arguments));
    let said = [output.stdout.as_slice(), &output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    eprintln!("== {arguments:?}: {:?}\n{said}", output.status.code());
    let is_refused = REFUSALS.iter().any(|refusal| said.contains(refusal));
    assert!(
        !is_refused || said.contains(REMEDY),
        "{arguments:?}: {said}"
    );
    said
}

#[test]
fn every_command_of_the_pages_works_with_the_containers_rights_or_says_what_it_lacks() {
    let world = World::serving();
    world.confine();
    let sticky = Service::new("sticky", "172.30.1.3").sticky();
    world.write("sticky.yaml", sticky);
    let _agent = world.start(7);
    let _open = world.connect_at_socket(CART).expect("served");
    let _held = world.connect_at_socket("172.30.1.3:80").expect("served");
    let mut ran = 0;
    for words in of_the_pages() {
        if ELSEWHERE.contains(&words[0].as_str()) {
            continue;
        }
        let words = for_node(&world, &words);
        let mut words: Vec<_> = words.iter().map(String::as_str).collect();
        if words[0] == "trace" {
            words.extend(["--duration", "1"]);
        }
        run(&world, &words);
        ran += 1;
    }
    assert!(ran > 30, "{ran}");

    let trace = Tracing::begin(&world, in_container(&world, &["trace", "-o", "json"]), &[]);
    let is = |outcome: &'static str| move |line: &Value| line["outcome"] == outcome;
    let _packets = world.connect(CART).expect("served");
    trace.wait("the SYN", is("forwarded_new"));
    let _call = world.connect_at_socket(CART).expect("served");
    trace.wait("the call", is("socket_translated"));
    trace.end(Signal::SIGINT);
    let follow = ["explain", "--from", "10.40.1.10", "--to", CART, "--follow"];
    let said = run(&world, &follow);
    assert!(
        said.contains("\nwas answered") && said.contains("portolan, ingress of"),
        "{said}"
    );
    for (arguments, lacks) in [
        (&follow[..], "CAP_SYS_ADMIN"),
        (&["top", "--programs"], "CAP_SYS_ADMIN"),
        (&["affinity"], "CAP_SYS_ADMIN"),
        (&["sockets"], "CAP_SYS_PTRACE"),
        (&["trace", "--drops", "--duration", "1"], "CAP_SYSLOG"),
    ] {
        let said = run(&world, arguments);
        assert!(
            said.contains(lacks) && said.contains(REMEDY),
            "{arguments:?}: {said}"
        );
    }
}
