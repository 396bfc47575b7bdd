// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The source address of masqueraded connections: whatever addresses an interface has, portolan
//! selects the same source address as an nft rule `masquerade`.

use std::{
    cell::Cell,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use lab::node::netns::NetNs;

use crate::{
    agent::wait,
    connection::Open,
    objects::{Service, endpoint, node_with},
    world::{OF_V6, World, at},
};

/// A time in which the agent applies a change.
const PATIENCE: Duration = Duration::from_secs(20);

/// The port at which an nft rule masquerades connections straight to the endpoint.
const RULED: u16 = 8081;
const SERVED: u16 = 8080;

/// Starts a server that tells each client its address.
fn tell(at: &NetNs, port: u16) {
    let any: SocketAddr = ([0_u16; 8], port).into();
    let listener = at.enter(|| TcpListener::bind(any));
    let listener = listener.expect("enter the host").expect("a listener");
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let peer = client.peer_addr().expect("its address").ip().to_canonical();
            _ = client.write_all(peer.to_string().as_bytes());
        }
    });
}

/// The client's address as the server sees it.
fn seen(pod: &NetNs, to: SocketAddr) -> Option<IpAddr> {
    let connected = pod.enter(|| TcpStream::connect_timeout(&to, Duration::from_secs(2)));
    let mut stream = connected.expect("enter the pod").ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    text.parse().ok()
}

/// A case.
struct Case<'a> {
    name: &'a str,
    /// The arguments of `ip address add` for the uplink, in this order.
    addresses: Vec<&'a str>,
    /// Further commands, without the word `ip`.
    routes: Vec<&'a str>,
    endpoint: &'a str,
    /// The source address that portolan and the nft rule must select; it guards the test itself.
    expected: IpAddr,
}

/// A line for each case, with the fields of [`Case`].
const V4: &str = "\
one address | 192.168.50.11/24 | | 192.168.50.9 | 192.168.50.11
the second subnet | 192.168.50.11/24, 192.168.77.11/24 | | 192.168.77.9 | 192.168.77.11
a secondary address of the second subnet | 192.168.50.11/24, 192.168.77.11/24, 192.168.77.12/24 \
| | 192.168.77.9 | 192.168.77.11
a virtual address that is listed first | 192.168.50.100/32, 192.168.50.11/24 \
| | 192.168.50.9 | 192.168.50.11
many virtual addresses before | 192.168.50.101/32, 192.168.50.102/32, 192.168.50.103/32, \
192.168.50.104/32, 192.168.50.105/32, 192.168.50.106/32, 192.168.50.107/32, 192.168.50.108/32, \
192.168.50.109/32, 192.168.50.11/24 | | 192.168.50.9 | 192.168.50.11
beyond a gateway in the second subnet | 192.168.50.11/24, 192.168.77.11/24 \
| route add 203.0.113.0/24 via 192.168.77.9 | 203.0.113.9 | 192.168.77.11
in one subnet, beyond a gateway in the other | 192.168.50.11/24, 192.168.77.11/24 \
| route add 192.168.50.9/32 via 192.168.77.9 | 192.168.50.9 | 192.168.77.11
a route with a source of its own, which MASQUERADE does not ask for \
| 192.168.50.11/24, 192.168.77.11/24 \
| route add 203.0.113.0/24 via 192.168.77.9 src 192.168.50.11 | 203.0.113.9 | 192.168.77.11
a gateway by the client's address | 192.168.50.11/24, 192.168.77.11/24 \
| route add 203.0.113.0/24 via 192.168.50.9, route add 203.0.113.0/24 via 192.168.77.9 table 77, \
rule add from 10.40.1.10 lookup 77 | 203.0.113.9 | 192.168.77.11
a gateway that fits no subnet | 192.168.50.11/24, 192.168.77.11/24 \
| route add 203.0.113.9/32 dev uplink | 203.0.113.9 | 192.168.50.11
the other end of a point-to-point address | 192.168.50.11/24, 10.9.0.1 peer 10.9.0.9/32 \
| | 10.9.0.9 | 10.9.0.1
an address of a smaller scope | 192.168.50.11/24 scope link, 192.168.77.11/24 \
| | 192.168.50.9 | 192.168.77.11";

const V6: &str = "\
one address | 2001:db8:1::11/64 | | 2001:db8:1::9 | 2001:db8:1::11
the first of two prefixes | 2001:db8:1::11/64, 2001:db8:2::11/64 \
| | 2001:db8:1::9 | 2001:db8:1::11
the second of two prefixes | 2001:db8:1::11/64, 2001:db8:2::11/64 \
| | 2001:db8:2::9 | 2001:db8:2::11
a local destination | fd00:77::11/64, 2001:db8:1::11/64 \
| route add fd99::/64 via 2001:db8:1::9 | fd99::9 | fd00:77::11
a global destination | 2001:db8:1::11/64, fd00:77::11/64 \
| route add 2400:9::/64 via fd00:77::9 | 2400:9::9 | 2001:db8:1::11
the newest is deprecated | 2001:db8:1::11/64, 2001:db8:1::12/64 preferred_lft 0 \
| | 2001:db8:1::9 | 2001:db8:1::11";

fn cases(table: &str) -> impl Iterator<Item = Case<'_>> {
    table.lines().map(|line| {
        let fields: Vec<_> = line.split('|').map(str::trim).collect();
        let [name, addresses, routes, endpoint, expected] = fields[..] else {
            panic!("five fields: {line}")
        };
        Case {
            name,
            addresses: addresses.split(", ").collect(),
            routes: routes.split_terminator(", ").collect(),
            endpoint,
            expected: expected.parse().expect("an address"),
        }
    })
}

/// Gives the node the addresses of each case in turn, and compares both source addresses.
fn compare(world: &World, node_port: &str, table: &str) {
    let beyond = NetNs::new("beyond").expect("run as root");
    world.ip(&format!(
        "link add uplink type veth peer name far netns {}\nlink set uplink up",
        beyond.path()
    ));
    let v6 = node_port.starts_with('[');
    let there: &[&str] = if v6 {
        &[
            "2001:db8:1::9",
            "2001:db8:2::9",
            "fd00:77::9",
            "fd99::9",
            "2400:9::9",
        ]
    } else {
        &["192.168.50.9", "192.168.77.9", "203.0.113.9", "10.9.0.9"]
    };
    let (nodad, length, all) = match v6 {
        true => ("nodad", 128, "::/0"),
        false => ("", 32, "default"),
    };
    let mut script = String::from("link set lo up\nlink set far up\n");
    for address in there {
        script += &format!("address add {address}/{length} dev far {nodad}\n");
    }
    script += &format!("route add {all} dev far\n");
    beyond.ip(&script).expect("its addresses");
    tell(&beyond, RULED);
    tell(&beyond, SERVED);
    world.nft(&format!(
        "add table inet ruled
add chain inet ruled post {{ type nat hook postrouting priority srcnat; }}
add rule inet ruled post tcp dport {RULED} masquerade
"
    ));
    let agent = world.start(7);
    let cluster_ip = if v6 { "fd00:30::1" } else { "172.30.1.1" };
    for case in cases(table) {
        for address in &case.addresses {
            world.ip(&format!("address add {address} dev uplink {nodad}"));
        }
        world.ip(&case.routes.join("\n"));
        let mut far = endpoint(case.endpoint);
        far.node_name = None;
        world.write(
            "far.yaml",
            Service::new("far", cluster_ip).endpoints(vec![far]),
        );
        let endpoint: IpAddr = case.endpoint.parse().expect("an address");
        let ruled = seen(world.client(), (endpoint, RULED).into());
        assert_eq!(ruled, Some(case.expected), "by the rule: {}", case.name);
        let last = Cell::new(None);
        let state = || {
            format!(
                "{:?} and not {}: {}",
                last.get(),
                case.expected,
                agent.log()
            )
        };
        wait(PATIENCE, case.name, state, || {
            last.set(seen(world.client(), at(node_port)));
            last.get() == Some(case.expected)
        });
        let undo = case.routes.iter().rev();
        let undo = undo.map(|route| route.replace(" add ", " del ") + "\n");
        world.ip(&(undo.collect::<String>() + "address flush dev uplink scope global"));
        if !v6 {
            world.ip("address flush dev uplink scope link");
        }
    }
}

#[test]
fn an_ipv4_masquerade_source_equals_that_of_nft_masquerade() {
    compare(&World::build(), "10.40.0.1:30001", V4);
}

#[test]
fn an_ipv6_masquerade_source_equals_that_of_nft_masquerade() {
    let world = World::build_without_v4();
    world.write("node.yaml", node_with(&[OF_V6[0]], Some(7)));
    compare(&world, "[fd00:c0::1]:30001", V6);
}

/// The programs look up an interface with many possible clients by its index modulo 4,096.
#[test]
fn uplinks_with_equal_indices_modulo_4096_keep_their_connections() {
    let world = World::serving();
    // Otherwise the wires would answer ARP requests for the uplinks' addresses.
    world.set("ipv4/conf/all/arp_ignore", "1");
    let hosts = [0, 1, 2].map(|n| {
        let host = NetNs::new("host").expect("run as root");
        let index = 5000 + n * 4096;
        world.ip(&format!(
            "link add wire{n} type veth peer name eth0 netns {}\nlink set wire{n} up\n\
             link add link wire{n} name uplink{n} index {index} type macvlan mode bridge\n\
             address add 192.168.{n}.1/24 dev uplink{n}\nlink set uplink{n} up",
            host.path()
        ));
        host.ip(&format!(
            "address add 192.168.{n}.2/24 dev eth0\nlink set eth0 up\nroute add default via 192.168.{n}.1\n"
        ))
        .expect("a host beyond it");
        host
    });
    // The uplinks are macvlan devices on the wires.
    let agent = world.start_configured(7, "portolan: {interfaces: ['!wire*']}\n");
    let connect = |host| {
        Open::connect(host, "10.40.0.1:30001").unwrap_or_else(|error| {
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
