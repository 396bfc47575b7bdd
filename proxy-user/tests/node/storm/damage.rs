// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Damage that is done by hand, and that the agent repairs.

use std::{collections::HashSet, fs, thread::sleep, time::Duration};

use lab::node::foreign::ChainPosition;
use nix::sys::signal::Signal;
use proxy_common::{Backend, FrontendKey, Settings, V4, V6, maps};

use super::{disturb::Disturbance, kinds::Harm, node::Node};
use crate::{
    agent::Agent,
    repair::{detach, pins, repairs, run_beside, table},
};

/// The time limit for a repair. The complete check comes every 30 s and compares 256 services;
/// there may be a thousand, and the machine may be busy.
const REPAIRED: Duration = Duration::from_secs(240);

const fn by_hand(name: &'static str, harm: Harm, run: fn(&mut Node<'_>) -> bool) -> Disturbance {
    Disturbance { name, harm, run }
}

pub(crate) const ALL: [Disturbance; 9] = [
    by_hand("pins removed", Harm::Nothing, pins_removed),
    by_hand("bpffs unmounted", Harm::Nothing, unmounted),
    // When a qdisc is added or removed, the kernel stops the interface for a moment.
    by_hand("clsact qdisc deleted", Harm::All, qdisc_deleted),
    by_hand(
        "program of an interface detached",
        Harm::Packets,
        program_detached,
    ),
    by_hand("cgroup hook detached", Harm::Sockets, hook_detached),
    by_hand("another program before ours", Harm::Packets, program_before),
    by_hand("frontends changed", Harm::Selection, frontends_changed),
    by_hand("backends changed", Harm::All, backends_changed),
    by_hand("settings emptied", Harm::All, settings_emptied),
];

/// Waits until more repairs of a kind are counted, and a moment longer for requests in flight.
fn wait_for_repair(node: &Node<'_>, kind: &str, before: u64) {
    node.wait(kind, REPAIRED, || repairs(node.agent(), kind) > before);
    node.wait_until_well();
    sleep(Duration::from_secs(1));
}

fn pins_removed(node: &mut Node<'_>) -> bool {
    let before = pins(node.world);
    node.agent().signal(Signal::SIGSTOP);
    fs::remove_dir_all(node.world.pins()).expect("removed");
    sleep(Duration::from_millis(500));
    node.agent().signal(Signal::SIGCONT);
    node.wait("all pins are back", REPAIRED, || pins(node.world) == before);
    node.wait_until_well();
    true
}

/// Runs a command in the agent's mount namespace.
fn beside(agent: &Agent, command: &str) {
    let output = run_beside(agent, command);
    assert!(output.status.success(), "{command}: {output:?}");
}

fn unmounted(node: &mut Node<'_>) -> bool {
    let kept = node.world.folder().join("kept");
    fs::create_dir_all(&kept).expect("a folder");
    let kept = kept.display();
    beside(
        node.agent(),
        &format!("mount --bind /sys/fs/bpf {kept} && umount -l /sys/fs/bpf"),
    );
    node.wait("it is told", REPAIRED, || {
        let (_, body) = node.agent().health();
        body.contains("is not on a BPF file system")
    });
    beside(
        node.agent(),
        &format!("mount --bind {kept} /sys/fs/bpf && umount -l {kept}"),
    );
    node.wait_until_well();
    true
}

/// One of the interfaces that the requests use.
fn interface(node: &mut Node<'_>) -> String {
    match node.random.below(3) {
        0 => "uplink".to_owned(),
        1 => node.world.interface_to("10.40.1.60"),
        _ => node.world.interface_to("10.40.1.120"),
    }
}

fn qdisc_deleted(node: &mut Node<'_>) -> bool {
    let interface = interface(node);
    for command in ["add", "delete"] {
        let words = format!("qdisc {command} dev {interface} clsact");
        node.world.tool("tc", &words);
        sleep(Duration::from_secs(1));
    }
    node.wait_until_well();
    true
}

/// Detaches one of the links with a wanted name; false if no link is there because maps have begun
/// to grow.
fn detach_one(node: &mut Node<'_>, kind: &str, is_wanted: fn(&str) -> bool) -> bool {
    let all = pins(node.world);
    let names = all.iter().filter_map(|path| path.file_name()?.to_str());
    let links: Vec<_> = names.filter(|name| is_wanted(name)).collect();
    if links.is_empty() {
        return false;
    }
    let link = node.random.pick(&links);
    let before = repairs(node.agent(), kind);
    detach(node.world, link);
    wait_for_repair(node, kind, before);
    true
}

fn program_detached(node: &mut Node<'_>) -> bool {
    detach_one(node, "interface", |name| name.ends_with("gress"))
}

fn hook_detached(node: &mut Node<'_>) -> bool {
    detach_one(node, "hook", |name| name.starts_with("cgroup-"))
}

fn program_before(node: &mut Node<'_>) -> bool {
    let interface = interface(node);
    let egress = node.random.one_in(2);
    let world = node.world;
    let before = world.foreign(&interface, egress, ChainPosition::First);
    // portolan's program moves before the foreign one, unless it has just done so.
    sleep(Duration::from_secs(3));
    drop(before);
    node.wait_until_well();
    sleep(Duration::from_secs(1));
    true
}

fn frontends_changed(node: &mut Node<'_>) -> bool {
    fn change<K: linux::Plain>(node: &Node<'_>, map: &str) {
        let frontends = table::<K, u32>(node.world, map);
        let all = frontends.entries().expect("readable");
        for (at, (key, record)) in all.iter().enumerate() {
            // The agent may be changing the entry at the same time.
            _ = match at % 2 {
                0 => frontends.delete(key).map(drop),
                _ => frontends.update(key, &(record + 1)),
            };
        }
    }
    fn entries<K: linux::Plain>(node: &Node<'_>, map: &str) -> Vec<u32> {
        let entries = table::<K, u32>(node.world, map).entries();
        let records = entries.unwrap_or_default().into_iter();
        let mut records: Vec<_> = records.map(|(_, record)| record).collect();
        records.sort_unstable();
        records
    }
    let all = |node: &Node<'_>| {
        let v4 = entries::<FrontendKey<V4>>(node, maps::FRONTENDS_V4);
        (v4, entries::<FrontendKey<V6>>(node, maps::FRONTENDS_V6))
    };
    let stored = all(node);
    let before = repairs(node.agent(), "service");
    change::<FrontendKey<V4>>(node, maps::FRONTENDS_V4);
    change::<FrontendKey<V6>>(node, maps::FRONTENDS_V6);
    // The agent compares one service after another.
    node.wait("all frontends are back", REPAIRED, || all(node) == stored);
    wait_for_repair(node, "service", before);
    true
}

fn backends_changed(node: &mut Node<'_>) -> bool {
    let before = repairs(node.agent(), "service");
    let backends = table::<u32, Backend<V4>>(node.world, maps::BACKENDS_V4);
    let mut wrong = HashSet::new();
    for (id, mut backend) in backends.entries().expect("readable") {
        if backend.service.0 != 0 {
            backend.address.octets[3] ^= 0x80;
            wrong.insert(backend.address.octets);
            backends.update(&id, &backend).expect("changed");
        }
    }
    // Endpoints change meanwhile, and maps may have grown: the elements may be others, in other
    // maps.
    let are_back = || {
        let now = table::<u32, Backend<V4>>(node.world, maps::BACKENDS_V4);
        let now = now.entries().expect("readable");
        now.into_iter()
            .all(|(_, backend)| backend.service.0 == 0 || !wrong.contains(&backend.address.octets))
    };
    node.wait("all backends are back", REPAIRED, are_back);
    wait_for_repair(node, "service", before);
    true
}

fn settings_emptied(node: &mut Node<'_>) -> bool {
    let before = repairs(node.agent(), "node");
    let settings = table::<u32, Settings>(node.world, maps::SETTINGS);
    settings.update(&0, &Settings::EMPTY).expect("changed");
    wait_for_repair(node, "node", before);
    true
}
