// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of socketExceptions, a restart, a changed setting and cleanup.

use std::{
    collections::BTreeSet,
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    process::Command,
};

use lab::node::{netns::NetNs, settings::SocketBalancing};
use proxy_common::Counter;

use crate::{
    clients::{Open, V4, ask, connected, datagrams},
    service::{Service, vip},
    world::{BINARY, From, PATIENCE, World},
};

#[test]
fn sockets_of_an_excepted_cgroup_use_the_packet_path() {
    let config = "portolan:
  socketExceptions: ['*mesh*']
  maps: {memory: 1, sockets: 16}
";
    let both = Service::new(1, "TCP", &[20, 21]);
    let services = [both, Service::new(2, "UDP", &[21])];
    let world = World::new(config, &services);
    a_full_table_of_sockets_is_counted(&world);
    let mesh = world.cgroup.below("some-mesh").expect("a cgroup");
    let inner = mesh.below("inner").expect("a cgroup");
    // The agent searches for new cgroups once a second.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    for (cgroup, flows) in [(&mesh, 1), (&inner, 2)] {
        let open = cgroup.inside(|| world.namespace(From::Pod).enter(|| Open::to(vip(1))));
        let open = open.expect("the cgroup").expect("the pod");
        let open = open.expect("an answer");
        assert_eq!(open.answer.from, vip(1));
        assert_eq!((world.flows(), world.sockets().len()), (flows, 0));
    }
    let open = world.open(From::Pod, vip(1));
    assert_eq!(open.answer.from, vip(1));
    assert_eq!((world.flows(), world.sockets().len()), (2, 1));

    // An inner cluster has the same service addresses, in its own network namespaces. It reaches
    // its own services where the hooks leave its sockets alone.
    let other = world.cgroup.below("other").expect("a cgroup");
    let namespace = NetNs::new("inner").expect("a namespace");
    let batch = format!("link set lo up\naddress add {}/32 dev lo\n", vip(1).ip());
    namespace.ip(&batch).expect("its address");
    let listener = namespace.enter(|| TcpListener::bind(vip(1)));
    let _listener = listener.expect("the namespace").expect("a listener");
    for (cgroup, reached) in [(&other, false), (&inner, true)] {
        let connect = || TcpStream::connect_timeout(&vip(1), PATIENCE);
        let connected = cgroup.inside(|| namespace.enter(connect));
        let connected = connected.expect("the cgroup").expect("the namespace");
        assert_eq!(connected.is_ok(), reached, "{connected:?}");
    }
    drop(inner);
}

/// Each loopback address with the node port is a frontend of its own.
fn a_full_table_of_sockets_is_counted(world: &World) {
    let socket = world.run(From::Node, || datagrams(V4));
    for last in 1..=40 {
        let to = SocketAddr::from(([127, 0, 0, last], 30_002));
        socket.send_to(b"?", to).expect("translated all the same");
    }
    assert!(world.count(Counter::SocketTableFull) > 0);
    drop(socket);
    world.expect_no_socket();
}

/// Returns name, id and program id of the pinned links of the socket hooks.
fn links(world: &World) -> BTreeSet<(String, u32, u32)> {
    let folder = datapath::maps::pins::links_dir(world.agent.pin_dir());
    let entries = fs::read_dir(folder).expect("the links").flatten();
    let links = entries.map(|entry| {
        let link = linux::get_pinned(&entry.path(), false).expect("a link");
        let info = linux::link_info(&link).expect("a link");
        let name = entry.file_name().into_string().expect("UTF-8");
        (name, info.id, info.program)
    });
    BTreeSet::from_iter(links.filter(|(name, ..)| name.starts_with("cgroup-")))
}

#[test]
fn a_changed_setting_breaks_no_open_connection_and_a_cleanup_removes_all() {
    let services = [(1, "TCP"), (2, "UDP")].map(|(n, name)| Service::new(n, name, &[20, 21]));
    let mut world = World::new("", &services);
    let mut conversations = Vec::new();
    for (balancing, before) in [
        (SocketBalancing::Host, SocketBalancing::All),
        (SocketBalancing::All, SocketBalancing::Host),
        (SocketBalancing::Host, SocketBalancing::All),
    ] {
        let flows = world.flows();
        // These connections begin before the restart, with the previous setting.
        let open = world.open(From::Pod, vip(1));
        let by_packet = usize::from(before == SocketBalancing::Host);
        assert_eq!(world.flows() - flows, by_packet, "a pod's: {before:?}");
        let steady = world.run(From::Pod, || connected(V4, vip(2)));
        let steady_by = ask(&steady, None).by;
        let loose = world.run(From::Pod, || datagrams(V4));
        let loose_by = ask(&loose, vip(2)).by;
        conversations.push((open, (steady, steady_by), (loose, loose_by)));
        let before = links(&world);
        assert_eq!(before.len(), 9);
        world.restart(balancing);
        for ((name, id, program), (_, new_id, new_program)) in before.iter().zip(&links(&world)) {
            assert_eq!(id, new_id, "{name} is the same link");
            assert_ne!(program, new_program, "{name} has another program");
        }
        for (open, (steady, steady_by), (loose, loose_by)) in &mut conversations {
            assert!(open.is_alive(), "{balancing:?}");
            assert_eq!(open.stream.peer_addr().expect("a peer"), vip(1));
            for _ in 0..5 {
                let answer = ask(steady, None);
                assert_eq!((answer.by, answer.from), (*steady_by, vip(2)));
                let answer = ask(loose, vip(2));
                assert_eq!((answer.by, answer.from), (*loose_by, vip(2)));
            }
        }
    }
    let (flows, sockets) = (world.flows(), world.sockets().len());
    let nodes = world.open(From::Node, vip(1));
    assert_eq!(nodes.answer.from, vip(1));
    // The node's are translated at the socket.
    let now = (world.flows(), world.sockets().len());
    assert_eq!(now, (flows, sockets + 1));
    let log = world.agent.log_tail(50).join("\n");
    assert!(!log.contains("WARN"), "{log}");

    // A running agent would restore what cleanup removes.
    world.agent.end();
    let pins = world.agent.pin_dir();
    let mut cleanup = Command::new(BINARY);
    let cleaned = cleanup.args(["cleanup", "--pin-dir"]).arg(pins).output();
    let cleaned = cleaned.expect("portolan cleanup");
    assert!(cleaned.status.success(), "{cleaned:?}");
    assert!(!pins.exists());
    let unserved = world.run(From::Node, || Open::to(vip(1)));
    assert!(unserved.is_err(), "the hooks are gone");
    let (open, ..) = &mut conversations[0];
    assert!(open.is_alive(), "it was translated at its socket");
}
