// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Benchmark of the packet path: nanoseconds per packet, from test runs of the real programs.
//! Compared with bare map operations, which the smallest possible programs do in the same run.
//! Needs root. `cargo xtask bench packet`.
//!
//! Each figure is the time of one test run with many repetitions, divided by their number; the
//! minimum and median of ten runs are shown. A repetition gets the packet as the last repetition
//! left it, so a wrapper changes it and then calls the real program. The time of the same wrapper
//! in front of an empty program is subtracted. Repetitions go through all services, and those for
//! first packets also through many clients.

mod bare;
mod bench;
mod node;
mod past;

use anyhow::Result;
use clap::Parser;
use lab::load::cpu::{CPU, pin};
use proxy_common::{V4, V6};

use bare::Rotation;
use bench::{Bench, FIRST_REPETITIONS, Figure, REPETITIONS, RUNS};
use node::{Ends, Kind, Node, SERVICE_PORT};
use past::{Past, PastNode};

/// The base of addresses that no service has. With `SERVICE_PORT` the port is a service's, though.
const OUTSIDE: u32 = 0x30_0000;
const OTHER_PORT: u16 = 5_000;

/// Measures the cost of the packet path to a packet
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
    for size in arguments.services.iter().copied() {
        let node = Node::open(size, false)?;
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
        for (at, heading) in Figures::HEADINGS.iter().enumerate() {
            if !["hit", "first packet", "TCP not ours", "UDP port known"].contains(heading) {
                continue;
            }
            let ratio = v6[at].0 / v4[at].0;
            let verdict = if ratio <= 1.3 { "reached" } else { "missed" };
            println!(
                "{:>8}         {heading}: IPv6 {ratio:.2} times IPv4, at most 1.3: {verdict}",
                pair[0].0,
            );
        }
    }
    for size in arguments.services {
        let mut node = PastNode::open(size)?;
        let of = [node.measure::<V4>(size)?, node.measure::<V6>(size)?];
        print_past(size, &of);
    }
    Ok(())
}

/// Prints the times of known flows that bypass the stack, and whether they reach their goals.
fn print_past(size: u32, [v4, v6]: &[Past; 2]) {
    let ways = |past: &Past| {
        [
            ("by the routes", Some(past.routes)),
            ("into a pod", past.pods),
            ("at XDP", past.xdp),
        ]
    };
    for ((way, four), (_, six)) in ways(v4).into_iter().zip(ways(v6)) {
        let (Some(four), Some(six)) = (four, six) else {
            continue;
        };
        println!("\n{size} services, hits past the stack, {way}:");
        for (family, (minimum, median), bare) in [("IPv4", four, v4.bare), ("IPv6", six, v6.bare)] {
            let most = bare.0 + 45.0;
            let verdict = if minimum <= most { "reached" } else { "missed" };
            println!(
                "{family}: {minimum:.0} ({median:.0}) ns; bare hit {:.0} ns, at most {most:.0}: {verdict}",
                bare.0
            );
        }
        let ratio = six.0 / four.0;
        let verdict = if ratio <= 1.15 { "reached" } else { "missed" };
        println!("IPv6 {ratio:.2} times IPv4, at most 1.15: {verdict}");
    }
}

/// The figures of one number of services, under these headings.
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
        // Makes one flow from the bench's client to every service.
        bench.run_once(services, Kind::Syn, size)?;
        let ingress =
            |rotation, port, kind| bench.real("ingress", rotation, port, kind, REPETITIONS);
        let [bare_hit, bare_miss] = [bench.bare_lookup(services)?, bench.bare_lookup(outside)?];
        let hit = ingress(services, SERVICE_PORT, Kind::Ack)?;
        let reply = bench.reply(size)?;
        let tcp = ingress(outside, SERVICE_PORT, Kind::Ack)?;
        let udp = ingress(outside, OTHER_PORT, Kind::Udp)?;
        let known = ingress(outside, SERVICE_PORT, Kind::Udp)?;
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

    /// Returns what was measured, its minimum, and the most that it should be.
    fn targets(&self) -> [(&'static str, f64, f64); 4] {
        let [bare_hit, bare_miss, inserts, hit, _, first, tcp, udp, _] =
            self.0.map(|(least, _)| least);
        [
            ("hit", hit, bare_hit + 40.0),
            ("first packet", first, inserts + 150.0),
            ("TCP not ours", tcp, bare_miss + 15.0),
            ("UDP not ours", udp, bare_miss + 15.0),
        ]
    }
}
