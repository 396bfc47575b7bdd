// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The source address of masqueraded connections: whatever addresses an interface has, portolan
//! selects the same source address as an nft rule `masquerade`.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use control::testing::rows;
use lab::{
    node::netns::NetNs,
    traffic::{clients::Client, probe::Outcome, servers::Servers},
};
use proxy_common::Protocol;

use crate::{
    agent::holds,
    connection::Open,
    objects::{Service, endpoint, node_object},
    world::{NODE_PORT, OF_V6, World, any, at},
};

/// A time in which the agent applies a change.
const PATIENCE: Duration = Duration::from_secs(20);

/// The port at which an nft rule masquerades connections straight to the endpoint.
const RULED: u16 = 8081;
const SERVED: u16 = 8080;

/// The client's address as the server sees it.
fn seen(pod: &NetNs, to: SocketAddr) -> Option<IpAddr> {
    let client = Client {
        patience: Duration::from_secs(2),
        ..Client::new(pod, any(to.is_ipv6()))
    };
    match client.call(Protocol::TCP, to, 0).ok()?.outcome {
        Outcome::Answered(answer) => Some(answer.seen.ip()),
        _ => None,
    }
}

/// A line for each case: its name, the arguments of `ip address add` for the uplink in their order,
/// further commands without the word `ip`, the endpoint, and the source address that portolan and
/// the nft rule must select, which guards the test itself. The addresses alone select in the unit
/// tests of proxy-common/src/masquerade/source.rs.
const V4: &str = include_str!("masquerade_v4.txt");
const V6: &str = include_str!("masquerade_v6.txt");

/// Gives the node the addresses of each case in turn, and compares both source addresses.
fn compare(world: &World, node_port: &str, table: &str) {
    let v6 = node_port.starts_with('[');
    let (there, cluster_ip, nodad) = match v6 {
        true => (
            "far 2001:db8:1::9/128 2001:db8:2::9/128 fd00:77::9/128 fd99::9/128 2400:9::9/128",
            "fd00:30::1",
            "nodad",
        ),
        false => (
            "far 192.168.50.9/32 192.168.77.9/32 203.0.113.9/32 10.9.0.9/32",
            "172.30.1.1",
            "",
        ),
    };
    let beyond = world.host("uplink", there);
    let all = if v6 { "::/0" } else { "default" };
    let route = beyond.ip(&format!("route add {all} dev far\n"));
    route.expect("a route");
    let servers = Servers::start().expect("servers");
    let listening = [RULED, SERVED].map(|port| {
        let listening = servers.listen(&beyond, Protocol::TCP, (any(v6), port).into());
        listening.expect("a server")
    });
    world.nft(&format!(
        "add table inet ruled
add chain inet ruled post {{ type nat hook postrouting priority srcnat; }}
add rule inet ruled post tcp dport {RULED} masquerade
"
    ));
    let agent = world.start();
    for [name, addresses, routes, to, expected] in rows(table) {
        let [to, expected] = [to, expected].map(|ip| ip.parse::<IpAddr>().expect("an address"));
        let routes: Vec<_> = routes.split_terminator(", ").collect();
        for address in addresses.split(", ") {
            world.ip(&format!("address add {address} dev uplink {nodad}"));
        }
        world.ip(&routes.join("\n"));
        let far = Service::new("far", cluster_ip).endpoints(vec![endpoint(&to.to_string())]);
        world.publish(far.on("elsewhere"));
        let ruled = seen(&world.client, (to, RULED).into());
        assert_eq!(ruled, Some(expected), "by the rule: {name}");
        let mut last = None;
        holds(PATIENCE, &name, || {
            last = seen(&world.client, at(node_port));
            last == Some(expected)
        });
        assert_eq!(last, Some(expected), "{name}: {}", agent.log());
        let undo = routes.iter().rev();
        let undo = undo.map(|route| route.replace(" add ", " del ") + "\n");
        world.ip(&(undo.collect::<String>() + "address flush dev uplink scope global"));
        if !v6 {
            world.ip("address flush dev uplink scope link");
        }
    }
    drop(listening);
}

#[test]
fn an_ipv4_masquerade_source_equals_that_of_nft_masquerade() {
    compare(&World::build(), NODE_PORT, V4);
}

#[test]
fn an_ipv6_masquerade_source_equals_that_of_nft_masquerade() {
    let world = World::with_pods(OF_V6);
    world.write("node.yaml", node_object(&[OF_V6[0]], 7));
    compare(&world, "[fd00:c0::1]:30001", V6);
}

/// The programs look up an interface with many possible clients by its index modulo 4,096.
#[test]
fn uplinks_with_equal_indices_modulo_4096_keep_their_connections() {
    let world = World::serving();
    // Otherwise the wires would answer ARP requests for the uplinks' addresses.
    world.set("ipv4/conf/all/arp_ignore", "1");
    let hosts = [0, 1, 2].map(|n| {
        let host = world.host(&format!("wire{n}"), &format!("eth0 192.168.{n}.2/24"));
        let index = 5000 + n * 4096;
        world.ip(&format!(
            "link add link wire{n} name uplink{n} index {index} type macvlan mode bridge\n\
             address add 192.168.{n}.1/24 dev uplink{n}\nlink set uplink{n} up"
        ));
        let route = host.ip(&format!("route add default via 192.168.{n}.1\n"));
        route.expect("a route");
        host
    });
    // The uplinks are macvlan devices on the wires.
    let agent = world.start_configured("portolan: {interfaces: ['!wire*']}\n");
    let connect = |host| {
        Open::connect(host, NODE_PORT).unwrap_or_else(|error| {
            panic!("{error}: {}", agent.log());
        })
    };
    let mut open = hosts.each_ref().map(connect);
    world.ip("link del uplink1");
    for n in [0, 2, 0, 2] {
        assert_eq!(open[n].echo("still there"), "still there");
        drop(connect(&hosts[n]));
    }
}
