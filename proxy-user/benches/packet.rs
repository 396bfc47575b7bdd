// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nanoseconds per packet, from test runs of the real programs, beside bare map operations measured in the
//! same run by the smallest programs that do them. Needs root. `cargo xtask bench packet`.
//!
//! Each figure is wall time of one test run of many repetitions, divided; minimum and median of ten, the cost
//! of an empty program subtracted. A repetition gets the packet that the one before left, so for the
//! hit two services lead to each other's address and port: every repetition is a hit that rewrites
//! address and port. All repetitions are about one flow or address: its cache lines are warm at every size.
#![expect(
    unsafe_code,
    reason = "bpf(2) takes pointers to a program's instructions"
)]

use std::{
    io,
    net::IpAddr,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    path::PathBuf,
    time::Instant,
};

use anyhow::{Context, Result};
use etherparse::PacketBuilder;
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use portolan::{
    datapath::{
        Capacities, Datapath, Options,
        cleanup::cleanup,
        family::Family,
        pins::map_path,
        sys::{Plain, get_pinned, test_run},
    },
    plan::{BackendPlan, FamilyPlan, FrontendPlan, ObjectName, PortPlan, ServicePlan},
};
use proxy_common::{
    EndpointSet, FlowKey, FrontendKind, Port, Protocol, ServiceFlags, Settings, V4, V6,
};

const RUNS: usize = 10;
const REPETITIONS: u32 = 300_000;
const SIZES: [u32; 3] = [1, 1_000, 50_000];

fn main() -> Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(0)?;
    sched_setaffinity(Pid::from_raw(0), &cpus).context("pin to CPU 0")?;
    println!("ns per packet, empty program subtracted: minimum (median) of {RUNS} runs, on CPU 0");
    println!(
        "{:>8} {:>6} {:>14} {:>14} {:>14} {:>14} {:>14} {:>14}",
        "services",
        "family",
        "bare hit",
        "bare miss",
        "hit",
        "TCP not ours",
        "UDP not ours",
        "UDP port known"
    );
    let mut best = Vec::new();
    for size in SIZES {
        let node = Node::open(size)?;
        best.push((size, "IPv4", node.measure::<V4>("IPv4", size)?));
        best.push((size, "IPv6", node.measure::<V6>("IPv6", size)?));
    }
    println!("\nagainst the targets (minimum of {RUNS} runs):");
    for (size, family, figures) in &best {
        let [bare_hit, bare_miss, hit, tcp, udp, _] = figures.map(|figure| figure.0);
        println!(
            "{size:>8} {family:>6}  hit - bare hit = {:.0} ns (at most 40); TCP not ours - bare miss = {:.0} ns, UDP {:.0} ns (at most 15)",
            hit - bare_hit,
            tcp - bare_miss,
            udp - bare_miss
        );
    }
    println!("a flow's first packet is not measured here: a repetition cannot begin another flow");
    Ok(())
}

/// A node with services, of which the first two lead to each other.
struct Node {
    datapath: Datapath,
    pin_dir: PathBuf,
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = cleanup(&self.pin_dir, true);
    }
}

/// What a family's packets are made of.
trait Ends: Family {
    fn address(n: u32) -> Self;
    fn port_plan(family: FamilyPlan<Self>) -> PortPlan;
}

fn plan_of(v4: FamilyPlan<V4>, v6: FamilyPlan<V6>) -> PortPlan {
    PortPlan {
        name: "".into(),
        protocol: Protocol::TCP,
        port: Port::from_host(80),
        affinity_timeout: 0,
        source_ranges: Vec::new(),
        v4,
        v6,
    }
}

impl Ends for V4 {
    fn address(n: u32) -> Self {
        let [_, b, c, d] = n.to_be_bytes();
        Self {
            octets: [10, b, c, d],
        }
    }
    fn port_plan(family: FamilyPlan<Self>) -> PortPlan {
        plan_of(family, FamilyPlan::default())
    }
}

impl Ends for V6 {
    fn address(n: u32) -> Self {
        let mut octets = [0; 16];
        octets[0] = 0xfd;
        octets[12..].copy_from_slice(&n.to_be_bytes());
        Self { octets }
    }
    fn port_plan(family: FamilyPlan<Self>) -> PortPlan {
        plan_of(FamilyPlan::default(), family)
    }
}

fn service<A: Ends>(n: u32) -> ServicePlan {
    // The first two each have the other's address and port behind them.
    let (other, port, other_port) = match n {
        1 => (2, 80, 81),
        2 => (1, 81, 80),
        _ => (n + 0x10_0000, 80, 8080),
    };
    let flags = ServiceFlags::new(FrontendKind::ClusterIp).with(ServiceFlags::HAS_ENDPOINTS, true);
    let frontend = FrontendPlan {
        address: A::address(n),
        port: Port::from_host(port),
        flags,
    };
    let backend = BackendPlan {
        address: A::address(other),
        port: Port::from_host(other_port),
        sets: EndpointSet::CLUSTER,
    };
    let family = FamilyPlan {
        frontends: vec![frontend],
        backends: vec![backend],
    };
    ServicePlan {
        ports: vec![A::port_plan(family)],
        ..ServicePlan::default()
    }
}

type Figure = (f64, f64);

impl Node {
    fn open(size: u32) -> Result<Self> {
        let pin_dir = PathBuf::from(format!(
            "/sys/fs/bpf/portolan-bench-{}-{size}",
            std::process::id()
        ));
        let options = Options {
            pin_dir: pin_dir.clone(),
            capacities: Capacities::default(),
            ..Options::default()
        };
        let mut datapath = Datapath::open(&options)?;
        datapath.set_settings(&Settings::EMPTY)?;
        let count = size.max(2);
        let changes: Vec<_> = (1..=count)
            .flat_map(|n| {
                let name = |family| ObjectName::new(family, &n.to_string());
                [
                    (name("v4"), service::<V4>(n)),
                    (name("v6"), service::<V6>(n)),
                ]
            })
            .collect();
        let report = datapath.apply(&changes);
        anyhow::ensure!(report.errors.is_empty(), "{:?}", report.errors);
        Ok(Self { datapath, pin_dir })
    }

    fn measure<A: Ends>(&self, family: &str, size: u32) -> Result<[Figure; 6]> {
        let client = A::address(0x20_0001);
        let [one, two] = [1, 2].map(A::address);
        let outside = A::address(0x30_0001);
        let syn = tcp(client, one, 80, true);
        for (address, port) in [(one, 80), (two, 81)] {
            self.datapath
                .test_run("ingress", &tcp(client, address, port, true), &[], 1)?;
        }
        let known = FlowKey::new(
            client,
            Port::from_host(40_000),
            one,
            Port::from_host(80),
            Protocol::TCP,
        );
        let unknown = FlowKey::new(
            client,
            Port::from_host(40_001),
            one,
            Port::from_host(80),
            Protocol::TCP,
        );
        let map = get_pinned(&map_path(&self.pin_dir, A::FLOWS), false)?;
        let empty = load(&exit())?;
        let hit = load(&lookup(&map, known.bytes()))?;
        let miss = load(&lookup(&map, unknown.bytes()))?;

        let harness = figure(|| time_raw(&empty, &syn))?;
        let net = |figure: Figure| (figure.0 - harness.0, figure.1 - harness.0);
        let figures = [
            net(figure(|| time_raw(&hit, &syn))?),
            net(figure(|| time_raw(&miss, &syn))?),
            net(figure(|| self.time(&tcp(client, one, 80, false)))?),
            net(figure(|| self.time(&tcp(client, outside, 80, false)))?),
            net(figure(|| self.time(&udp(client, outside, 5000)))?),
            net(figure(|| self.time(&udp(client, outside, 80)))?),
        ];
        print!("{size:>8} {family:>6}");
        for (minimum, median) in figures {
            print!(" {:>14}", format!("{minimum:.0} ({median:.0})"));
        }
        println!();
        Ok(figures)
    }

    fn time(&self, packet: &[u8]) -> Result<f64> {
        let begin = Instant::now();
        let run = self
            .datapath
            .test_run("ingress", packet, &[], REPETITIONS)?;
        let time = begin.elapsed();
        anyhow::ensure!(run.result == 0, "the packet passes");
        Ok(time.as_nanos() as f64 / f64::from(REPETITIONS))
    }
}

fn time_raw(program: &OwnedFd, packet: &[u8]) -> Result<f64> {
    let begin = Instant::now();
    test_run(program.as_fd(), packet, &[], REPETITIONS)?;
    Ok(begin.elapsed().as_nanos() as f64 / f64::from(REPETITIONS))
}

/// Minimum and median of the runs.
fn figure(mut time: impl FnMut() -> Result<f64>) -> Result<Figure> {
    let mut times = (0..RUNS).map(|_| time()).collect::<Result<Vec<_>>>()?;
    times.sort_by(f64::total_cmp);
    Ok((times[0], (times[RUNS / 2 - 1] + times[RUNS / 2]) / 2.0))
}

fn ends<A: Ends>(src: A, dst: A) -> etherparse::PacketBuilderStep<etherparse::IpHeaders> {
    let ethernet = PacketBuilder::ethernet2([2; 6], [4; 6]);
    match (src.into(), dst.into()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => ethernet.ipv4(src.octets(), dst.octets(), 64),
        (IpAddr::V6(src), IpAddr::V6(dst)) => ethernet.ipv6(src.octets(), dst.octets(), 64),
        _ => unreachable!("both are of the family A"),
    }
}

fn tcp<A: Ends>(src: A, dst: A, port: u16, syn: bool) -> Vec<u8> {
    let mut packet = Vec::new();
    let builder = ends(src, dst).tcp(40_000, port, 1, 512);
    let builder = if syn { builder.syn() } else { builder.ack(1) };
    builder
        .write(&mut packet, &[])
        .expect("a vector takes every byte");
    packet
}

fn udp<A: Ends>(src: A, dst: A, port: u16) -> Vec<u8> {
    let mut packet = Vec::new();
    ends(src, dst)
        .udp(40_000, port)
        .write(&mut packet, &[])
        .expect("a vector takes every byte");
    packet
}

/// One BPF instruction: code, registers, offset, immediate.
#[derive(Clone, Copy)]
#[repr(C)]
struct Instruction(u8, u8, i16, i32);

fn exit() -> Vec<Instruction> {
    vec![Instruction(0xb7, 0, 0, 0), Instruction(0x95, 0, 0, 0)]
}

/// Puts the key on the stack, looks it up, and ends.
fn lookup(map: &OwnedFd, key: &[u8]) -> Vec<Instruction> {
    let depth = i16::try_from(key.len()).expect("keys are short");
    let mut program: Vec<_> = key
        .chunks_exact(4)
        .zip((-depth..).step_by(4))
        .map(|(word, at)| {
            let word = i32::from_ne_bytes(word.try_into().expect("chunks of four"));
            Instruction(0x62, 10, at, word)
        })
        .collect();
    program.extend([
        Instruction(0x18, 0x11, 0, map.as_raw_fd()),
        Instruction(0, 0, 0, 0),
        Instruction(0xbf, 0xa2, 0, 0),
        Instruction(0x07, 2, 0, -i32::from(depth)),
        Instruction(0x85, 0, 0, 1),
    ]);
    program.extend(exit());
    program
}

#[repr(C)]
#[derive(Default)]
struct LoadRequest {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    rest: [u64; 12],
}

fn load(program: &[Instruction]) -> Result<OwnedFd> {
    const PROG_LOAD: i32 = 5;
    const SCHED_CLS: u32 = 3;
    let request = LoadRequest {
        kind: SCHED_CLS,
        count: program.len() as u32,
        instructions: program.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        rest: [0; 12],
    };
    // SAFETY: the pointers are to live instructions and a string; the size is the request's.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            PROG_LOAD,
            &raw const request,
            size_of::<LoadRequest>(),
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error()).context("load a bare program");
    }
    // SAFETY: a new descriptor, nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
