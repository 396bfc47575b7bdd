// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares docs/maps.md with the maps of a real node: each map has a section, which shows an
//! output of bpftool with the fields that the kernel knows and says what each field means. With
//! PORTOLAN_UPDATE_DOCS=1 the outputs are renewed.

mod json;
mod service;

use std::{collections::BTreeSet, fmt::Write, fs, net::UdpSocket, process::Command};

use datapath::{maps::tables::Table, read::Reader};
use proxy_common::{
    Counter, LocalPod, V4,
    maps::{self, ALL, LAYOUT_VERSION},
    socket::SocketCookie,
};

use crate::{
    agent::eventually,
    connection::{Open, answer_questions},
    objects::{Service, questions},
    repair::table,
    world::World,
};
use json::Json;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/maps.md");
const RENEW: &str = "PORTOLAN_UPDATE_DOCS=1 cargo test -p proxy-user -p lab --test node maps_page";
const BEGIN: &str = "```console\n";
const END: &str = "\n```\n";
/// Texts in the element that the page shows, for maps with several elements.
const TELLING: [(&str, &str); 7] = [
    ("frontends_v4", "[172,30,1,1]"),
    // Port 80; the other entry is for all other ports of the address.
    ("frontends_v4", "20480"),
    ("addresses_v4", "[10,40,0,1]"),
    ("sockets_v4", "\"role\": {\"__0\": 2}"),
    ("flows_v4", "[172,30,1,1]"),
    // The client's direction.
    ("flows_v4", "\"kind\": {\"__0\": 1}"),
    // The bytes of `cart`.
    ("names", "[99,97,114,116]"),
];

/// A service with session affinity and allowed source ranges.
fn login() -> Service {
    Service::new("login", "172.30.1.2")
        .ports(&[("web", "TCP", 443, Some(30002))])
        .sticky()
        .balanced("198.51.100.2")
        .only_for(&["203.0.113.0/24"])
}

/// Reads the maps of a node with bpftool; no map is empty.
struct Maps<'a> {
    world: &'a World,
}

impl Maps<'_> {
    /// The arguments after `bpftool map`, without the path: dump the map, or look up one element of
    /// an array.
    fn words(&self, map: &str) -> Vec<String> {
        let Some(index) = self.index(map) else {
            return vec!["dump".to_owned()];
        };
        let bytes = index.to_ne_bytes().map(|byte| byte.to_string());
        let mut words = vec!["lookup".to_owned(), "key".to_owned()];
        words.extend(bytes);
        words
    }

    /// The index of the array element that the page shows; None if the map is no array.
    fn index(&self, map: &str) -> Option<u32> {
        let value_of = |map: &str| {
            let element = self.ask(map);
            let value = element.get("value").and_then(Json::number);
            u32::try_from(value.expect("a number")).expect("32 bits")
        };
        let name = map.trim_end_matches("_v4").trim_end_matches("_v6");
        Some(match name {
            "records" => value_of("frontends_v4"),
            // A block's upper half is its first slot.
            "slots" => {
                let record = self.ask("records_v4");
                let block = record.get("value").and_then(|value| value.get("internal"));
                let block = block.and_then(Json::number).expect("a block");
                u32::try_from(block >> 32).expect("32 bits")
            }
            "backends" | "traffic" => value_of("slots"),
            "ports" => 80 / 8,
            "counters" => Counter::ForwardedNew as u32,
            "sock_buckets" => {
                let reader = Reader::open(self.world.pins()).expect("maps");
                let sockets = reader.sockets().expect("sockets");
                let of_cart = sockets.iter().find(|row| row.service.contains("cart"));
                let cookie = of_cart.expect("a socket").cookie;
                SocketCookie::new(cookie).bucket_index()
            }
            "masq_addresses" => 1,
            "rings" | "ring_ends" | "direct" | "between_pods" | "shared_ifaces" | "settings"
            | "reject_budget" | "drained" | "route_epoch" => 0,
            _ => return None,
        })
    }

    /// An element of the map: one that `TELLING` chooses, or else the first.
    fn ask(&self, map: &str) -> Json {
        let pin = self.world.pins().join(format!("v{LAYOUT_VERSION}/{map}"));
        let words = self.words(map);
        let output = Command::new("bpftool")
            .args(["map", &words[0], "pinned"])
            .arg(pin)
            .args(&words[1..])
            .output()
            .expect("bpftool");
        assert!(output.status.success(), "{map}: {output:?}");
        let answer = serde_json::from_slice(&output.stdout).expect("types, so JSON");
        match answer {
            Json::Array(elements) => {
                let tells = |element: &&Json| {
                    let line = element.line();
                    let telling = TELLING.iter().filter(|(of, _)| *of == map);
                    telling.clone().all(|(_, text)| line.contains(text))
                };
                let first = elements.iter().find(tells).or(elements.first());
                first.unwrap_or_else(|| panic!("{map} is empty")).clone()
            }
            element => element,
        }
    }

    /// The command and its output as the page shows them.
    fn shown(&self, map: &str) -> String {
        let words = self.words(map);
        let mut text = format!(
            "$ bpftool map {} pinned /sys/fs/bpf/portolan/v{LAYOUT_VERSION}/{map}",
            words[0]
        );
        for word in &words[1..] {
            write!(text, " {word}").expect("a String");
        }
        text.push('\n');
        self.ask(map).fold(0, &mut text);
        text
    }
}

/// The sections of the page with the maps of each heading: `## `frontends_v4`, `frontends_v6``.
fn sections(page: &str) -> Vec<(Vec<String>, String)> {
    let sections = page.split("\n## ").skip(1);
    let with_maps = sections.map(|section| {
        let (heading, text) = section.split_once('\n').expect("a text");
        let names = heading.split('`').skip(1).step_by(2).map(str::to_owned);
        (names.collect(), text.to_owned())
    });
    with_maps
        .filter(|(names, _): &(Vec<_>, _)| !names.is_empty())
        .collect()
}

/// Makes connections and datagrams that fill every map.
fn use_everything(world: &World) -> (Vec<Open>, Vec<UdpSocket>) {
    answer_questions(world.server());
    let cart = "172.30.1.1:80";
    let mut open = Vec::new();
    // These connections are translated packet by packet, to a cluster IP and to a node port.
    for to in [cart, "10.40.0.1:30001", "172.30.1.2:443"] {
        open.push(world.connect(to).expect("served"));
    }
    open.push(world.connect_from_node(cart).expect("served"));
    let pod = world.connect_at_socket("172.30.1.2:443");
    open.push(pod.expect("served"));
    let sending = || {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        // A datagram from a pod that is larger than a packet.
        let sent = socket.send_to(&[0; 3000], "172.30.1.9:53");
        sent.expect("sent");
        socket
    };
    let of_pod = world.client().enter(sending).expect("the pod");
    let of_node = world.in_node_process(sending);
    (open, vec![of_pod, of_node])
}

#[test]
fn docs_maps_md_shows_each_map_as_bpftool_does_and_explains_each_field() {
    let world = World::serving();
    world.write("login.yaml", login());
    world.write("questions.yaml", questions());
    let _quiet = world.cgroup().below("quiet").expect("a cgroup");
    world.ip("link add up0 type veth peer name up1\nlink set up0 up");
    let config = "portolan: {socketExceptions: [quiet], forwarding: auto, xdp: generic, xdpInterfaces: [up0]}\n";
    let agent = world.start_configured(7, config);
    let _open = use_everything(&world);
    let pods: Table<V4, LocalPod> = table(&world, maps::PODS_V4);
    eventually("a pod's link is known", &agent, || {
        pods.entries().is_ok_and(|pods| !pods.is_empty())
    });

    let uplinks: Table<u32, u64> = table(&world, maps::UPLINKS);
    eventually("the uplink's program is attached", &agent, || {
        uplinks.entries().is_ok_and(|uplinks| !uplinks.is_empty())
    });

    let maps = Maps { world: &world };
    let mut page = fs::read_to_string(PAGE).expect("docs/maps.md");
    if std::env::var_os("PORTOLAN_UPDATE_DOCS").is_some() {
        for (names, text) in sections(&page) {
            let (before, rest) = text.split_once(BEGIN).expect("an output");
            let (_, after) = rest.split_once(END).expect("its end");
            let shown = maps.shown(&names[0]);
            let renewed = format!("{before}{BEGIN}{shown}{END}{after}");
            // The heading tells this section from the others.
            let heading = |text: &str| format!("`{}`\n{text}", names[names.len() - 1]);
            page = page.replace(&heading(&text), &heading(&renewed));
        }
        fs::write(PAGE, &page).expect("docs/maps.md can be written");
    }

    let mut described = BTreeSet::new();
    for (names, text) in sections(&page) {
        let block = text.split_once(BEGIN).and_then(|(_, r)| r.split_once(END));
        let (block, reading) = block.unwrap_or_else(|| panic!("{names:?}: no output"));
        let (command, output) = block.split_once('\n').expect("a command");
        let words = maps.words(&names[0]);
        let begin = format!(
            "$ bpftool map {} pinned /sys/fs/bpf/portolan/v{LAYOUT_VERSION}/{}",
            words[0], names[0]
        );
        assert!(command.starts_with(&begin), "{command}: {RENEW}");
        let shown: Json = serde_json::from_str(output).expect("JSON");
        let real = maps.ask(&names[0]).fields();
        assert_eq!(shown.fields(), real, "{names:?}: {RENEW}");
        for path in &real {
            let field = path
                .rsplit('/')
                .find(|name| !["octets", "__0"].contains(name));
            let field = field.expect("a name");
            let is_told = field == "_pad" || reading.contains(&format!("`{field}`"));
            assert!(is_told, "{names:?} does not explain `{field}`");
        }
        for name in names {
            assert!(described.insert(name.clone()), "{name} twice");
        }
    }
    let all: BTreeSet<_> = ALL.iter().map(|name| (*name).to_owned()).collect();
    let pinned = world.pins().join(format!("v{LAYOUT_VERSION}"));
    let pinned = fs::read_dir(pinned).expect("the pins");
    let pinned: BTreeSet<_> = pinned
        .map(|entry| {
            entry
                .expect("a pin")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .filter(|name| all.contains(name))
        .collect();
    assert_eq!(pinned, all, "every map is pinned");
    assert_eq!(described, all, "every map has a section");
}
