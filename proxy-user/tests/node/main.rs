// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agent as an operator meets it: started, restarted, given bad input, on a node of network
//! namespaces with two pods. Needs root and KUBEBUILDER_ASSETS.

mod cluster;
mod deploy;
#[path = "../support/mod.rs"]
mod support;
mod tunnel;
mod world;

use std::{
    fs,
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};

use portolan::datapath::{DatapathError, maps::pins::links_dir, read::Reader};
use support::foreign::{DROP, Foreign};
use world::{BINARY, World, node_object, service};

/// Longer than it takes to follow a change of the folder.
const FOLLOWED: Duration = Duration::from_millis(800);

#[test]
fn a_connection_outlives_the_agent_which_then_writes_only_the_difference() {
    let world = World::build();
    world.write("cart.yaml", &service("cart", "172.30.1.1"));
    world.write("gone.yaml", &service("gone", "172.30.1.2"));
    let first = world.start(7);
    let mut open = world.connect("172.30.1.1:80").expect("cart answers");
    assert!(world.connect("172.30.1.2:80").is_ok());
    assert_eq!(open.echo("before"), "before");

    assert!(first.stop().success(), "SIGTERM is a clean end");
    assert_eq!(open.echo("without an agent"), "without an agent");
    assert!(
        world.connect("172.30.1.1:80").is_ok(),
        "new ones work as well"
    );
    let second = world.start(7);
    assert_eq!(open.echo("after"), "after");
    let log = second.log();
    assert!(
        log.contains("ready planned=2 written=0"),
        "nothing to write: {log}"
    );
    drop(second);

    fs::remove_file(world.manifests().join("gone.yaml")).unwrap();
    let third = world.start(7);
    assert!(
        world.connect("172.30.1.2:80").is_err(),
        "what went meanwhile is gone"
    );
    assert_eq!(open.echo("at last"), "at last");
    assert!(!third.log().contains("WARN"), "{}", third.log());
}

#[test]
fn no_service_is_served_before_every_program_is_attached() {
    let world = World::build();
    world.write("cart.yaml", &service("cart", "172.30.1.1"));
    let manifests = world.manifests();
    let agent = world.spawn(&["--manifests", manifests.to_str().unwrap()]);
    let attached = || fs::read_dir(links_dir(world.pins())).unwrap().count();
    let deadline = Instant::now() + Duration::from_secs(20);
    let is_served = || Ok::<_, DatapathError>(!Reader::open(world.pins())?.frontends()?.is_empty());
    while !is_served().is_ok_and(|served| served) {
        assert!(Instant::now() < deadline, "{}", agent.log());
    }
    let then = attached();
    agent.wait_for(7);
    assert_eq!(then, attached());
    assert!(world.connect("172.30.1.1:80").is_ok());
}

#[test]
fn programs_of_others_see_every_packet_wherever_they_stand_in_the_chain() {
    let world = World::build();
    world.write("cart.yaml", &service("cart", "172.30.1.1"));
    let interface = world.client_interface();
    let answers = || ["172.30.1.1:80", "10.40.1.20:8080"].map(|to| world.connect(to).is_ok());
    let tcx = |egress| Foreign::tcx(world.node(), &interface, egress, DROP).expect("attaches");
    let clsact = |egress| Foreign::clsact(world.node(), &interface, egress, DROP).expect("added");
    let before = [false, true].map(tcx);
    let _agent = world.start(7);
    for (egress, program) in [false, true].into_iter().zip(before) {
        assert_eq!(
            answers(),
            [false; 2],
            "attached before the agent, egress {egress}"
        );
        drop(program);
    }
    for (by_tcx, egress) in [(true, false), (true, true), (false, false), (false, true)] {
        assert_eq!(answers(), [true; 2], "nobody drops");
        let program = if by_tcx { tcx(egress) } else { clsact(egress) };
        assert_eq!(
            answers(),
            [false; 2],
            "attached after the agent, egress {egress}, tcx {by_tcx}"
        );
        drop(program);
    }
    assert_eq!(answers(), [true; 2], "nobody drops any more");
}

#[test]
fn a_second_agent_on_the_same_pins_is_refused_and_the_first_goes_on() {
    let world = World::build();
    world.write("cart.yaml", &service("cart", "172.30.1.1"));
    let first = world.start(7);
    let (ended, said) = world.run(&["--healthz-bind-address", "127.0.0.1:10257"]);
    assert!(!ended.success());
    let holder = format!(
        "another portolan agent (pid {}) holds the pin directory",
        first.pid()
    );
    assert!(said.contains(&holder), "{said}");
    assert!(world.connect("172.30.1.1:80").is_ok());
}

#[test]
fn bad_objects_are_named_and_everything_else_keeps_working() {
    let world = World::build();
    world.write("cart.yaml", &service("cart", "172.30.1.1"));
    let agent = world.start(7);
    world.write(
        "cart.yaml",
        "apiVersion: v1\nkind: Service\nmetadata: {name: cart, na",
    );
    world.write(
        "deployment.yaml",
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: x}}",
    );
    world.write("twin.yaml", &service("twin", "172.30.1.1"));
    world.write("more.yaml", &service("more", "172.30.1.2"));
    sleep(FOLLOWED);
    assert!(
        world.connect("172.30.1.1:80").is_ok(),
        "the last good content holds"
    );
    assert!(
        world.connect("172.30.1.2:80").is_ok(),
        "a good file works beside bad ones"
    );
    let log = agent.log();
    for expected in [
        "cart.yaml, document 1, line 3: ",
        "its last good content stays in force, correct the file",
        "kind Deployment of apps/v1 is skipped",
        "Service shop/twin: cluster IP 172.30.1.1:80/TCP is already served for Service shop/cart",
    ] {
        assert_eq!(log.matches(expected).count(), 1, "{expected}: {log}");
    }
    world.write("node.yaml", &node_object(Some(8)));
    agent.wait_for(8);
    world.write("cart.yaml", &service("cart", "172.30.1.3"));
    sleep(FOLLOWED);
    assert!(
        world.connect("172.30.1.3:80").is_ok(),
        "a corrected file takes effect"
    );
    assert!(
        world.connect("172.30.1.1:80").is_ok(),
        "and leaves the address to the other service"
    );
}

#[test]
fn interfaces_and_addresses_are_followed() {
    let world = World::build();
    world.write("cart.yaml", &service("cart", "172.30.1.1"));
    let _agent = world.start(7);
    assert!(world.connect("192.168.44.2:30001").is_err());
    world.add_uplink("192.168.44.2/24");
    sleep(FOLLOWED);
    assert!(
        world.connect("192.168.44.2:30001").is_ok(),
        "a new address serves node ports"
    );
    world.replug_client();
    sleep(FOLLOWED);
    assert!(
        world.connect("172.30.1.1:80").is_ok(),
        "a pod that came later is served"
    );
}

#[test]
fn a_client_behind_a_device_without_link_layer_is_served_and_every_packet_logged() {
    let world = World::build();
    world.write("cart.yaml", &service("cart", "172.30.1.1"));
    let mut tunnel = world.add_tunnel("10.9.0.2");
    let agent = world.start_with(7, &["--log-packets"]);
    let mut asked = Vec::new();
    PacketBuilder::ipv4([10, 9, 0, 2], [172, 30, 1, 1], 64)
        .tcp(40000, 80, 1000, 65000)
        .syn()
        .write(&mut asked, &[])
        .expect("a packet");
    tunnel.send(&asked).expect("sent");
    let answer = tunnel
        .receive(|packet| packet[0] >> 4 == 4)
        .unwrap_or_else(|error| panic!("{error}: {}", agent.log()));
    let answer = SlicedPacket::from_ip(&answer).expect("an IP packet");
    let Some(etherparse::NetSlice::Ipv4(ip)) = &answer.net else {
        panic!("IPv4: {answer:?}")
    };
    let Some(TransportSlice::Tcp(tcp)) = &answer.transport else {
        panic!("TCP: {answer:?}")
    };
    assert_eq!(ip.header().source(), [172, 30, 1, 1]);
    assert_eq!(ip.header().destination(), [10, 9, 0, 2]);
    assert_eq!((tcp.source_port(), tcp.destination_port()), (80, 40000));
    assert!(tcp.syn() && tcp.ack(), "the pod accepts");
    assert_eq!(tcp.acknowledgment_number(), 1001);
    let expected = tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination());
    assert_eq!(tcp.checksum(), expected.expect("short enough"));
    sleep(FOLLOWED);
    let log = agent.log();
    for line in [
        "forwarded_new: TCP 10.9.0.2:40000 -> 172.30.1.1:80 at interface",
        "masqueraded: TCP 10.9.0.2:40000 -> 10.40.1.20:8080 at interface",
        "reply_translated: TCP 10.40.1.20:8080 -> 10.9.0.2:40000 at interface",
    ] {
        assert!(log.contains(line), "{line}: {log}");
    }
}

#[test]
fn what_becomes_of_packets_and_changes_is_measured() {
    let world = World::build();
    world.write("cart.yaml", &service("cart", "172.30.1.1"));
    let local = service("local", "172.30.1.2").replace(
        "type: NodePort,",
        "type: NodePort, externalTrafficPolicy: Local,",
    );
    world.write(
        "local.yaml",
        &local.replace("nodeName: node-a", "nodeName: node-b"),
    );
    let agent = world.start(7);
    assert!(world.connect("172.30.1.1:80").is_ok());
    // Longer than from one look at the maps to the next.
    sleep(Duration::from_millis(1500));
    let text = agent.metrics("/metrics");
    for line in [
        "portolan_services 2",
        "portolan_packets_total{outcome=\"socket_translated\"}",
        "portolan_map_entries{map=\"frontends_v4\"} 6",
        "portolan_map_capacity{map=\"frontends_v4\"} 131072",
        "kubeproxy_sync_proxy_rules_duration_seconds_count",
        "kubeproxy_sync_proxy_rules_no_local_endpoints{traffic_policy=\"external\"} 1",
        "kubeproxy_sync_proxy_rules_service_changes_total 2",
        "kubeproxy_proxy_healthz_total{code=\"200\"}",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(agent.metrics("/proxyMode"), "ebpf");
}

#[test]
fn an_agent_that_cannot_start_says_what_to_do() {
    let world = World::build();
    let folder = world.manifests();
    let elsewhere = folder.parent().unwrap().join("no-bpffs");
    let (_, said) = world.run(&["--pin-dir", elsewhere.to_str().unwrap()]);
    assert!(
        said.contains("is not on a BPF file system: mount one with"),
        "{said}"
    );

    let (_, said) = world.run(&["--node-ip", "10.0.0"]);
    assert!(
        said.contains("invalid value '10.0.0' for '--node-ip"),
        "{said}"
    );
    let (_, said) = world.run(&["--cluster-cidr", "10.40.0.0/33"]);
    assert!(
        said.contains("clusterCIDR: \"10.40.0.0/33\" is not an address range"),
        "{said}"
    );

    let powerless = Command::new("setpriv")
        .args([
            "--bounding-set=-all",
            "--inh-caps=-all",
            BINARY,
            "run",
            "--manifests",
        ])
        .arg(&folder)
        .arg("--pin-dir")
        .arg(world.pins())
        .output()
        .expect("setpriv of util-linux");
    let said = String::from_utf8_lossy(&powerless.stderr).into_owned();
    assert!(said.contains("not allowed to use BPF"), "{said}");
    assert!(said.contains("run portolan as root"), "{said}");

    for (missing, given) in [
        ("CAP_BPF", "+net_admin,+perfmon"),
        ("CAP_NET_ADMIN", "+bpf,+perfmon"),
        ("CAP_PERFMON", "+bpf,+net_admin"),
    ] {
        let bounds = format!("--bounding-set=-all,{given}");
        let agent = world.spawn_by(
            &["setpriv", &bounds, "--inh-caps=-all"],
            &["--manifests", folder.to_str().expect("a plain path")],
        );
        let said = agent.wait_for_end();
        assert!(
            said.contains(&format!("lacks {missing};")),
            "{missing}: {said}"
        );
    }

    let sourceless = Command::new(BINARY).arg("run").output().unwrap();
    let said = String::from_utf8_lossy(&sourceless.stderr).into_owned();
    assert!(
        said.contains(
            "no API server and no manifests given: pass the API server's own address with --master"
        ),
        "{said}"
    );
}

#[test]
fn a_drained_node_serves_what_it_served_and_nothing_new_until_that_has_ended() {
    let world = World::build();
    world.write("cart.yaml", &service("cart", "172.30.1.1"));
    // Other sizes than the default, which draining must find by itself.
    let config = world.folder().join("config.yaml");
    fs::write(&config, "portolan: {maps: {flows: 2048}}\n").expect("a config");
    let flags = ["--config", config.to_str().expect("a plain path")];
    let agent = world.start_with(7, &flags);
    let mut open = world.connect("172.30.1.1:80").expect("an answer");
    for _ in 0..5 {
        world.connect("172.30.1.1:80").expect("an answer");
    }
    // More than a table that is nearly empty holds.
    let others = [(); 80].map(|()| world.connect("172.30.1.1:80").expect("an answer"));
    let refused = world.cleanup(&["--drain"]).wait();
    assert!(!refused.expect("its end").success(), "an agent runs");
    assert!(agent.stop().success());

    let mut drain = world.cleanup(&["--drain"]);
    let deadline = Instant::now() + Duration::from_secs(10);
    while world.connect("172.30.1.1:80").is_ok() {
        assert!(Instant::now() < deadline, "new connections are not ours");
        sleep(Duration::from_millis(50));
    }
    for line in ["still here", "and still"] {
        assert_eq!(open.echo(line), line);
        sleep(Duration::from_secs(2));
    }
    let before = processor_time(drain.id());
    sleep(Duration::from_secs(1));
    let worked = processor_time(drain.id()) - before;
    assert!(
        worked < Duration::from_millis(500),
        "{worked:?} of a second"
    );
    drop(others);
    // What has ended would take another proxy's answers for its own.
    let flows = || Reader::open(world.pins())?.flows();
    let deadline = Instant::now() + Duration::from_secs(10);
    while flows().expect("readable").len() > 1 {
        assert!(Instant::now() < deadline, "{:?}", flows());
        sleep(Duration::from_millis(50));
    }
    assert!(drain.try_wait().expect("its state").is_none(), "it waits");
    drain.kill().expect("to be interrupted");
    drain.wait().expect("its end");
    // Whoever comes back finds everything.
    let agent = world.start_with(7, &flags);
    assert!(world.connect("172.30.1.1:80").is_ok(), "{}", agent.log());
    assert_eq!(open.echo("at last"), "at last");
    assert!(agent.stop().success());
}

/// Of a process's main thread.
fn processor_time(pid: u32) -> Duration {
    let times = fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("its times");
    let ran = times.split_whitespace().next().expect("the first of them");
    Duration::from_nanos(ran.parse().expect("nanoseconds"))
}

#[test]
fn a_drained_node_without_a_flow_is_left_without_a_trace() {
    let world = World::build();
    world.write("cart.yaml", &service("cart", "172.30.1.1"));
    assert!(world.start(7).stop().success());
    let ended = world.cleanup(&["--drain"]).wait().expect("its end");
    assert!(ended.success());
    assert!(!world.pins().exists());
    let again = world.cleanup(&["--drain"]).wait().expect("its end");
    assert!(again.success(), "nothing to do is no fault");
}

#[test]
fn what_another_proxy_has_translated_lives_on_beside_us() {
    let world = World::build();
    let rules = "add table ip other
add chain ip other services { type nat hook prerouting priority dstnat; }
add rule ip other services ip daddr 172.30.1.1 tcp dport 80 dnat to 10.40.1.20:8080
";
    let fed = world.node().feed("nft", &["-f", "-"], rules);
    fed.expect("rules");
    let mut open = world.connect("172.30.1.1:80").expect("the other serves");
    world.write("cart.yaml", &service("cart", "172.30.1.1"));
    let agent = world.start(7);
    for line in ["beside", "and beside"] {
        assert_eq!(open.echo(line), line, "{}", agent.log());
    }
    let mut ours = world.connect("172.30.1.1:80").expect("we serve");
    assert!(
        agent.log().contains("live on in nf_conntrack"),
        "{}",
        agent.log()
    );
    let flows = Reader::open(world.pins()).and_then(|reader| reader.flows());
    assert_eq!(flows.expect("flows").len(), 1, "only ours");
    assert_eq!(ours.echo("ours"), "ours");
    assert_eq!(open.echo("theirs"), "theirs");
}
