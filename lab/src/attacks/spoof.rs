// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An attack: a pod with CAP_NET_RAW forges another pod's packets, to a service and to its backend.
//! The other pod, the victim, must not be affected: not on its open connections, not on new ones,
//! and not even on new connections from the forged ports. And the forger must receive none of the
//! victim's packets.

use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream, UdpSocket},
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use socket2::{Domain, Socket, Type};

use super::{
    clients::{Made, Open, PATIENCE, at_a_rate},
    packets::{BATCH, Kind, Raw, forge},
    proxies::Served,
    world::{CLIENTS, Call, World},
};
use crate::{node::netns::NetNs, random::Random, traffic::capture::Capture};

/// Source ports of the victim that the forger uses too. `OPEN`: with an open connection to the
/// service or to its pod. `LATER`: for connections after the attack. `DATAGRAMS`: for UDP queries.
const OPEN_BY_SERVICE: Range<u16> = 20_000..20_050;
const OPEN_TO_POD: Range<u16> = 20_100..20_150;
const LATER_BY_SERVICE: Range<u16> = 20_200..20_250;
const LATER_TO_POD: Range<u16> = 20_300..20_350;
const DATAGRAMS: Range<u16> = 20_400..20_420;
/// The sysctl parameter for the ports that the victim's kernel chooses, and its value: none of the
/// ports above.
const OWN_PORTS: (&str, &str) = ("ipv4/ip_local_port_range", "30000 60999");
/// New connections a second during the attack.
const RATE: u32 = 50;

#[derive(Debug)]
pub struct Spoof {
    pub forged: u64,
    /// Lost connections of the 50 open ones to the service; `lost_to_pod`: of the 50 to its pod.
    pub lost_by_service: u32,
    pub lost_to_pod: u32,
    pub datagrams_lost: u32,
    /// New connections of the victim from other ports than the forged ones, during the attack.
    pub new: Made,
    /// Connections made after the attack from 50 forged ports to the service; `later_to_pod`: from
    /// 50 others to its pod.
    pub later_by_service: u32,
    pub later_to_pod: u32,
    /// Packets that arrived at the forger's pod.
    pub received: u32,
}

/// Runs the attack: forges packets for `length`.
pub fn run(served: &Served<'_>, length: Duration) -> Result<Spoof> {
    let clients = served.world.clients();
    let (victim, forger) = (&clients[0], &clients[CLIENTS - 1]);
    victim.set(&[OWN_PORTS])?;
    let (service, pod) = (served.address(Call::ClusterIp), Call::ClusterIp.pod());
    let queries = served.address(Call::ClusterIpUdp);
    let open = |ports: Range<u16>, to| {
        let streams = ports.map(|port| connect(victim, port, to));
        Open::of(streams.collect::<Result<_>>()?)
    };
    let mut by_service = open(OPEN_BY_SERVICE, service)?;
    let mut to_pod = open(OPEN_TO_POD, pod)?;
    let sockets = DATAGRAMS
        .map(|port| bound(victim, port, queries))
        .collect::<Result<Vec<_>>>()?;
    let capture = Capture::open(forger, "eth0")?;
    let stop = AtomicBool::new(false);
    let (forged, new, meanwhile) = thread::scope(|scope| {
        let forging = scope.spawn(|| forge_all(forger, [service, pod], queries, &stop));
        let new = at_a_rate(
            victim,
            service,
            RATE,
            RATE * length.as_secs() as u32,
            PATIENCE,
        );
        let meanwhile = exchange(&sockets);
        stop.store(true, Ordering::Relaxed);
        let forged = forging.join().ok().context("the forger broke down")?;
        Ok::<_, anyhow::Error>((forged?, new?, meanwhile))
    })?;
    let (lost_by_service, lost_to_pod) = (by_service.lost(), to_pod.lost());
    let made = |ports: Range<u16>, to| {
        thread::scope(|scope| {
            let clients: Vec<_> = ports
                .map(|port| scope.spawn(move || connect(victim, port, to)))
                .collect();
            let ended = clients.into_iter().map(thread::ScopedJoinHandle::join);
            ended.filter(|ended| matches!(ended, Ok(Ok(_)))).count() as u32
        })
    };
    let later_by_service = made(LATER_BY_SERVICE, service);
    let later_to_pod = made(LATER_TO_POD, pod);
    Ok(Spoof {
        forged,
        lost_by_service,
        lost_to_pod,
        datagrams_lost: meanwhile.max(exchange(&sockets)),
        new,
        later_by_service,
        later_to_pod,
        received: capture.packets()?.len() as u32,
    })
}

/// Forges every kind of packet for every port of the victim, again and again until `stop` is set.
/// Returns the number of packets.
fn forge_all(
    forger: &NetNs,
    targets: [SocketAddrV4; 2],
    queries: SocketAddrV4,
    stop: &AtomicBool,
) -> Result<u64> {
    let victim = World::address_of(0);
    let mut random = Random::new(1);
    let mut sent = 0;
    let tcp = [OPEN_BY_SERVICE, OPEN_TO_POD, LATER_BY_SERVICE, LATER_TO_POD];
    loop {
        for to in targets {
            let raw = Raw::open(forger, *to.ip())?;
            let mut packets = Vec::new();
            for port in tcp.iter().cloned().flatten() {
                let from = SocketAddrV4::new(victim, port);
                let ack = Kind::Ack(random.draw() as u32);
                for kind in [Kind::Syn, ack, Kind::Rst, Kind::Unreachable] {
                    packets.push(forge(kind, from, to, random.draw() as u32));
                }
            }
            let to = SocketAddrV4::new(*to.ip(), queries.port());
            for port in DATAGRAMS {
                packets.push(forge(Kind::Udp, SocketAddrV4::new(victim, port), to, 0));
            }
            for batch in packets.chunks(BATCH) {
                sent += raw.send(batch).context("forge packets")? as u64;
            }
        }
        // The attack needs no flood, only repetition.
        thread::sleep(Duration::from_millis(5));
        if stop.load(Ordering::Relaxed) {
            return Ok(sent);
        }
    }
}

/// Opens a connection from the source port `port`.
fn connect(pod: &NetNs, port: u16, to: SocketAddrV4) -> Result<TcpStream> {
    let socket = pod.enter(|| Socket::new(Domain::IPV4, Type::STREAM, None))??;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into())?;
    socket
        .connect_timeout(&SocketAddr::from(to).into(), PATIENCE)
        .with_context(|| format!("connect from port {port} to {to}"))?;
    Ok(socket.into())
}

fn bound(pod: &NetNs, port: u16, to: SocketAddrV4) -> Result<UdpSocket> {
    let socket = pod.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)))??;
    socket.set_nonblocking(true)?;
    socket.connect(to)?;
    Ok(socket)
}

/// Sends a query from every socket; returns how many sockets get no answer. Answers to forged
/// queries arrive at these sockets as well and are discarded first: a sender of datagrams cannot be
/// verified.
fn exchange(sockets: &[UdpSocket]) -> u32 {
    let mut buffer = [0; 64];
    for socket in sockets {
        while socket.recv(&mut buffer).is_ok() {}
    }
    for socket in sockets {
        // A failure is noticed below.
        _ = socket.send(b"own");
    }
    let deadline = Instant::now() + PATIENCE;
    let mut answered = |socket: &&UdpSocket| loop {
        match socket.recv(&mut buffer) {
            Ok(length) if &buffer[..length] == b"own" => return true,
            Ok(_) => {}
            Err(_) if Instant::now() > deadline => return false,
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    };
    sockets.iter().filter(|socket| !answered(socket)).count() as u32
}
