// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of socketExceptions, reserveNodePorts, session affinity, a restart, a changed setting and
//! cleanup.

use std::{
    collections::BTreeSet,
    fs,
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::Command,
};

use lab::node::{netns::NetNs, settings::SocketBalancing};
use proxy_common::Counter;
use rstest::rstest;

use crate::{
    clients::{Open, V4, ask, ask_connected, connected, datagrams},
    service::{Service, address, vip},
    world::{BINARY, From, PATIENCE, World},
};

#[test]
fn sockets_of_an_excepted_cgroup_use_the_packet_path() {
    let config = "portolan: {socketExceptions: ['*mesh*']}\n";
    let world = World::new(
        SocketBalancing::All,
        config,
        &[Service::new(1, "TCP", &[20, 21])],
    );
    let mesh = world.cgroup().below("some-mesh").expect("a cgroup");
    let inner = mesh.below("inner").expect("a cgroup");
    // The agent searches for new cgroups once a second.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    for (cgroup, flows) in [(&mesh, 1), (&inner, 2)] {
        let open = cgroup
            .inside(|| world.client().enter(|| Open::to(vip(1))))
            .expect("enter the cgroup")
            .expect("enter the pod")
            .expect("an answer");
        assert_eq!(open.answer.from, vip(1));
        assert_eq!((world.flows(), world.sockets().len()), (flows, 0));
    }
    let open = world.open(From::Pod, vip(1));
    assert_eq!(open.answer.from, vip(1));
    assert_eq!((world.flows(), world.sockets().len()), (2, 1));
    drop(inner);
}

/// The inner cluster has the same service addresses, in its own network namespaces.
#[rstest]
#[case::translated(SocketBalancing::All, "other", false)]
#[case::excepted(SocketBalancing::All, "inner-cluster", true)]
#[case::only_the_nodes_own_sockets(SocketBalancing::Host, "other", true)]
fn an_inner_cluster_reaches_its_own_services_if_hooks_skip_its_sockets(
    #[case] balancing: SocketBalancing,
    #[case] cgroup: &str,
    #[case] reached: bool,
) {
    let config = "portolan: {socketExceptions: [inner-cluster*]}\n";
    let world = World::new(balancing, config, &[Service::new(1, "TCP", &[20])]);
    let cgroup = world.cgroup().below(cgroup).expect("a cgroup");
    let pod = cgroup.below("pod").expect("a cgroup");
    // The agent searches for new cgroups once a second.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let inner = NetNs::new("inner").expect("a namespace");
    let batch = format!("link set lo up\naddress add {}/32 dev lo\n", vip(1).ip());
    inner.ip(&batch).expect("its address");
    let listener = inner.enter(|| TcpListener::bind(vip(1)));
    let _listener = listener.expect("the namespace").expect("a listener");
    let connected = pod.inside(|| inner.enter(|| TcpStream::connect_timeout(&vip(1), PATIENCE)));
    let connected = connected.expect("the cgroup").expect("the namespace");
    assert_eq!(connected.is_ok(), reached, "{connected:?}");
    drop(pod);
}

#[test]
fn a_node_process_cannot_bind_a_served_node_port_if_they_are_reserved() {
    let services = [Service::new(1, "TCP", &[20])];
    let world = World::new(
        SocketBalancing::All,
        "portolan: {reserveNodePorts: true}\n",
        &services,
    );
    let bind = |from, to: &str| {
        world
            .run(from, || TcpListener::bind(address(to)))
            .map_err(|error| error.raw_os_error())
    };
    let taken = Some(libc::EADDRINUSE);
    for to in ["0.0.0.0:30001", "[::]:30001", "192.168.40.2:30001"] {
        assert_eq!(bind(From::Node, to).expect_err("taken"), taken, "{to}");
        if !to.starts_with('1') {
            assert!(bind(From::Pod, to).is_ok(), "a pod's own port: {to}");
        }
    }
    assert!(bind(From::Node, "0.0.0.0:30002").is_ok(), "not served");
    let other_protocol = world.run(From::Node, || UdpSocket::bind("0.0.0.0:30001"));
    assert!(other_protocol.is_ok(), "served over TCP only");
    assert_eq!(world.count(Counter::BindRefused), 3);

    let world = World::all(&services);
    let free = world.run(From::Node, || TcpListener::bind("0.0.0.0:30001"));
    assert!(free.is_ok(), "off unless set");
}

#[rstest]
fn session_affinity_selects_the_same_backend_at_the_socket(
    #[values(From::Pod, From::Node)] from: From,
) {
    let service = Service {
        spec: "  sessionAffinity: ClientIP\n",
        ..Service::new(1, "TCP", &[20, 21])
    };
    let mut world = World::all(std::slice::from_ref(&service));
    let by = |world: &World| {
        let open = world.open(from, vip(1));
        open.answer.by
    };
    let first = by(&world);
    for _ in 0..20 {
        assert_eq!(by(&world), first);
    }
    let affinities = world.reader().affinities().expect("affinities");
    assert_eq!(affinities.len(), 1, "{affinities:?}");
    assert_eq!(affinities[0].status, "holds");
    let rest = if first == "one" { 21 } else { 20 };
    world.publish(&[Service {
        endpoints: vec![rest],
        ..service
    }]);
    assert_ne!(by(&world), first, "never a dead endpoint");
}

#[test]
fn a_changed_socket_balancing_breaks_no_open_connection() {
    let services = [
        Service::new(1, "TCP", &[20, 21]),
        Service::new(2, "UDP", &[20, 21]),
    ];
    let mut world = World::all(&services);
    let mut conversations = Vec::new();
    for balancing in [
        SocketBalancing::Host,
        SocketBalancing::All,
        SocketBalancing::Host,
    ] {
        // These connections begin before the restart, with the previous setting.
        let open = world.open(From::Pod, vip(1));
        let steady = world.run(From::Pod, || connected(V4, vip(2)));
        let steady_by = ask_connected(&steady).by;
        let loose = world.run(From::Pod, || datagrams(V4));
        let loose_by = ask(&loose, vip(2)).by;
        conversations.push((open, (steady, steady_by), (loose, loose_by)));
        world.restart(balancing);
        for (open, (steady, steady_by), (loose, loose_by)) in &mut conversations {
            assert!(open.is_alive(), "{balancing:?}");
            for _ in 0..5 {
                let answer = ask_connected(steady);
                assert_eq!((&answer.by, answer.from), (&*steady_by, vip(2)));
                let answer = ask(loose, vip(2));
                assert_eq!((&answer.by, answer.from), (&*loose_by, vip(2)));
            }
        }
    }
}

/// Returns name, id and program id of the pinned links of the socket hooks.
fn links(world: &World) -> BTreeSet<(String, u32, u32)> {
    let folder = datapath::maps::pins::links_dir(world.pins());
    let entries = fs::read_dir(folder).expect("the links");
    entries
        .map(|entry| {
            let path = entry.expect("a link").path();
            let link = linux::get_pinned(&path, false).expect("a link");
            let info = linux::link_info(&link).expect("a link");
            let name = path.file_name().expect("a name").to_string_lossy();
            (name.into_owned(), info.id, info.program)
        })
        .filter(|(name, ..)| name.starts_with("cgroup-"))
        .collect()
}

#[test]
fn a_restart_replaces_the_programs_behind_the_links_and_a_cleanup_removes_them() {
    let mut world = World::all(&[Service::new(1, "TCP", &[20, 21])]);
    let before = links(&world);
    assert_eq!(before.len(), 11);
    let mut open = world.open(From::Pod, vip(1));
    world.restart(SocketBalancing::All);
    let after = links(&world);
    for ((name, id, program), (_, new_id, new_program)) in before.iter().zip(&after) {
        assert_eq!(id, new_id, "{name} is the same link");
        assert_ne!(program, new_program, "{name} has another program");
    }
    assert!(open.is_alive());
    assert_eq!(open.stream.peer_addr().expect("a peer"), vip(1));
    assert!(!world.log().contains("WARN"), "{}", world.log());

    // A running agent would restore what cleanup removes.
    world.end();
    let cleaned = Command::new(BINARY)
        .args(["cleanup", "--pin-dir"])
        .arg(world.pins())
        .output()
        .expect("portolan cleanup");
    assert!(cleaned.status.success(), "{cleaned:?}");
    assert!(!world.pins().exists());
    let to: SocketAddr = vip(1);
    let unserved = world.run(From::Node, || Open::to(to));
    assert!(unserved.is_err(), "the hooks are gone");
    assert!(
        open.is_alive(),
        "what was translated at its socket lives on"
    );
}
