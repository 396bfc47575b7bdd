// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures how many frames a second one processor forwards through a node port to another node,
//! without the work of clients and servers. Each proxy has its own node. Every round measures each
//! proxy once.
//!
//! A generator outside writes every frame's headers anew and redirects the frame into the node's
//! uplink. What the node forwards is counted and dropped at the uplink's far end. Before the
//! measurement, the far end has answered frames of every flow, so each flow is established.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::{AsFd, OwnedFd},
    sync::atomic::Ordering,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use lab::{
    bpf::{Element, attach_xdp, load_xdp},
    interrupt::INTERRUPTED,
    load::{
        cpu::{pin, unpin},
        frames::{Generator, datagram, far_end},
        objects::Objects,
        setup::Setup,
        statistics::{interval, median},
    },
    node::{
        netns::NetNs,
        topology::{Plumbing, UPLINK, UPLINK_PEER},
    },
};

use crate::{
    plan::{Cell, Proxy},
    proxy::{Programs, Running},
    results::Live,
    world::{self, DIRECT, SERVED, World},
};

/// The measured proxies, each with the settings of its node.
const WAYS: [(Setup, Proxy); 8] = [
    (Setup::Bare, Proxy::Direct),
    (Setup::Bare, Proxy::PortolanPacket),
    (Setup::Bare, Proxy::PortolanAuto),
    (Setup::Netfilter, Proxy::Direct),
    (Setup::Netfilter, Proxy::PortolanPacket),
    (Setup::Netfilter, Proxy::PortolanAuto),
    (Setup::Netfilter, Proxy::PortolanXdp),
    (Setup::Netfilter, Proxy::Nftables),
];
/// The index in `WAYS` of the proxy with which all others are compared.
const NFTABLES: usize = WAYS.len() - 1;
/// The numbers of flows that are measured: powers of two. A masquerade has no more than 64 512
/// ports.
const FLOWS: [u32; 2] = [1, 16_384];
/// Time for a proxy to serve the node port.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures every proxy in `rounds` rounds, with `frames` frames each time.
pub(crate) fn measure(
    plumbing: Plumbing,
    programs: &Programs,
    rounds: u32,
    frames: u32,
) -> Result<Vec<Live>> {
    let worlds = WAYS.map(|_| World::new(plumbing));
    let worlds = worlds.into_iter().collect::<Result<Vec<_>>>()?;
    let objects = Objects::start(worlds[NFTABLES].node(), &world::NODE.to_string())?;
    objects.server().apply(&world::objects())?;
    let mut nodes = Vec::new();
    for ((setup, proxy), world) in WAYS.into_iter().zip(&worlds) {
        world.set_up(setup)?;
        world.topology().take_live_frames()?;
        let cell = Cell {
            services: 0,
            setup,
            proxy,
        };
        let kubeconfig = proxy.is_kube_proxy().then(|| objects.kubeconfig());
        let running = Running::start(world, &cell, programs, kubeconfig.as_deref())?;
        let node = Node::new(world, proxy, running);
        nodes.push(node.with_context(|| proxy.name())?);
    }
    pin()?;
    let measured = in_rounds(&nodes, rounds, frames);
    unpin()?;
    measured
}

fn in_rounds(nodes: &[Node<'_>], rounds: u32, frames: u32) -> Result<Vec<Live>> {
    let mut all = Vec::new();
    for flows in FLOWS {
        let mut rates = vec![Vec::new(); nodes.len()];
        for (node, (_, proxy)) in nodes.iter().zip(WAYS) {
            node.establish(flows)?;
            if proxy == Proxy::PortolanXdp {
                node.expect_xdp(flows)?;
            }
        }
        for round in 0..rounds as usize {
            for turn in 0..nodes.len() {
                ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
                let at = (round + turn) % nodes.len();
                let rate = nodes[at].rate(flows, frames);
                rates[at].push(rate.with_context(|| WAYS[at].1.name())?);
            }
        }
        for ((setup, proxy), own) in WAYS.into_iter().zip(&rates) {
            let pairs = own.iter().zip(&rates[NFTABLES]);
            let ratios: Vec<_> = pairs.map(|(own, nftables)| own / nftables).collect();
            all.push(Live {
                setup,
                proxy,
                flows,
                rate: median(own),
                of_nftables: interval(&ratios),
            });
        }
    }
    Ok(all)
}

/// A node with a proxy, the generator of frames, and the uplink's far end.
struct Node<'a> {
    outside: &'a NetNs,
    generator: Generator,
    /// The number of frames that have arrived, and whether the far end answers them (1) or not (0).
    far: Element<[u64; 2]>,
    interface: u32,
    _far_end: OwnedFd,
    running: Running<'a>,
}

impl<'a> Node<'a> {
    fn new(world: &'a World, proxy: Proxy, running: Running<'a>) -> Result<Self> {
        let to = match proxy {
            Proxy::Direct => DIRECT.remote_sink,
            _ => SERVED.remote_sink,
        };
        wait_for(world, to)?;
        if proxy == Proxy::PortolanXdp {
            wait_for_xdp(&running)?;
        }
        let IpAddr::V4(address) = to.ip() else {
            bail!("{to} is no IPv4 address");
        };
        let macs = [(world.outside(), UPLINK_PEER), (world.node(), UPLINK)]
            .map(|(namespace, interface)| mac(namespace, interface));
        let [outside_mac, node_mac] = macs;
        let generator = Generator::new(datagram([outside_mac?, node_mac?], address, to.port()))?;
        let far = Element::new()?;
        let far_end = load_xdp(&far_end(far.map()))?;
        let outside = world.outside();
        let (interface, _far_end) = outside.enter(|| {
            let index = nix::net::if_::if_nametoindex(UPLINK_PEER)?;
            Ok::<_, anyhow::Error>((index, attach_xdp(far_end.as_fd(), index, false)?))
        })??;
        Ok(Self {
            outside,
            generator,
            far,
            interface,
            _far_end,
            running,
        })
    }

    /// Sends frames of every flow, which the far end answers. Afterwards each flow is established.
    fn establish(&self, flows: u32) -> Result<()> {
        // At first, neighbour entries are missing and the kernel's lazily made lists are empty.
        const EACH: u32 = 8;
        self.generator.aim(flows, self.interface)?;
        let frames = (EACH * flows).max(1_000);
        for answered in [1, 0] {
            self.far.write([0, answered])?;
            self.send_most([0, frames])?;
        }
        Ok(())
    }

    /// Fails unless the agent's counters show that XDP takes most frames of established flows; a
    /// few may not arrive.
    fn expect_xdp(&self, flows: u32) -> Result<()> {
        let frames = flows.max(1_000);
        let before = by_xdp(&self.running)?;
        self.generator.send(self.outside, frames, || self.came())?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let taken = by_xdp(&self.running)? - before;
            if taken > f64::from(frames) / 2.0 {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "XDP has taken {taken} of {frames} frames: {}",
                self.running.log()
            );
            sleep(Duration::from_millis(200));
        }
    }

    /// Returns how many frames a second arrive.
    fn rate(&self, flows: u32, frames: u32) -> Result<f64> {
        let (came, took) = self.send_most([flows.max(1_000), frames])?;
        Ok(came as f64 / took)
    }

    fn send_most(&self, frames: [u32; 2]) -> Result<(u64, f64)> {
        let came = || self.came();
        self.generator.send_most(self.outside, frames, came)
    }

    /// Returns how many frames have arrived at the far end.
    fn came(&self) -> Result<u64> {
        let [came, _] = self.far.read()?;
        Ok(came)
    }
}

/// Waits until a datagram sent to `to` arrives at the other node's pod.
fn wait_for(world: &World, to: SocketAddr) -> Result<()> {
    let socket = world.outside().enter(|| UdpSocket::bind("0.0.0.0:0"))??;
    let deadline = Instant::now() + PATIENCE;
    while world.empty_sinks() == 0 {
        ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
        ensure!(Instant::now() < deadline, "no datagram by {to} arrives");
        // An ICMP error for an earlier datagram does not matter.
        _ = socket.send_to(b"?", to);
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Waits until the agent has attached the XDP program to the uplink. The agent checks once a
/// second.
fn wait_for_xdp(running: &Running<'_>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while running.metric("portolan_uplinks_with_xdp")? < 1.0 {
        let log = running.log();
        ensure!(Instant::now() < deadline, "no XDP at the uplink: {log}");
        sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// Returns how many packets from clients XDP has forwarded.
fn by_xdp(running: &Running<'_>) -> Result<f64> {
    running.metric("portolan_packets_total{outcome=\"forwarded_by_xdp\"")
}

/// Returns an interface's MAC address.
fn mac(namespace: &NetNs, interface: &str) -> Result<[u8; 6]> {
    let shown = namespace.feed("ip", &["-json", "link", "show", interface], "")?;
    let shown: serde_json::Value = serde_json::from_str(&shown)?;
    let text = shown[0]["address"].as_str().context("an address")?;
    let octets = text.split(':').map(|octet| u8::from_str_radix(octet, 16));
    let octets = octets.collect::<Result<Vec<_>, _>>()?;
    octets.try_into().ok().context("six octets")
}
