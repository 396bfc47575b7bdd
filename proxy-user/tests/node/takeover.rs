// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections that another proxy has translated go on when its rules are gone, and what it has
//! left does not harm others: real nft rules, real nf_conntrack.

use std::{
    net::{TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use datapath::read::Reader;
use lab::node::netns::NetNs;
use proxy_common::Settings;

use crate::{
    connection::{Talk, answer_questions, asking, asking_at, serve},
    objects::{Service, endpoint, questions},
    world::{CART, NODE_PORT, SERVER, World, at},
};

/// The address and port of the server; `OUTSIDE` is the address of the client outside.
const SERVED: &str = "10.40.1.20:8090";
const OUTSIDE: &str = "10.9.0.2";
const ENDED: &str = "the last connection that another proxy had translated";
/// The table that keeps translating.
const OURS: &str = "table inet portolan";

/// The service `cart` at that port, with node port 30001.
fn cart() -> Service {
    Service::new("cart", "172.30.1.1").target(8090)
}

/// Rules like kube-proxy's, as far as they concern open connections: NAT to `to`, and masquerade at
/// a random source port for clients that are no pods and for packets with its mark.
fn rules(to: &str) -> String {
    include_str!("takeover.nft").replace("TO", to)
}

/// Returns a client outside, behind a VXLAN tunnel that carries many clients.
fn outside(world: &World) -> NetNs {
    let outside = world.host("far0 10.8.0.1/24", "eth0 10.8.0.2/24");
    let tunnel = |local: &str, remote: &str, dev: &str, own: &str| {
        format!(
            "link add vx0 type vxlan id 7 dstport 4789 local {local} remote {remote} dev {dev}\nlink set vx0 up\naddress add {own}/24 dev vx0\n"
        )
    };
    world.ip(&tunnel("10.8.0.1", "10.8.0.2", "far0", "10.9.0.1"));
    let batch = tunnel("10.8.0.2", "10.8.0.1", "eth0", OUTSIDE);
    let ran = outside.ip(&(batch + "route add 10.40.0.1/32 via 10.9.0.1\n"));
    ran.expect("a tunnel");
    outside
}

#[test]
fn connections_of_another_proxy_go_on_without_its_rules() {
    let world = World::build();
    let node = world.node();
    serve(&world.server, SERVED);
    serve(&world.server, "10.40.1.20:8099");
    let outside = outside(&world);
    let [client6, server6] = ["fd00:40:1::10", "fd00:40:1::20"].map(|ip| world.pod(ip));
    serve(&server6, "[fd00:40:1::20]:8090");
    let by = world.interface_to(SERVER);
    world.ip(&format!("route add 172.30.1.1/32 dev {by} src 10.40.0.1"));
    node.set(&[("netfilter/nf_conntrack_tcp_timeout_time_wait", "1")])
        .expect("nf_conntrack");
    // The service has no such endpoint any more.
    world.nft(&rules("10.40.1.20:8099"));
    let gone = Talk::begin(&world.client, CART);
    let mut text = rules(SERVED);
    text += include_str!("takeover_more.nft");
    world.nft(&text);
    let clients = [
        (&world.client, CART),
        (&outside, NODE_PORT),
        (node, CART),
        (&client6, "[fd00:30::1]:80"),
    ];
    let open = clients.map(|(pod, to)| Talk::begin(pod, to));
    let open: Vec<_> = open.into_iter().chain([gone]).collect();
    open.iter().for_each(Talk::goes_on);

    world.publish(cart());
    let six = Service::new("six", "fd00:30::1").target(8090);
    world.publish(six.endpoints(vec![endpoint("fd00:40:1::20")]));
    let agent = world.start();
    agent.says(&["live on in nf_conntrack", "connections=5", "may go"]);
    open.iter().for_each(Talk::goes_on);
    let tables = || world.tool("nft", "list tables");
    assert!(tables().contains(OURS), "{}", tables());
    // From now on nothing but this table translates, or asks for tracking.
    world.nft("delete table ip other\ndelete table ip6 other\n");
    // The hooks of forwarded packets are looked at every 5 s.
    for _ in 0..7 {
        open.iter().for_each(Talk::goes_on);
        thread::sleep(Duration::from_secs(1));
    }
    assert_eq!(world.flows().len(), 0, "{:?}", world.flows());
    let new = Talk::begin(&outside, NODE_PORT);
    new.goes_on();
    new.finish();
    assert!(!agent.log().contains(ENDED));
    // Another one's NAT, whose connection stays, is no reason to keep the table.
    world.nft(
        "add table ip cni
add chain ip cni leaving { type nat hook postrouting priority srcnat; }
add rule ip cni leaving ip saddr 10.40.0.0/16 masquerade
",
    );
    serve(&outside, "10.9.0.2:8090");
    let leaving = Talk::begin(&world.client, "10.9.0.2:8090");
    open.into_iter().for_each(Talk::finish);
    agent.logs(ENDED);
    assert!(!tables().contains(OURS), "{}", tables());
    leaving.finish();
}

#[test]
fn no_connection_gets_the_tuple_of_one_that_another_proxy_has_translated() {
    let world = World::build();
    serve(&world.server, SERVED);
    let outside = outside(&world);
    let few = "meta l4proto tcp masquerade to :40000-40003";
    world.nft(&rules(SERVED).replace("masquerade fully-random", few));
    let connect = |()| Talk::begin(&outside, NODE_PORT);
    let masqueraded = [(); 4].map(connect);
    let [open, ended] = [(); 2].map(|()| Talk::begin(&world.client, CART));
    let port = ended.port;
    [&open, &ended].into_iter().for_each(Talk::goes_on);
    ended.finish();
    world.publish(cart());
    let agent = world.start_configured("portolan: {masqueradePorts: [40000-40007]}\n");
    agent.says(&["live on in nf_conntrack", "connections=6"]);
    // These rules track connections but translate nothing.
    let other = "delete table ip other
add table ip firewall
add chain ip firewall forward { type filter hook forward priority filter; }
add rule ip firewall forward ct state invalid counter
";
    world.nft(other);
    let new = [(); 4].map(connect);
    // A client that connects directly to the endpoint can get the ended connection's source port.
    let only = format!("{port} {port}");
    let set = world.client.set(&[("ipv4/ip_local_port_range", &only)]);
    set.expect("a setting of the pod's");
    let connect = || TcpStream::connect_timeout(&at(SERVED), Duration::from_secs(3));
    let again = world.client.enter(connect);
    again.expect("the pod").expect("no SYN is dropped");
    let all = || masqueraded.iter().chain(&new).chain([&open]);
    all().for_each(Talk::goes_on);
    all().for_each(Talk::goes_on);
    let all = masqueraded.into_iter().chain(new).chain([open]);
    all.for_each(Talk::finish);
}

#[test]
fn datagrams_are_answered_before_and_after_the_other_proxys_rules_go() {
    let world = World::build();
    answer_questions(&world.server);
    let outside = outside(&world);
    world.nft(include_str!("takeover_datagrams.nft"));
    let inside = [(); 5].map(|()| asking(&world.client));
    let from_outside = [(); 3].map(|()| asking_at(&outside, "10.40.0.1:30053"));
    let all: Vec<_> = inside.iter().chain(&from_outside).collect();
    let answers = |one: &UdpSocket| {
        one.send(b"?").expect("sent");
        one.recv(&mut [0]).is_ok()
    };
    for one in &all {
        let patience = Some(Duration::from_secs(1));
        one.set_read_timeout(patience).expect("a time limit");
        // The first question can be lost during neighbour resolution.
        assert!((0..5).any(|_| answers(one)), "the other serves");
    }
    world.publish(questions().ports(&[("", "UDP", 53, Some(30053))]));
    let agent = world.start();
    let lost = || all.iter().filter(|one| !answers(one)).count();
    let before = lost();
    agent.says(&["live on in nf_conntrack"]);
    world.nft("delete table ip other\n");
    let after = [(); 3].map(|()| lost());
    assert_eq!((before, after), (0, [0; 3]), "{}", agent.log());
}

#[test]
fn a_new_connection_beside_old_masquerade_rules_survives_their_removal() {
    let world = World::build();
    serve(&world.server, SERVED);
    let outside = outside(&world);
    world.nft(
        "add table ip kube-proxy
add chain ip kube-proxy masquerading { type nat hook postrouting priority srcnat; }
add rule ip kube-proxy masquerading meta mark & 0x4000 == 0x4000 masquerade fully-random
",
    );
    world.publish(cart());
    let agent = world.start();
    let open = Talk::begin(&outside, NODE_PORT);
    open.goes_on();
    let all = world.flows();
    assert!(all.iter().all(|flow| flow.masquerade.is_some()), "{all:?}");
    world.nft("delete table ip kube-proxy\n");
    open.goes_on();
    agent.eventually("the mark is what it was", || {
        let another = Talk::begin(&outside, NODE_PORT);
        another.goes_on();
        another.finish();
        let settings = Reader::open(world.pins()).and_then(|reader| reader.settings());
        !settings.expect("settings").has(Settings::OTHERS_MASQUERADE)
    });
    open.goes_on();
    open.finish();
}
