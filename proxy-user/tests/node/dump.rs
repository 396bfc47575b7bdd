// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An agent without an API server: /healthz says so, /livez tells only that its loop runs. And the
//! archive for a bug report: complete with and without an agent, and without its credentials.

use std::{collections::BTreeMap, fs::File, io::Read, thread, time::Duration};

use flate2::read::GzDecoder;
use serde_json::Value;

use crate::{
    agent::Agent,
    world::{CART, NODE_PORT, OF_V4, World},
};

/// The files of an archive by name, without its folder.
fn unpack(path: &str) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(GzDecoder::new(File::open(path).expect("the archive")));
    let files = archive.entries().expect("entries").map(|entry| {
        let mut entry = entry.expect("an entry");
        let mut text = String::new();
        entry.read_to_string(&mut text).expect("text");
        let path = entry.path().expect("a path").display().to_string();
        let (_, name) = path.split_once('/').expect("a folder");
        (name.to_owned(), text)
    });
    files.collect()
}

/// The files that an archive has with and without an agent.
const ALWAYS: &str = "README.txt affinity.json backends.json chains.json check.json counters.json \
    errors.txt flows.json interfaces.json kernel.txt maps.json programs.json services.json \
    settings.txt sockets.json status.json sysctls.txt";
const OF_AGENT: &str = "agent/configz.json agent/healthz.json agent/livez.json agent/metrics.txt \
    config.json warnings.json";

/// Writes an archive; returns its files and what the command says.
fn dumped(world: &World, name: &str) -> (BTreeMap<String, String>, String) {
    let path = world.path(name);
    let output = world.ask(&format!("dump {path}"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let files = unpack(&path);
    for (name, text) in files.iter().filter(|(name, _)| name.ends_with(".json")) {
        let parsed: Result<Value, _> = serde_json::from_str(text);
        assert!(parsed.is_ok(), "{name}: {text}");
    }
    (files, said)
}

const TOKEN: &str = "token-that-nobody-may-see-4711";

/// Writes archives beside this agent, whose kubeconfig has the token, and after its end.
fn a_dump_has_all_its_files_and_no_credentials(world: &World, agent: Agent) {
    let (files, _) = dumped(world, "with.tar.gz");
    let names: Vec<_> = files.keys().map(String::as_str).collect();
    let mut wanted: Vec<_> = ALWAYS.split(' ').chain(OF_AGENT.split(' ')).collect();
    wanted.sort_unstable();
    assert_eq!(names, wanted);
    for (file, text) in [
        ("services.json", "172.30.1.1"),
        ("flows.json", CART),
        ("chains.json", "(ingress)"),
        ("programs.json", "cgroup-connect_v4"),
        ("sysctls.txt", "net.ipv4.ip_forward = 1\n"),
        ("interfaces.json", "10.40.0.1/32"),
        ("status.json", "\"health\": 503"),
        // The path of the kubeconfig is a setting; its content must not appear.
        ("agent/configz.json", "kubeconfig"),
    ] {
        assert!(files[file].contains(text), "{file}: {}", files[file]);
    }
    assert_eq!(files["errors.txt"], "");
    for (name, text) in &files {
        for secret in [TOKEN, "insecure-skip-tls-verify", "current-context"] {
            assert!(!text.contains(secret), "{name} has {secret}");
        }
    }
    assert!(agent.stop().success());
    let (files, said) = dumped(world, "without.tar.gz");
    let missed = "not in the dump: agent/healthz.json: the agent is not reachable";
    assert!(said.contains(missed), "{said}");
    let names: Vec<_> = files.keys().map(String::as_str).collect();
    assert_eq!(names.join(" "), ALWAYS);
    assert!(files["errors.txt"].contains("agent/metrics.txt"));
}

#[test]
fn an_agent_that_starts_without_an_api_server_attaches_and_serves_what_the_maps_hold() {
    let world = World::serving();
    let first = world.start();
    assert!(world.answers(CART));
    assert!(first.stop().success());
    // As after a restart of the node's network: the interfaces are new and have no programs.
    world.replug(&world.client, OF_V4[1]);
    assert!(!world.answers(CART), "nobody has attached to it");
    let file = world.kubeconfig("https://127.0.0.1:9", TOKEN);
    let second = world.spawn_by(&[], &["--kubeconfig", &file]);
    second.eventually("it serves", || world.answers(CART));
    world.replug(&world.client, OF_V4[1]);
    // A time in which the agent applies a change.
    thread::sleep(Duration::from_millis(800));
    assert!(world.answers(CART), "also a pod that comes");
    second.logs("WARN API server");
    assert_eq!(second.metric("portolan_source_failing"), Some(1));
    second.says(&["WARN", "API server", "docs/runbooks.md#source-outage"]);
    let (status, body) = second.health();
    assert_eq!(status, 503, "{body}");
    let missing = "the lists of objects have not arrived";
    assert!(body.contains(missing), "{body}");
    assert!(second.is_alive());
    // A node port is served because the node's addresses are still stored.
    assert!(world.answers(NODE_PORT));
    let _open = world.connect(CART).expect("served");
    a_dump_has_all_its_files_and_no_credentials(&world, second);
}
