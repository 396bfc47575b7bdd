// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan check` on a node before portolan is installed, and while it runs.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use lab::node::{foreign::ChainPosition, kubeconfig};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    agent::send_signal,
    objects::{Service, service},
    server::prepare,
    world::{BINARY, World},
};

/// Runs a check on the node; returns its exit status and findings.
pub(crate) fn check(world: &World, pins: &Path, flags: &[&str]) -> (i32, Vec<Value>) {
    report(&run(world, pins, flags))
}

/// The exit status and findings in the output of a check.
pub(crate) fn report(output: &Output) -> (i32, Vec<Value>) {
    let said = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?} {said}"));
    let findings = report["findings"].as_array().expect("findings").clone();
    (output.status.code().expect("a status"), findings)
}

fn run(world: &World, pins: &Path, flags: &[&str]) -> Output {
    world.output(&mut command(world, pins, flags))
}

fn command(world: &World, pins: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command
        .args(["check", "--output", "json", "--hostname-override", "node-a"])
        .args(["--cluster-cidr", "10.40.0.0/16,fd00:40::/48"])
        .arg("--cgroup-root")
        .arg(world.cgroup().path())
        .arg("--pin-dir")
        .arg(pins)
        .args(flags);
    command
}

/// The flags for a comparison with the services of the world.
pub(crate) fn migration(world: &World) -> [String; 3] {
    [
        "--migration".into(),
        "--manifests".into(),
        world.manifests(),
    ]
}

fn migrate(world: &World) -> (i32, Vec<Value>) {
    let flags = migration(world);
    check(world, world.pins(), &flags.each_ref().map(String::as_str))
}

/// Expects exactly one finding of this level that contains these words.
#[track_caller]
fn expect(findings: &[Value], level: &str, words: &str) {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let is_it = |finding: &&Value| {
        finding["level"] == level
            && format!("{}: {}", word(&finding["about"]), word(&finding["found"])).contains(words)
    };
    let count = findings.iter().filter(is_it).count();
    assert_eq!(count, 1, "{level}, {words}: {findings:#?}");
}

#[track_caller]
pub(crate) fn notes(findings: &[Value], words: &str) {
    expect(findings, "note", words);
}

#[track_caller]
pub(crate) fn differs(findings: &[Value], words: &str) {
    expect(findings, "differs", words);
}

#[track_caller]
pub(crate) fn in_the_way(findings: &[Value], words: &str) {
    expect(findings, "in-the-way", words);
}

/// The path of the pins with this suffix.
pub(crate) fn beside_pins(world: &World, suffix: &str) -> PathBuf {
    let name = world.pins().file_name().expect("a name").display();
    world.pins().with_file_name(format!("{name}-{suffix}"))
}

/// The paths of the pin folders of checks; a check removes its own at its end.
fn left_over(world: &World) -> Vec<PathBuf> {
    let own = beside_pins(world, "check-").display().to_string();
    let entries = world.pins().parent().expect("a folder").read_dir();
    let paths = entries.expect("a BPF file system").flatten();
    let paths = paths.map(|entry| entry.path());
    paths
        .filter(|path| path.display().to_string().starts_with(&own))
        .collect()
}

#[test]
fn check_names_what_would_be_in_the_way_and_leaves_no_pins() {
    let world = World::serving();
    let (status, findings) = migrate(&world);
    assert_eq!(status, 0, "{findings:#?}");
    notes(&findings, "the kernel takes 18 of them");
    notes(&findings, "1 services, 1 endpoints");
    assert!(world.connect("172.30.1.1:80").is_err(), "nothing is served");
    let (status, _) = check(&world, world.pins(), &[]);
    assert_eq!(status, 0, "the node alone");
    for flags in [
        &["--config", "/nonexistent"][..],
        &["--migration"],
        &["--migration", "--manifests", "/nonexistent"],
    ] {
        let output = run(&world, world.pins(), flags);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {said}");
        assert!(said.starts_with("portolan: "), "{said}");
    }
    let (status, findings) = check(&world, Path::new("/tmp/portolan-check"), &[]);
    assert_eq!(status, 3);
    in_the_way(&findings, "not on a BPF file system");
    let elsewhere = ["--nodeport-addresses", "203.0.113.0/24"];
    let (_, findings) = check(&world, world.pins(), &elsewhere);
    differs(
        &findings,
        "nodePortAddresses: no address of this node is in 203.0.113.0/24, so IPv4",
    );

    let twin = Service::new("twin", "172.30.1.1").node_port(31000);
    world.write("twin.yaml", twin);
    world.write("pods.yaml", service("pods", "10.40.9.1"));
    let rules = "add table ip kube-proxy
add chain ip kube-proxy services { type nat hook prerouting priority dstnat; }
add table ip nat
add chain ip nat KUBE-SERVICES
add table ip filter
add chain ip filter FORWARD { type filter hook forward priority filter; policy drop; }
";
    world.nft(rules);
    let taken = world.node().enter(|| TcpListener::bind("0.0.0.0:10256"));
    let _taken = taken.expect("enter the node").expect("the port");
    let interface = world.client_interface();
    let _police = world.foreign(&interface, false, ChainPosition::First);
    let (status, findings) = migrate(&world);
    assert_eq!(status, 1, "{findings:#?}");
    for found in [
        "table ip kube-proxy: they stay",
        "KUBE-SERVICES in table ip nat: they stay",
        "FORWARD in table ip filter drops",
        "healthzBindAddress 0.0.0.0:10256",
        &format!("at ingress of {interface} would run behind"),
        "Service shop/twin",
        "clusterCIDR: 10.40.0.0/16, fd00:40::/48 overlaps with 10.40.9.1, the cluster IP",
    ] {
        differs(&findings, found);
    }
    assert!(left_over(&world).is_empty());
    assert!(!world.pins().exists());
}

#[test]
fn an_interrupted_check_removes_its_pins() {
    let world = World::build();
    let silent = world.node().enter(|| TcpListener::bind("127.0.0.1:0"));
    let silent = silent.expect("enter the node").expect("a port");
    let server = silent.local_addr().expect("its address");
    let text = kubeconfig::render(&format!("http://{server}"), "none");
    let kubeconfig = world.path("kubeconfig");
    fs::write(&kubeconfig, text).expect("written");
    let flags = ["--migration", "--kubeconfig", &kubeconfig];
    let mut command = command(&world, world.pins(), &flags);
    let mut child = world.begin(command.stderr(Stdio::piped()));
    silent.set_nonblocking(true).expect("set");
    let begun = Instant::now();
    // The check asks for objects once it has made its maps.
    let _asked = loop {
        match silent.accept() {
            Ok(asked) => break asked,
            Err(_) if child.try_wait().expect("a status").is_some() => {
                panic!("{:?}", child.wait_with_output())
            }
            Err(_) => assert!(begun.elapsed() < Duration::from_secs(30), "it asks"),
        }
        sleep(Duration::from_millis(5));
    };
    assert_eq!(left_over(&world).len(), 1);
    send_signal(child.id(), Signal::SIGINT).expect("ended");
    let output = child.wait_with_output().expect("its output");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("ended by SIGINT"));
    assert!(left_over(&world).is_empty());
}

#[test]
fn check_counts_programs_of_other_pins_as_foreign_but_not_its_own() {
    let world = World::serving();
    let agent = world.start(7);
    let (status, findings) = migrate(&world);
    assert_eq!(status, 0, "{findings:#?}");
    notes(&findings, "an agent runs on this node");
    let other = beside_pins(&world, "other");
    let (status, findings) = check(&world, &other, &[]);
    assert_eq!(status, 1, "{findings:#?}");
    differs(
        &findings,
        "other programs are there, too: bind_v4 at bind_v4",
    );
    differs(&findings, "would run behind portolan's");
    assert!(world.connect("172.30.1.1:80").is_ok(), "{}", agent.log());
    assert!(agent.stop().success());
}

#[test]
fn check_reads_services_from_the_api_server_and_writes_no_events() {
    let world = World::build();
    let mut server = prepare(&world);
    server.apply(Service::new("twin", "172.30.1.2").node_port(31000));
    let flags = ["--migration", "--kubeconfig", &server.kubeconfig()];
    let (status, findings) = check(&world, world.pins(), &flags);
    assert_eq!(status, 0, "{findings:#?}");
    let count = findings
        .iter()
        .find(|one| one["about"] == "room")
        .expect("it");
    let count = count["found"].as_str().expect("words");
    // The server's own service counts too.
    assert!(count.starts_with("3 services"), "{count}");
    let reporters =
        server.kubectl("get events --all-namespaces -o=jsonpath={.items[*].reportingComponent}");
    assert!(!reporters.contains("portolan"), "{reporters}");
    server.kill();
    let output = run(&world, world.pins(), &flags);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("the cluster's services could not be listed in 30 s: API server"),
        "{said}"
    );
    assert!(left_over(&world).is_empty());
}
