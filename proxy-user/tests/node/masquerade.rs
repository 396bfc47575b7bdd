// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The source address of masqueraded connections: for all addresses that an interface can have, it
//! is the one that an nft rule `masquerade` gives to the same packet.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use lab::node::netns::NetNs;

use crate::{connection::Open, objects, without_v4::node, world::World};

/// A time that is longer than the agent needs to follow a change.
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

struct Case {
    name: &'static str,
    /// The arguments of `ip address add` for the uplink, in this order.
    addresses: &'static [&'static str],
    /// Further commands, without the word `ip`.
    routes: &'static [&'static str],
    endpoint: &'static str,
    /// The address that both must give; it guards the test itself.
    expected: &'static str,
}

const V4: &[Case] = &[
    Case {
        name: "one address",
        addresses: &["192.168.50.11/24"],
        routes: &[],
        endpoint: "192.168.50.9",
        expected: "192.168.50.11",
    },
    Case {
        name: "the second subnet",
        addresses: &["192.168.50.11/24", "192.168.77.11/24"],
        routes: &[],
        endpoint: "192.168.77.9",
        expected: "192.168.77.11",
    },
    Case {
        name: "a secondary address of the second subnet",
        addresses: &["192.168.50.11/24", "192.168.77.11/24", "192.168.77.12/24"],
        routes: &[],
        endpoint: "192.168.77.9",
        expected: "192.168.77.11",
    },
    Case {
        name: "a virtual address that is listed first",
        addresses: &["192.168.50.100/32", "192.168.50.11/24"],
        routes: &[],
        endpoint: "192.168.50.9",
        expected: "192.168.50.11",
    },
    Case {
        name: "many virtual addresses before",
        addresses: &[
            "192.168.50.101/32",
            "192.168.50.102/32",
            "192.168.50.103/32",
            "192.168.50.104/32",
            "192.168.50.105/32",
            "192.168.50.106/32",
            "192.168.50.107/32",
            "192.168.50.108/32",
            "192.168.50.109/32",
            "192.168.50.11/24",
        ],
        routes: &[],
        endpoint: "192.168.50.9",
        expected: "192.168.50.11",
    },
    Case {
        name: "beyond a gateway in the second subnet",
        addresses: &["192.168.50.11/24", "192.168.77.11/24"],
        routes: &["route add 203.0.113.0/24 via 192.168.77.9"],
        endpoint: "203.0.113.9",
        expected: "192.168.77.11",
    },
    Case {
        name: "in one subnet, beyond a gateway in the other",
        addresses: &["192.168.50.11/24", "192.168.77.11/24"],
        routes: &["route add 192.168.50.9/32 via 192.168.77.9"],
        endpoint: "192.168.50.9",
        expected: "192.168.77.11",
    },
    Case {
        name: "a route with a source of its own, which MASQUERADE does not ask for",
        addresses: &["192.168.50.11/24", "192.168.77.11/24"],
        routes: &["route add 203.0.113.0/24 via 192.168.77.9 src 192.168.50.11"],
        endpoint: "203.0.113.9",
        expected: "192.168.77.11",
    },
    Case {
        name: "a gateway by the client's address",
        addresses: &["192.168.50.11/24", "192.168.77.11/24"],
        routes: &[
            "route add 203.0.113.0/24 via 192.168.50.9",
            "route add 203.0.113.0/24 via 192.168.77.9 table 77",
            "rule add from 10.40.1.10 lookup 77",
        ],
        endpoint: "203.0.113.9",
        expected: "192.168.77.11",
    },
    Case {
        name: "a gateway that fits no subnet",
        addresses: &["192.168.50.11/24", "192.168.77.11/24"],
        routes: &["route add 203.0.113.9/32 dev uplink"],
        endpoint: "203.0.113.9",
        expected: "192.168.50.11",
    },
    Case {
        name: "the other end of a point-to-point address",
        addresses: &["192.168.50.11/24", "10.9.0.1 peer 10.9.0.9/32"],
        routes: &[],
        endpoint: "10.9.0.9",
        expected: "10.9.0.1",
    },
    Case {
        name: "an address of a smaller scope",
        addresses: &["192.168.50.11/24 scope link", "192.168.77.11/24"],
        routes: &[],
        endpoint: "192.168.50.9",
        expected: "192.168.77.11",
    },
];

const V6: &[Case] = &[
    Case {
        name: "one address",
        addresses: &["2001:db8:1::11/64"],
        routes: &[],
        endpoint: "2001:db8:1::9",
        expected: "2001:db8:1::11",
    },
    Case {
        name: "the first of two prefixes",
        addresses: &["2001:db8:1::11/64", "2001:db8:2::11/64"],
        routes: &[],
        endpoint: "2001:db8:1::9",
        expected: "2001:db8:1::11",
    },
    Case {
        name: "the second of two prefixes",
        addresses: &["2001:db8:1::11/64", "2001:db8:2::11/64"],
        routes: &[],
        endpoint: "2001:db8:2::9",
        expected: "2001:db8:2::11",
    },
    Case {
        name: "a local destination",
        addresses: &["fd00:77::11/64", "2001:db8:1::11/64"],
        routes: &["route add fd99::/64 via 2001:db8:1::9"],
        endpoint: "fd99::9",
        expected: "fd00:77::11",
    },
    Case {
        name: "a global destination",
        addresses: &["2001:db8:1::11/64", "fd00:77::11/64"],
        routes: &["route add 2400:9::/64 via fd00:77::9"],
        endpoint: "2400:9::9",
        expected: "2001:db8:1::11",
    },
    Case {
        name: "the newest is deprecated",
        addresses: &["2001:db8:1::11/64", "2001:db8:1::12/64 preferred_lft 0"],
        routes: &[],
        endpoint: "2001:db8:1::9",
        expected: "2001:db8:1::11",
    },
];

/// A service with one endpoint, to be reached at its node port.
fn service(endpoint: &str, v6: bool) -> String {
    let (family, cluster_ip) = if v6 {
        ("IPv6", "fd00:30::1")
    } else {
        ("IPv4", "172.30.1.1")
    };
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: far, namespace: shop}}
spec: {{type: NodePort, ipFamilies: [{family}], clusterIP: \"{cluster_ip}\", clusterIPs: [\"{cluster_ip}\"], ports: [{{port: 80, nodePort: 30001}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: far-1, namespace: shop, labels: {{kubernetes.io/service-name: far}}}}
addressType: {family}
ports: [{{name: \"\", protocol: TCP, port: {SERVED}}}]
endpoints: [{{addresses: [\"{endpoint}\"]}}]
"
    )
}

/// Gives the node the addresses of each case in turn, and compares both source addresses.
fn compare(world: &World, node_port: &str, cases: &[Case]) {
    let beyond = NetNs::new("beyond").expect("run as root");
    let node = world.node();
    node.ip(&format!(
        "link add uplink type veth peer name far netns {}\nlink set uplink up\n",
        beyond.path()
    ))
    .expect("an uplink");
    beyond
        .ip("link set lo up\nlink set far up\n")
        .expect("its other end");
    let v6 = node_port.starts_with('[');
    let nodad = if v6 { "nodad" } else { "" };
    let far = if v6 {
        "route add ::/0 dev far\n"
    } else {
        "route add default dev far\n"
    };
    let mut there = vec!["192.168.50.9", "192.168.77.9", "203.0.113.9", "10.9.0.9"];
    if v6 {
        there = vec![
            "2001:db8:1::9",
            "2001:db8:2::9",
            "fd00:77::9",
            "fd99::9",
            "2400:9::9",
        ];
    }
    let length = if v6 { 128 } else { 32 };
    let mut script = String::new();
    for address in there {
        script += &format!("address add {address}/{length} dev far {nodad}\n");
    }
    beyond.ip(&(script + far)).expect("its addresses");
    tell(&beyond, RULED);
    tell(&beyond, SERVED);
    let rule = format!(
        "add table inet ruled
add chain inet ruled post {{ type nat hook postrouting priority srcnat; }}
add rule inet ruled post tcp dport {RULED} masquerade
"
    );
    node.feed("nft", &["-f", "-"], &rule).expect("a rule");
    let agent = world.start(7);
    let node_port: SocketAddr = node_port.parse().expect("an address and port");
    for case in cases {
        let mut script = String::new();
        for address in case.addresses {
            script += &format!("address add {address} dev uplink {nodad}\n");
        }
        for route in case.routes {
            script += &format!("{route}\n");
        }
        node.ip(&script).expect(case.name);
        world.write("far.yaml", &service(case.endpoint, v6));
        let endpoint: IpAddr = case.endpoint.parse().expect("an address");
        let expected: IpAddr = case.expected.parse().expect("an address");
        let ruled = seen(world.client(), (endpoint, RULED).into());
        assert_eq!(ruled, Some(expected), "by the rule: {}", case.name);
        let mut last = None;
        let start = Instant::now();
        while last != Some(expected) {
            assert!(
                start.elapsed() < PATIENCE,
                "{}: {last:?} and not {expected}: {}",
                case.name,
                agent.log()
            );
            last = seen(world.client(), node_port);
        }
        println!("{}: after {:?}", case.name, start.elapsed());
        let undo = case.routes.iter().rev();
        let undo = undo.map(|route| route.replace(" add ", " del ") + "\n");
        let flush = "address flush dev uplink scope global\naddress flush dev uplink scope link\n";
        let flush = if v6 {
            "address flush dev uplink scope global\n"
        } else {
            flush
        };
        node.ip(&(undo.collect::<String>() + flush))
            .expect("undone");
    }
}

#[test]
fn ipv4_gets_the_address_that_nft_masquerade_takes() {
    compare(&World::build(), "10.40.0.1:30001", V4);
}

#[test]
fn ipv6_gets_the_address_that_nft_masquerade_takes() {
    let world = World::build_without_v4();
    world.write("node.yaml", &node());
    compare(&world, "[fd00:c0::1]:30001", V6);
}

/// The programs look up interfaces that many clients can arrive by at their index modulo 4,096.
#[test]
fn uplinks_whose_indices_are_alike_each_keep_their_connections() {
    let world = World::build();
    world.write("cart.yaml", &objects::service("cart", "172.30.1.1"));
    // Otherwise the wires would answer ARP requests for the uplinks' addresses.
    let arp = [("ipv4/conf/all/arp_ignore", "1")];
    world.node().set(&arp).expect("a parameter");
    let hosts = [0, 1, 2].map(|n| {
        let host = NetNs::new("host").expect("run as root");
        let index = 5000 + n * 4096;
        world
            .node()
            .ip(&format!(
                "link add wire{n} type veth peer name eth0 netns {}\nlink set wire{n} up\n\
                 link add link wire{n} name uplink{n} index {index} type macvlan mode bridge\n\
                 address add 192.168.{n}.1/24 dev uplink{n}\nlink set uplink{n} up\n",
                host.path()
            ))
            .expect("an uplink");
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
    world.node().ip("link del uplink1\n").expect("it goes");
    for n in [0, 2, 0, 2] {
        assert_eq!(open[n].echo("still there"), "still there");
        drop(connect(&hosts[n]));
    }
}
