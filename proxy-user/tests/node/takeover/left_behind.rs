// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules and ended connections that another proxy has left do not harm connections through
//! portolan.

use std::{net::TcpStream, time::Duration};

use datapath::read::Reader;
use proxy_common::Settings;

use super::{STREAMS, outside, rules, streams};
use crate::{
    agent::eventually,
    stream::{Stream, serve},
    world::{World, at},
};

#[test]
fn a_new_connection_beside_old_masquerade_rules_survives_their_removal() {
    let world = World::build();
    serve(world.server(), STREAMS);
    let outside = outside(&world);
    world.nft(
        "add table ip kube-proxy
add chain ip kube-proxy masquerading { type nat hook postrouting priority srcnat; }
add rule ip kube-proxy masquerading meta mark & 0x4000 == 0x4000 masquerade fully-random
",
    );
    world.write("cart.yaml", streams());
    let agent = world.start(7);
    let open = Stream::connect(&outside, "10.40.0.1:30001").expect("we serve");
    open.speaks();
    let all = world.flows();
    assert!(all.iter().all(|flow| flow.masquerade.is_some()), "{all:?}");
    world.nft("delete table ip kube-proxy\n");
    open.speaks();
    eventually("the mark is what it was", &agent, || {
        let another = Stream::connect(&outside, "10.40.0.1:30001").expect("we serve");
        another.speaks();
        another.finish();
        let settings = Reader::open(world.pins()).and_then(|reader| reader.settings());
        !settings.expect("settings").has(Settings::OTHERS_MASQUERADE)
    });
    open.speaks();
    open.finish();
}

#[test]
fn a_connection_with_the_tuple_of_one_that_has_ended_is_served() {
    let world = World::build();
    serve(world.server(), STREAMS);
    world.nft(&rules(STREAMS));
    let [open, ended] = [(); 2]
        .map(|()| Stream::connect(world.client(), "172.30.1.1:80").expect("the other serves"));
    let port = ended.port();
    [&open, &ended].into_iter().for_each(Stream::speaks);
    ended.finish();
    world.write("cart.yaml", streams());
    let agent = world.start(7);
    agent.says(&["live on in nf_conntrack", "connections=2"]);
    // These rules track connections but translate nothing.
    let other = "delete table ip other
add table ip firewall
add chain ip firewall forward { type filter hook forward priority filter; }
add rule ip firewall forward ct state invalid counter
";
    world.nft(other);
    // A client that connects directly to the endpoint can get the source port of the ended
    // connection.
    let only = format!("{port} {port}");
    let set = world.client().set(&[("ipv4/ip_local_port_range", &only)]);
    set.expect("a setting of the pod's");
    let again = world
        .client()
        .enter(|| TcpStream::connect_timeout(&at(STREAMS), Duration::from_secs(3)));
    again.expect("the pod").expect("no SYN is dropped");
    open.speaks();
    open.finish();
}
