// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nanoseconds per packet, from test runs of the real programs, beside bare map operations measured in the
//! same run by the smallest programs that do them. Needs root. `cargo xtask bench packet`.
//!
//! Each figure is wall time of one test run of many repetitions, divided; minimum and median of ten. A
//! repetition gets the packet that the one before left, so a wrapper makes each another one and goes on in the
//! real program; what the same wrapper costs in front of an empty program is subtracted. Repetitions turn
//! over all services, and those for first packets over clients, too.

mod bare;
#[path = "../measure/mod.rs"]
mod measure;
mod node;

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use portolan::datapath::{
    maps::pins::map_path,
    sys::{MapKind, Plain, create_map, get_pinned, test_run},
};
use proxy_common::{FlowEntry, FlowKey, Port, Protocol, V4, V6};

use bare::{Instruction, Program, Rotation, load, pass, slot_with};
use measure::{CPU, median, pin};
use node::{Ends, Kind, Node, SERVICE_PORT};

const RUNS: usize = 10;
const REPETITIONS: u32 = 300_000;
/// Of first packets and inserts: what they enter stays.
const FIRST_REPETITIONS: u32 = 20_000;
/// Not a service's, though the port is.
const OUTSIDE: u32 = 0x30_0000;
const OTHER_PORT: u16 = 5_000;

/// Measures what the packet path costs a packet
#[derive(Parser)]
struct Arguments {
    /// How many services there are; comma-separated
    #[arg(long, value_delimiter = ',', default_value = "1,1000,50000")]
    services: Vec<u32>,
    /// Handed over by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    pin()?;
    println!("ns per packet, harness subtracted: minimum (median) of {RUNS} runs, on CPU {CPU}");
    print!("{:>8} {:>6}", "services", "family");
    for heading in Figures::HEADINGS {
        print!(" {heading:>14}");
    }
    println!();
    let mut all = Vec::new();
    for size in arguments.services {
        let node = Node::open(size)?;
        all.push((size, "IPv4", Figures::measure::<V4>(&node, size)?));
        all.push((size, "IPv6", Figures::measure::<V6>(&node, size)?));
        for (size, family, figures) in &all[all.len() - 2..] {
            figures.print(*size, family);
        }
    }
    println!("\nagainst the targets (minimum of {RUNS} runs):");
    for (size, family, figures) in &all {
        for (what, seen, most) in figures.targets() {
            let verdict = if seen <= most { "reached" } else { "missed" };
            println!("{size:>8} {family:>6}  {what}: {seen:.0} ns, at most {most:.0}: {verdict}");
        }
    }
    for pair in all.chunks_exact(2) {
        let (v4, v6) = (&pair[0].2.0, &pair[1].2.0);
        for at in [
            Figures::HIT,
            Figures::FIRST,
            Figures::TCP,
            Figures::UDP_KNOWN,
        ] {
            let ratio = v6[at].0 / v4[at].0;
            let verdict = if ratio <= 1.3 { "reached" } else { "missed" };
            println!(
                "{:>8}         {}: IPv6 {ratio:.2} times IPv4, at most 1.3: {verdict}",
                pair[0].0,
                Figures::HEADINGS[at]
            );
        }
    }
    Ok(())
}

/// Minimum and median.
type Figure = (f64, f64);

struct Figures([Figure; 9]);

impl Figures {
    const HEADINGS: [&str; 9] = [
        "bare hit",
        "bare miss",
        "2 bare inserts",
        "hit",
        "reply",
        "first packet",
        "TCP not ours",
        "UDP not ours",
        "UDP port known",
    ];
    const BARE_HIT: usize = 0;
    const BARE_MISS: usize = 1;
    const BARE_INSERTS: usize = 2;
    const HIT: usize = 3;
    const FIRST: usize = 5;
    const TCP: usize = 6;
    const UDP: usize = 7;
    const UDP_KNOWN: usize = 8;

    fn measure<A: Ends>(node: &Node, size: u32) -> Result<Self> {
        let services = Rotation {
            base: 0,
            count: size,
            clients: false,
        };
        let outside = Rotation {
            base: OUTSIDE,
            ..services
        };
        let begin = Rotation {
            clients: true,
            ..services
        };
        let bench = Bench::<A>::new(node)?;
        // One flow from the bench's client to every service; and again, to learn the replies' tuples.
        bench.run_once(services, Kind::Syn, size)?;
        let bare_hit = bench.bare_lookup(services)?;
        let bare_miss = bench.bare_lookup(outside)?;
        let hit = bench.real("ingress", services, SERVICE_PORT, Kind::Ack, REPETITIONS)?;
        let reply = bench.reply(size)?;
        let tcp = bench.real("ingress", outside, SERVICE_PORT, Kind::Ack, REPETITIONS)?;
        let udp = bench.real("ingress", outside, OTHER_PORT, Kind::Udp, REPETITIONS)?;
        let known = bench.real("ingress", outside, SERVICE_PORT, Kind::Udp, REPETITIONS)?;
        let inserts = bench.bare_inserts(begin)?;
        let first = bench.real("ingress", begin, SERVICE_PORT, Kind::Syn, FIRST_REPETITIONS)?;
        Ok(Self([
            bare_hit, bare_miss, inserts, hit, reply, first, tcp, udp, known,
        ]))
    }

    fn print(&self, size: u32, family: &str) {
        print!("{size:>8} {family:>6}");
        for (minimum, median) in self.0 {
            print!(" {:>14}", format!("{minimum:.0} ({median:.0})"));
        }
        println!();
    }

    fn targets(&self) -> [(&'static str, f64, f64); 4] {
        let at = |index: usize| self.0[index].0;
        let (hit, miss) = (at(Self::BARE_HIT), at(Self::BARE_MISS));
        [
            ("hit", at(Self::HIT), hit + 40.0),
            (
                "first packet",
                at(Self::FIRST),
                at(Self::BARE_INSERTS) + 150.0,
            ),
            ("TCP not ours", at(Self::TCP), miss + 15.0),
            ("UDP not ours", at(Self::UDP), miss + 15.0),
        ]
    }
}

/// The maps and programs that the figures of one family share.
struct Bench<'a, A: Ends> {
    node: &'a Node,
    counter: OwnedFd,
    flows: OwnedFd,
    empty: OwnedFd,
    key: FlowKey<A>,
}

impl<'a, A: Ends> Bench<'a, A> {
    fn new(node: &'a Node) -> Result<Self> {
        Ok(Self {
            node,
            counter: create_map(MapKind::Array, 4, 8, 1, 0, None)?,
            flows: get_pinned(&map_path(&node.pin_dir, A::FLOWS), false)?,
            empty: load(&pass())?,
            key: FlowKey::new(
                A::address(0),
                Port::ANY,
                A::address(0),
                Port::ANY,
                Protocol::TCP,
            ),
        })
    }

    fn begin(&self, rotation: Rotation) -> Program {
        Program::new(&self.counter, rotation)
    }

    /// A program that turns packets and goes on in `next`.
    fn wrapper(&self, rotation: Rotation, port: u16, next: BorrowedFd<'_>) -> Result<Wrapper> {
        Wrapper::new(next, |slot| {
            let program = self.begin(rotation);
            program.hand_over(slot, port, A::FIRST_OCTET, A::OFFSETS)
        })
    }

    /// Has a first packet go to every service.
    fn run_once(&self, rotation: Rotation, kind: Kind, count: u32) -> Result<()> {
        let ingress = self
            .node
            .datapath
            .program("ingress")
            .context("no ingress")?;
        let program = self.wrapper(rotation, SERVICE_PORT, ingress)?;
        time(&program.program, &A::packet(kind), count).map(drop)
    }

    /// The real program, less the wrapper in front of it.
    fn real(
        &self,
        name: &str,
        rotation: Rotation,
        port: u16,
        kind: Kind,
        repetitions: u32,
    ) -> Result<Figure> {
        let real = self
            .node
            .datapath
            .program(name)
            .context("no such program")?;
        let packet = A::packet(kind);
        let harness = self.wrapper(rotation, port, self.empty.as_fd())?;
        let wrapped = self.wrapper(rotation, port, real)?;
        difference(&wrapped.program, &harness.program, &packet, repetitions)
    }

    /// Replies from the backends, at egress.
    fn reply(&self, count: u32) -> Result<Figure> {
        let real = self.node.datapath.program("egress").context("no egress")?;
        let rotation = Rotation {
            base: 0,
            count,
            clients: false,
        };
        let turned = |next| {
            Wrapper::new(next, |slot| {
                let backends = (node::BACKENDS, node::BACKEND_PORT);
                let program = self.begin(rotation);
                program.hand_over_reply(slot, backends, A::FIRST_OCTET, A::OFFSETS)
            })
        };
        let (harness, wrapped) = (turned(self.empty.as_fd())?, turned(real)?);
        difference(
            &wrapped.program,
            &harness.program,
            &A::packet(Kind::Ack),
            REPETITIONS,
        )
    }

    fn bare_lookup(&self, rotation: Rotation) -> Result<Figure> {
        let build = |looks: bool| {
            let mut program = self.begin(rotation);
            let key = program.key(self.key.bytes(), SERVICE_PORT, A::FIRST_OCTET, A::OFFSETS);
            if looks {
                program.lookup(&self.flows, key);
            }
            load(&program.finish())
        };
        difference(
            &build(true)?,
            &build(false)?,
            &A::packet(Kind::Ack),
            REPETITIONS,
        )
    }

    fn bare_inserts(&self, rotation: Rotation) -> Result<Figure> {
        let (key_size, value_size) = (size_of::<FlowKey<A>>(), size_of::<FlowEntry<A>>());
        let capacity = node::FLOWS;
        let map = create_map(
            MapKind::Hash,
            key_size as u32,
            value_size as u32,
            capacity,
            0,
            None,
        )?;
        let build = |inserts: bool| {
            let mut program = self.begin(rotation);
            let key = program.key(self.key.bytes(), SERVICE_PORT, A::FIRST_OCTET, A::OFFSETS);
            let value = program.value(value_size, key);
            if inserts {
                program.insert(&map, key, value);
                // The key's last word is the protocol: another key.
                program.store_word(key + key_size as i16 - 4, 1);
                program.insert(&map, key, value);
            }
            load(&program.finish())
        };
        difference(
            &build(true)?,
            &build(false)?,
            &A::packet(Kind::Ack),
            FIRST_REPETITIONS,
        )
    }
}

/// A program that goes on in another one, which its array holds as long as somebody holds the array.
struct Wrapper {
    program: OwnedFd,
    _slot: OwnedFd,
}

impl Wrapper {
    /// Loads what is written for an array with `next` in it.
    fn new(next: BorrowedFd<'_>, write: impl FnOnce(&OwnedFd) -> Vec<Instruction>) -> Result<Self> {
        let slot = slot_with(next)?;
        Ok(Self {
            program: load(&write(&slot))?,
            _slot: slot,
        })
    }
}

/// Minimum and median of what `program` takes longer than `harness`, which runs beside it each time.
fn difference(
    program: &OwnedFd,
    harness: &OwnedFd,
    packet: &[u8],
    repetitions: u32,
) -> Result<Figure> {
    let mut times = Vec::new();
    let mut harness_times = Vec::new();
    for _ in 0..RUNS {
        harness_times.push(time(harness, packet, repetitions)?);
        times.push(time(program, packet, repetitions)?);
    }
    let harness = summary(&harness_times);
    let (minimum, median) = summary(&times);
    Ok((minimum - harness.0, median - harness.1))
}

fn summary(times: &[f64]) -> Figure {
    let minimum = times.iter().copied().fold(f64::INFINITY, f64::min);
    (minimum, median(times))
}

fn time(program: &OwnedFd, packet: &[u8], repetitions: u32) -> Result<f64> {
    let begin = Instant::now();
    let run = test_run(program.as_fd(), packet, &[], repetitions)?;
    let time = begin.elapsed();
    ensure!(run.result == u32::MAX, "the packet passes: {}", run.result);
    Ok(time.as_nanos() as f64 / f64::from(repetitions))
}
