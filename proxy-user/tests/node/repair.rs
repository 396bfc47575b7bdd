// SPDX-License-Identifier: Apache-2.0 OR MIT
//! While the agent runs, it restores, counts and logs what somebody changes in the kernel.

use std::{
    fs, io,
    os::fd::AsFd,
    path::PathBuf,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use datapath::maps::{
    pins::{links_dir, map_path},
    tables::Table,
};
use linux::Plain;
use nix::sys::signal::Signal;
use proxy_common::{Backend, FrontendKey, Record, ServiceFlags, Settings, V4, maps};

use crate::{
    agent::Agent,
    world::{CART, NODE_PORT, World},
};

/// Time limits on a busy machine: the quick check runs every second, the complete check every 30 s.
const QUICK: Duration = Duration::from_secs(10);
const WHOLE: Duration = Duration::from_secs(45);

pub(crate) fn repairs(agent: &Agent, kind: &str) -> u64 {
    let name = format!("portolan_repairs_total{{kind=\"{kind}\"}}");
    agent.metric(&name).expect("the metric")
}

/// The paths of all pins.
pub(crate) fn pins(world: &World) -> Vec<PathBuf> {
    let list = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten();
    let maps = list(links_dir(world.pins()).parent().expect("a folder").into());
    let all = maps.chain(list(links_dir(world.pins())));
    let mut all: Vec<_> = all.map(|entry| entry.path()).collect();
    all.sort();
    all
}

pub(crate) fn detach(world: &World, name: &str) {
    let link = linux::get_pinned(&links_dir(world.pins()).join(name), false).expect("a link");
    linux::detach(link.as_fd()).expect("detached");
}

#[test]
fn detached_programs_removed_pins_and_changed_maps_are_repaired_and_connections_go_on() {
    let world = World::serving();
    let agent = world.start();
    let mut open = world.connect(CART).expect("an answer");
    detached_programs_are_attached_again_within_seconds(&world, &agent);
    let before = pins(&world);
    let counted = || ["interface", "hook"].map(|kind| repairs(&agent, kind));
    let [interfaces, hooks] = counted();
    // A running agent would put the pins back during the removal.
    agent.signal(Signal::SIGSTOP);
    fs::remove_dir_all(world.pins()).expect("removed");
    assert_eq!(open.echo("without pins"), "without pins");
    assert!(world.answers(CART));
    agent.signal(Signal::SIGCONT);
    agent.within(QUICK, "all pins are back", || pins(&world) == before);
    assert_eq!(open.echo("with pins"), "with pins");
    // The agent also restores single pins, and a pin that now refers to another map.
    let [settings, names] = [maps::SETTINGS, maps::NAMES].map(|map| map_path(world.pins(), map));
    agent.signal(Signal::SIGSTOP);
    fs::remove_file(&names).expect("removed");
    fs::remove_file(&settings).expect("removed");
    let other = linux::create_map(linux::MapKind::Array, 4, 8, 1, 0, None).expect("a map");
    linux::pin(&other, &settings).expect("pinned");
    agent.signal(Signal::SIGCONT);
    let id = |path: &PathBuf| {
        let map = linux::get_pinned(path, true).and_then(linux::map_info);
        map.map(|map| map.value_size).unwrap_or_default()
    };
    let is_ours = || id(&settings) as usize == size_of::<Settings>() && names.exists();
    agent.within(QUICK, "ours are pinned", is_ours);
    agent.within(QUICK, "all is counted", || repairs(&agent, "pin") >= 3);
    assert!(counted()[0] > interfaces && counted()[1] > hooks);
    agent.says(&["no pins, or wrong ones, of the maps "]);
    assert_eq!(agent.health().0, 200);
    whatever_is_changed_in_the_maps_is_repaired(&world, &agent);
}

#[test]
fn an_unmounted_bpf_file_system_is_reported_and_pins_are_restored() {
    let world = World::serving();
    let mount = "mount -t bpf bpf /sys/fs/bpf && exec \"$0\" \"$@\"";
    let by = ["unshare", "--mount", "sh", "-c", mount];
    let agent = world.spawn_by(&by, &["--manifests", &world.manifests()]);
    agent.wait_for(7);
    let mut open = world.connect(CART).expect("an answer");
    let pid = agent.pid().to_string();
    // Runs a shell's command in the agent's mount namespace.
    let inside = |command: &str| {
        let words = ["--mount", "--target", &pid, "sh", "-c", command];
        let status = Command::new("nsenter").args(words).status();
        status.expect("nsenter").success()
    };
    assert!(pins(&world).is_empty(), "they are on its own file system");
    // Below it the node's BPF file system is mounted; below that there is no other one.
    assert!(inside("umount -l /sys/fs/bpf"));
    agent.within(QUICK, "they are on the node's", || pins(&world).len() > 30);
    assert_eq!(open.echo("moved"), "moved");
    assert!(inside("umount -l /sys/fs/bpf"));
    let is_told = || agent.reports("is not on a BPF file system: mount one");
    agent.within(QUICK, "it is told", is_told);
    assert!(world.answers(CART));
    assert!(inside("mount -t bpf bpf /sys/fs/bpf"));
    let links = links_dir(world.pins());
    let count = format!("ls {}/.. | wc -l | grep -q '[3-9].'", links.display());
    agent.within(QUICK, "they are on the new one", || inside(&count));
    agent.within(QUICK, "it is mended", || agent.reports(r#""faultCount":0"#));
    assert!(world.answers(CART));
    assert_eq!(open.echo("at last"), "at last");
}

fn detached_programs_are_attached_again_within_seconds(world: &World, agent: &Agent) {
    let links = pins(world);
    let names = links.iter().filter_map(|path| path.file_name()?.to_str());
    let links: Vec<_> = names.filter(|name| name.ends_with("gress")).collect();
    assert!(links.len() >= 4, "{links:?}");
    let detach_and_wait = |kind: &str, name: &str| {
        let before = repairs(agent, kind);
        detach(world, name);
        agent.within(QUICK, name, || repairs(agent, kind) > before);
    };
    for name in links {
        detach_and_wait("interface", name);
        assert!(world.answers(CART), "{name}");
    }
    agent.says(&["portolan's program at ingress was detached: it was put back"]);

    assert!(world.connect_from_node(CART).is_ok());
    for hook in ["cgroup-connect_v4", "cgroup-release"] {
        detach_and_wait("hook", hook);
        assert!(world.connect_from_node(CART).is_ok(), "{hook}");
    }
    let put_back = "connect_v4 was detached: it was put back";
    assert!(agent.log().contains(put_back));
    assert_eq!(agent.health().0, 200);
}

/// Opens a pinned map. While larger maps take over, the pin can be missing for a moment.
pub(crate) fn table<K: Plain, V: Plain>(world: &World, map: &str) -> Table<K, V> {
    let open = || linux::get_pinned(&map_path(world.pins(), map), false).and_then(Table::new);
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(20));
            }
            opened => return opened.expect("a map"),
        }
    }
}

/// Whether the settings are complete: no connection of another proxy has been found.
pub(crate) fn are_complete(world: &World) -> bool {
    let settings: Table<u32, Settings> = table(world, maps::SETTINGS);
    let settings = settings.lookup(&0).expect("readable");
    settings.is_some_and(|settings| settings.flags & Settings::RESET_UNKNOWN != 0)
}

fn whatever_is_changed_in_the_maps_is_repaired(world: &World, agent: &Agent) {
    assert!(world.answers(CART) && world.answers(NODE_PORT));
    agent.within(QUICK, "the settings are complete", || are_complete(world));
    let counted = || ["node", "service"].map(|kind| repairs(agent, kind));
    let [of_node, of_services] = counted();
    let settings: Table<u32, Settings> = table(world, maps::SETTINGS);
    let stored = settings.lookup(&0).expect("readable");
    settings.update(&0, &Settings::EMPTY).expect("changed");
    let frontends: Table<FrontendKey<V4>, u32> = table(world, maps::FRONTENDS_V4);
    let all = frontends.entries().expect("readable");
    for (at, (key, record)) in all.iter().enumerate() {
        if at % 2 == 0 {
            frontends.delete(key).expect("removed");
        } else {
            frontends.update(key, &(record + 1)).expect("changed");
        }
    }
    let addresses: Table<V4, u32> = table(world, maps::NODE_ADDRESSES_V4);
    let entries = addresses.entries().expect("readable");
    addresses.delete_all(&entries.iter().map(|(key, _)| *key).collect::<Vec<_>>());
    assert!(!world.answers(CART) && !world.answers(NODE_PORT));
    let both = || world.answers(CART) && world.answers(NODE_PORT);
    agent.within(WHOLE, "both answer", both);
    assert_eq!(settings.lookup(&0).expect("readable"), stored);
    let sorted = |mut entries: Vec<(FrontendKey<V4>, u32)>| {
        entries.sort_by_key(|(_, record)| *record);
        entries
    };
    let before = sorted(all);
    let is_so = || sorted(frontends.entries().expect("readable")) == before;
    agent.within(QUICK, "all are as before", is_so);
    agent.within(QUICK, "all is counted", || {
        let [node, services] = counted();
        node >= of_node + 2 && services > of_services
    });
    agent.says(&["WARN Service shop/cart: ", "were changed"]);

    let before = repairs(agent, "service");
    let records: Table<u32, Record<V4>> = table(world, maps::RECORDS_V4);
    let used = records.entries().expect("readable");
    let used = used.into_iter().filter(|(_, record)| record.service.0 != 0);
    let used: Vec<_> = used.collect();
    for (at, (id, record)) in used.iter().enumerate() {
        let mut changed = *record;
        match at % 3 {
            0 => changed.flags = ServiceFlags(0),
            1 => changed.internal = proxy_common::Block::EMPTY,
            _ => changed.service.0 += 5,
        }
        records.update(id, &changed).expect("changed");
    }
    let backends: Table<u32, Backend<V4>> = table(world, maps::BACKENDS_V4);
    for (id, mut backend) in backends.entries().expect("readable") {
        if backend.service.0 != 0 {
            backend.address.octets[3] += 1;
            backends.update(&id, &backend).expect("changed");
        }
    }
    assert!(!world.answers(CART));
    agent.within(WHOLE, "it answers", || world.answers(CART));
    // A connection can be answered before the repair is counted.
    let is_counted = || repairs(agent, "service") > before;
    agent.within(QUICK, "it is counted", is_counted);
    assert!(world.answers(NODE_PORT));
    assert_eq!(agent.health().0, 200);
    // A changed range of local ports changes the masquerade ports.
    world.set("ipv4/ip_local_port_range", "1024 60999");
    agent.within(QUICK, "it is followed", || {
        let stored = settings.lookup(&0).expect("readable");
        stored.is_some_and(|stored| stored.masquerade_ports.0 == [61_000, 65_535, 0, 0])
    });
}
