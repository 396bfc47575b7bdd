// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections that IPVS has translated, set up as in kube-proxy's mode ipvs, are imported, so that
//! IPVS can go. Needs the module `ip_vs`, which `cargo xtask kernels` loads in its virtual
//! machines.

use super::{STREAMS, forget_the_other, have_ended, imported, outside, streams, translated};
use crate::{
    stream::{Stream, serve},
    world::World,
};

/// The device that has the address of every service under kube-proxy: IPVS acts on packets to the
/// node itself.
const DEVICE: &str = "link add kube-ipvs0 type dummy\naddress add 172.30.1.1/32 dev kube-ipvs0\n";
const SERVERS: &str = "-A -t 172.30.1.1:80 -s rr
-a -t 172.30.1.1:80 -r 10.40.1.20:8090 -m
-A -t 10.40.0.1:30001 -s rr
-a -t 10.40.0.1:30001 -r 10.40.1.20:8090 -m
";
/// Rules that masquerade node ports by a mark, as kube-proxy's sets of addresses do.
const MASQUERADE: &str = "add table ip other
add chain ip other services { type nat hook prerouting priority dstnat; }
add rule ip other services ip daddr 10.40.0.1 tcp dport 30001 meta mark set meta mark | 0x4000
add chain ip other leaving { type nat hook postrouting priority srcnat; }
add rule ip other leaving meta mark & 0x4000 == 0x4000 masquerade fully-random
";

#[test]
#[ignore = "needs the module ip_vs: `cargo xtask kernels` runs it where it is"]
fn connections_that_ipvs_has_translated_go_on_without_it() {
    let world = World::build();
    let node = world.node();
    serve(world.server(), STREAMS);
    let outside = outside(&world);
    world.ip(DEVICE);
    // kube-proxy sets these too: without them, nf_conntrack does not see how IPVS translates a
    // connection.
    node.set(&[("ipv4/vs/conntrack", "1"), ("ipv4/vs/conn_reuse_mode", "0")])
        .expect("IPVS: the module ip_vs");
    node.feed("ipvsadm", &["--restore"], SERVERS)
        .expect("virtual servers");
    world.nft(MASQUERADE);
    let clients = [
        (world.client(), "172.30.1.1:80"),
        (world.client(), "172.30.1.1:80"),
        (&outside, "10.40.0.1:30001"),
        (&outside, "10.40.0.1:30001"),
    ];
    let open = clients.map(|(pod, to)| Stream::connect(pod, to).expect("IPVS serves"));
    open.iter().for_each(Stream::speaks);
    let before = translated(&world);
    assert_eq!(before.len(), open.len(), "{before:?}");

    world.write("cart.yaml", streams());
    let agent = world.start(7);
    agent.says(&["imported connections", "connections=4", "left=\"0\""]);
    assert_eq!(imported(&agent), Some(4));
    open.iter().for_each(Stream::speaks);
    assert!(translated(&world).is_empty());

    world.tool("ipvsadm", "--clear");
    world.ip("link delete kube-ipvs0");
    forget_the_other(&world, "ip");
    open.iter().for_each(Stream::speaks);
    let all = world.flows();
    let masqueraded = all.iter().filter(|flow| flow.masquerade.is_some());
    assert_eq!((all.len(), masqueraded.count()), (4, 2), "{all:?}");
    open.into_iter().for_each(Stream::finish);
    have_ended(&world, &agent);
    for (pod, to) in clients {
        let new = Stream::connect(pod, to).expect("we serve");
        new.speaks();
        new.finish();
    }
}
