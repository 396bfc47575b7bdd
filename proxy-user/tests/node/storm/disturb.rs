// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Disturbances that no client may notice: of the agent, its maps, the API server and its data.

use std::{
    net::UdpSocket,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use datapath::Capacities;
use nix::sys::signal::Signal;

use super::{
    kinds::{ClientKind, Harm, Kind},
    node::{Node, OTHERS},
    topology::target,
};
use crate::{next_layout, world::BINARY};

/// The size up to which maps are made to grow in a storm; larger ones would take long.
const LARGEST: u32 = 65_536;
const LIMIT: Duration = Duration::from_secs(60);

/// A disturbance of the node. It returns once everything is served again, or false if it is not
/// possible now.
pub(crate) struct Disturbance {
    pub(crate) name: &'static str,
    pub(crate) harm: Harm,
    pub(crate) run: fn(&mut Node<'_>) -> bool,
}

const fn unnoticed(name: &'static str, run: fn(&mut Node<'_>) -> bool) -> Disturbance {
    Disturbance {
        name,
        harm: Harm::Nothing,
        run,
    }
}

pub(crate) const ALL: [Disturbance; 12] = [
    unnoticed("agent killed and started", killed),
    unnoticed("agent ended and started", ended),
    unnoticed("upgrade to another layout and back", upgraded),
    unnoticed("agent killed in an upgrade", killed_in_an_upgrade),
    unnoticed("started with other sizes", resized),
    unnoticed("growth by services", growth_by_services),
    unnoticed("growth by flows", growth_by_flows),
    unnoticed("API server killed and started", server_killed),
    unnoticed("list compacted (410)", compacted),
    unnoticed("1 000 endpoint changes a second", many_changes),
    unnoticed("interfaces come and go", interfaces),
    Disturbance {
        name: "drained and back",
        harm: Harm::New,
        run: drained,
    },
];

fn pause(node: &mut Node<'_>, most: u64) {
    sleep(Duration::from_millis(node.random.below(most)));
}

fn killed(node: &mut Node<'_>) -> bool {
    node.agent().signal(Signal::SIGKILL);
    drop(node.take());
    node.change(false);
    pause(node, 2000);
    node.begin();
    true
}

fn ended(node: &mut Node<'_>) -> bool {
    assert!(node.take().stop().success());
    node.change(false);
    pause(node, 2000);
    node.begin();
    true
}

fn upgraded(node: &mut Node<'_>) -> bool {
    for binary in [next_layout::binary(), Path::new(BINARY)] {
        assert!(node.take().stop().success());
        node.world.change(binary);
        node.begin();
        pause(node, 1000);
    }
    true
}

fn killed_in_an_upgrade(node: &mut Node<'_>) -> bool {
    assert!(node.take().stop().success());
    // The next agent may have the other layout again, or the first one.
    for binary in [next_layout::binary(), Path::new(BINARY)] {
        node.world.change(binary);
        for _ in 0..=node.random.below(2) {
            node.spawn();
            pause(node, 1500);
            node.agent().signal(Signal::SIGKILL);
            drop(node.take());
        }
    }
    node.begin();
    true
}

fn resized(node: &mut Node<'_>) -> bool {
    assert!(node.take().stop().success());
    node.resize();
    node.begin();
    true
}

/// Calls `more` until a map has grown.
fn until_grown(
    node: &mut Node<'_>,
    size: fn(&Capacities) -> u32,
    mut more: impl FnMut(&mut Node<'_>, u32),
) -> bool {
    let now = |node: &Node<'_>| node.capacities().as_ref().map(size);
    let Some(before) = now(node).filter(|size| *size < LARGEST) else {
        return false;
    };
    let begun = Instant::now();
    while now(node).is_none_or(|size| size <= before) {
        assert!(begun.elapsed() < LIMIT, "{}", node.agent().log());
        more(node, before);
    }
    node.wait_until_well();
    true
}

fn growth_by_services(node: &mut Node<'_>) -> bool {
    if node.capacities().is_none_or(|sizes| sizes.frontends > 8192) {
        return false;
    }
    let has_grown = until_grown(
        node,
        |sizes| sizes.frontends,
        |node, size| {
            let count = node.objects.count() + size / 32;
            node.objects.grow(count, 2).expect("more services");
            sleep(Duration::from_millis(300));
        },
    );
    sleep(Duration::from_secs(1));
    has_grown
}

/// Makes UDP flows until the map grows: each has its own socket, which is closed at once.
fn growth_by_flows(node: &mut Node<'_>) -> bool {
    let place = node.place;
    until_grown(
        node,
        |sizes| sizes.flows,
        |_, size| {
            // One second fills a tenth of the entries that are free when growing begins.
            let pace = Duration::from_secs(1) / (size / 80);
            let end = Instant::now() + Duration::from_millis(500);
            place.home(ClientKind::Packet4).run(|| {
                while Instant::now() < end {
                    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
                    _ = socket.set_read_timeout(Some(Duration::from_secs(1)));
                    let to = target(Kind::New, ClientKind::Packet4);
                    // The second datagram establishes the flow.
                    for _ in 0..2 {
                        _ = socket.send_to(b"flow", to);
                        _ = socket.recv_from(&mut [0; 64]);
                    }
                    sleep(pace);
                }
            });
        },
    )
}

fn server_killed(node: &mut Node<'_>) -> bool {
    node.objects.server_mut().kill();
    pause(node, 3000);
    // etcd stores the change; the agent learns of it when the server is back.
    node.change(false);
    node.objects.server_mut().revive().expect("it is back");
    node.follow();
    node.wait_until_well();
    true
}

fn compacted(node: &mut Node<'_>) -> bool {
    node.agent().signal(Signal::SIGSTOP);
    node.change(false);
    node.objects.server_mut().kill();
    node.objects.server_mut().revive().expect("it is back");
    for _ in 0..3 {
        node.change(false);
    }
    node.objects.server().compact().expect("compacted");
    node.agent().signal(Signal::SIGCONT);
    node.follow();
    node.wait_until_well();
    true
}

fn many_changes(node: &mut Node<'_>) -> bool {
    const ROUNDS: u32 = 50;
    let begun = Instant::now();
    for round in 1..=ROUNDS {
        let changed = node.objects.set_endpoints_of(OTHERS, 1 + round % 3);
        changed.expect("endpoints");
        if round % 5 == 0 {
            node.change(true);
        }
        let next = begun + Duration::from_millis(100) * round;
        sleep(next.saturating_duration_since(Instant::now()));
    }
    node.follow();
    true
}

fn interfaces(node: &mut Node<'_>) -> bool {
    let far = node.world.server().path();
    let commands = (0..20).map(|number| {
        format!("link add storm{number} type veth peer name storm{number} netns {far}\nlink set storm{number} up")
    });
    let undo = (0..20).map(|number| format!("link del storm{number}"));
    for batch in commands.chain(undo) {
        node.world.ip(&batch);
        pause(node, 60);
    }
    node.wait_until_well();
    true
}

/// Drains for a while: no connection begins meanwhile, and the next agent finds the old ones.
fn drained(node: &mut Node<'_>) -> bool {
    assert!(node.take().stop().success());
    let mut drain = node.world.cleanup(&["--drain"]);
    sleep(Duration::from_secs(2));
    pause(node, 2000);
    let ended = drain.try_wait().expect("its state");
    assert!(ended.is_none(), "there are flows: {ended:?}");
    drain.kill().expect("it runs");
    drain.wait().expect("its end");
    node.begin();
    true
}
