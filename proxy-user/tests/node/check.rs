// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan check` on a node before portolan is installed, and while it runs.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use lab::node::foreign::ChainPosition;
use nix::sys::signal::Signal;

use crate::{
    agent::{Agent, send_signal, wait},
    commands::Report,
    connection::listen,
    objects::Service,
    repair::detach,
    server::Server,
    world::{BINARY, CART, CLIENT, World},
};

fn run(world: &World, pins: &Path, flags: &str) -> Output {
    world.output(&mut command(world, pins, flags))
}

fn command(world: &World, pins: &Path, flags: &str) -> Command {
    let line =
        "check --output json --hostname-override node-a --cluster-cidr 10.40.0.0/16,fd00:40::/48";
    let mut command = Command::new(BINARY);
    command.args(line.split(' ').chain(flags.split_whitespace()));
    command.arg("--cgroup-root").arg(world.cgroup.path());
    command.arg("--pin-dir").arg(pins);
    command
}

impl Report {
    /// Runs a check on the node.
    fn check(world: &World, pins: &Path, flags: &str) -> Self {
        Self::of(&run(world, pins, flags))
    }

    /// Compares with the services of the world.
    fn migrate(world: &World) -> Self {
        let flags = format!("--migration --manifests {}", world.manifests());
        Self::check(world, world.pins(), &flags)
    }

    /// Runs a check without settings of its own while an agent runs: it uses the agent's settings.
    fn of_agent(world: &World) -> Self {
        Self::of(&world.ask("check --output json"))
    }

    /// Expects exactly one finding of this level that contains these words.
    #[track_caller]
    fn has(&self, level: &str, words: &str) -> &Self {
        let count = self.count(level, words);
        assert_eq!(count, 1, "{level}, {words}: {:#}", self.1);
        self
    }
}

const NOTE: &str = "note";
const DIFFERS: &str = "differs";
const IN_THE_WAY: &str = "in-the-way";

/// The path of the pins with this suffix.
fn beside_pins(world: &World, suffix: &str) -> PathBuf {
    let name = world.pins().file_name().expect("a name").display();
    world.pins().with_file_name(format!("{name}-{suffix}"))
}

/// The paths of the pin folders of checks; a check removes its own at its end.
fn left_over(world: &World) -> Vec<PathBuf> {
    let own = beside_pins(world, "check-").display().to_string();
    let entries = world.pins().parent().expect("a folder").read_dir();
    let paths = entries.expect("a BPF file system").flatten();
    let paths = paths.map(|entry| entry.path());
    let is_own = |path: &PathBuf| path.display().to_string().starts_with(&own);
    paths.filter(is_own).collect()
}

#[test]
fn check_names_what_is_in_the_way_before_and_after_installation_and_leaves_no_pins() {
    let world = World::serving();
    Report::migrate(&world)
        .ends(0)
        .has(NOTE, "the kernel takes 16 of them")
        .has(NOTE, "1 services, 1 endpoints");
    assert!(!world.answers(CART), "nothing is served");
    Report::check(&world, world.pins(), "").ends(0);
    for flags in ["--migration", "--migration --manifests /nonexistent"] {
        let output = run(&world, world.pins(), flags);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flags}: {said}");
        assert!(said.starts_with("portolan: "), "{said}");
    }
    let report = Report::check(&world, Path::new("/tmp/portolan-check"), "");
    report.ends(3).has(IN_THE_WAY, "not on a BPF file system");
    let elsewhere = "--nodeport-addresses 203.0.113.0/24";
    Report::check(&world, world.pins(), elsewhere).has(
        DIFFERS,
        "nodePortAddresses: no address of this node is in 203.0.113.0/24, so IPv4",
    );
    what_another_proxy_has_left_is_named(&world);
    an_interrupted_check_removes_its_pins(&world);
    assert!(left_over(&world).is_empty());
    assert!(!world.pins().exists());
    let agent = world.start();
    missing_programs_are_named_while_an_agent_runs(&world, &agent);
    assert!(agent.stop().success());
    let none = "agent: none runs: what the maps hold is served";
    Report::check(&world, world.pins(), "").has(DIFFERS, none);
}

fn what_another_proxy_has_left_is_named(world: &World) {
    let twin = Service::new("twin", "172.30.1.1").ports(&[("", "TCP", 80, Some(31000))]);
    world.publish(twin);
    world.publish(Service::new("pods", "10.40.9.1"));
    world.nft(include_str!("leftovers.nft"));
    let _taken = listen(world.node(), "0.0.0.0:10256");
    let interface = world.interface_to(CLIENT);
    let _police = world.foreign(&interface, false, ChainPosition::First);
    let report = Report::migrate(world).ends(1);
    for found in [
        "table ip kube-proxy: they stay",
        "KUBE-SERVICES in table ip nat: they stay",
        "FORWARD in table ip filter drops",
        "healthzBindAddress 0.0.0.0:10256",
        &format!("at ingress of {interface} would run behind"),
        "Service shop/twin",
        "clusterCIDR: 10.40.0.0/16, fd00:40::/48 overlaps with 10.40.9.1, the cluster IP",
    ] {
        report.has(DIFFERS, found);
    }
    for file in ["twin.yaml", "pods.yaml"] {
        fs::remove_file(world.path(&format!("manifests/{file}"))).expect("removed");
    }
    world.nft("flush ruleset\n");
}

fn an_interrupted_check_removes_its_pins(world: &World) {
    let silent = listen(world.node(), "127.0.0.1:0");
    let server = silent.local_addr().expect("its address");
    let kubeconfig = world.kubeconfig(&format!("http://{server}"), "none");
    let flags = format!("--migration --kubeconfig {kubeconfig}");
    let mut command = command(world, world.pins(), &flags);
    let mut child = world.begin(command.stderr(Stdio::piped()));
    silent.set_nonblocking(true).expect("set");
    // The check asks for objects once it has made its maps.
    let mut asked = None;
    wait(Duration::from_secs(30), "it asks", || {
        assert_eq!(child.try_wait().expect("a status"), None);
        asked = silent.accept().ok();
        asked.is_some()
    });
    assert_eq!(left_over(world).len(), 1);
    send_signal(child.id(), Signal::SIGINT).expect("ended");
    let output = child.wait_with_output().expect("its output");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("ended by SIGINT"));
}

fn missing_programs_are_named_while_an_agent_runs(world: &World, agent: &Agent) {
    let report = Report::migrate(world).ends(0);
    report.has(NOTE, "an agent runs on this node");
    // To other pins, its programs are foreign.
    Report::check(world, &beside_pins(world, "other"), "")
        .ends(1)
        .has(DIFFERS, "are there, too: connect_v4 at connect_v4")
        .has(DIFFERS, "would run behind portolan's");
    Report::of_agent(world)
        .ends(0)
        .has(NOTE, "settings: those of the agent (process");
    // What a killed check has left is removed.
    let left = beside_pins(world, "check-99999999");
    fs::create_dir_all(left.join("v3")).expect("made");
    let parameter = "nf_conntrack_tcp_timeout_established";
    let said = format!("{parameter}: is 432000, and the settings");
    Report::check(world, world.pins(), "").has(NOTE, &said);
    assert!(!left.exists());
    assert!(world.answers(CART), "{}", agent.log());
    // A running agent would attach the programs again.
    agent.signal(Signal::SIGSTOP);
    let interface = world.interface_to(CLIENT);
    detach(world, &format!("{}-ingress", world.index(&interface)));
    detach(world, "cgroup-connect_v4");
    let words = format!("none is attached at ingress of {interface}: packets");
    Report::of_agent(world)
        .ends(3)
        .has(IN_THE_WAY, &words)
        .has(IN_THE_WAY, "not attached: connect_v4;")
        .has(DIFFERS, "agent: one runs, and does not answer");
    agent.signal(Signal::SIGCONT);
}

/// Reads services from the server: its own and three of the test.
pub(crate) fn services_are_read_and_no_events_written(world: &World, server: &Server<'_>) {
    let flags = format!("--migration --kubeconfig {}", server.kubeconfig());
    let report = Report::check(world, world.pins(), &flags).ends(0);
    report.has(NOTE, "room: 4 services");
    let reporters =
        server.kubectl("get events --all-namespaces -o=jsonpath={.items[*].reportingComponent}");
    assert!(!reporters.contains("portolan"), "{reporters}");
}

pub(crate) fn a_server_that_is_away_is_named(world: &World, kubeconfig: &str) {
    let flags = format!("--migration --kubeconfig {kubeconfig}");
    let output = run(world, world.pins(), &flags);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let words = "the cluster's services could not be listed in 30 s: API server";
    assert!(said.contains(words), "{said}");
    assert!(left_over(world).is_empty());
}
