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
#[path = "../../tests/fuzz/flow_table.rs"]
mod flow_table;
mod node;
mod past;

use anyhow::Result;
use clap::Parser;
use lab::load::cpu::{CPU, pin};
use proxy_common::{V4, V6};

use bare::{Direction, Rotation};
use bench::{Bench, FIRST_REPETITIONS, Figure, REPETITIONS, RUNS};
use node::{BACKEND_PORT, BACKENDS, Ends, Kind, Node, SERVICE_PORT};
use past::PastNode;

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

/// What was measured, its time, and the most that the minimum should be.
type Row = (&'static str, Figure, Option<f64>);

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    pin()?;
    println!("ns per packet, harness subtracted: minimum (median) of {RUNS} runs, on CPU {CPU}");
    println!("IPv6 should be at most 1.3 times IPv4, in hits past the stack at most 1.15 times");
    println!(
        "{:>8} {:<20} {:>30} {:>30} IPv6/IPv4",
        "services", "", "IPv4", "IPv6"
    );
    for size in arguments.services.iter().copied() {
        let node = Node::open(size, false)?;
        let rows = [measure::<V4>(&node, size)?, measure::<V6>(&node, size)?];
        print(size, rows);
    }
    for size in arguments.services {
        let mut node = PastNode::open(size)?;
        print(size, [node.measure::<V4>(size)?, node.measure::<V6>(size)?]);
    }
    Ok(())
}

/// Prints what was measured by IPv4 and by IPv6.
fn print(size: u32, [v4, v6]: [Vec<Row>; 2]) {
    let cell = |(least, median): Figure, most: Option<f64>| {
        let most = most.map(|most| {
            let verdict = if least <= most { "reached" } else { "missed" };
            format!(", at most {most:.0}: {verdict}")
        });
        format!("{least:.0} ({median:.0}){}", most.unwrap_or_default())
    };
    for ((what, four, most), (_, six, most_of_six)) in v4.into_iter().zip(v6) {
        println!(
            "{size:>8} {what:<20} {:>30} {:>30} {:.2}",
            cell(four, most),
            cell(six, most_of_six),
            six.0 / four.0
        );
    }
}

fn measure<A: Ends>(node: &Node, size: u32) -> Result<Vec<Row>> {
    let services = Rotation::through(size);
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
    let ingress = |rotation, port, kind, repetitions| {
        bench.real("ingress", rotation, Direction::To(port), kind, repetitions)
    };
    let replies = Direction::From(BACKENDS, BACKEND_PORT);
    let [bare_hit, bare_miss] = [bench.bare_lookup(services)?, bench.bare_lookup(outside)?];
    let hit = ingress(services, SERVICE_PORT, Kind::Ack, REPETITIONS)?;
    let reply = bench.real("egress", services, replies, Kind::Ack, REPETITIONS)?;
    let tcp = ingress(outside, SERVICE_PORT, Kind::Ack, REPETITIONS)?;
    let udp = ingress(outside, OTHER_PORT, Kind::Udp, REPETITIONS)?;
    let known = ingress(outside, SERVICE_PORT, Kind::Udp, REPETITIONS)?;
    let inserts = bench.bare_inserts(begin)?;
    let first = ingress(begin, SERVICE_PORT, Kind::Syn, FIRST_REPETITIONS)?;
    Ok(vec![
        ("bare hit", bare_hit, None),
        ("bare miss", bare_miss, None),
        ("2 bare inserts", inserts, None),
        ("hit", hit, Some(bare_hit.0 + 40.0)),
        ("reply", reply, None),
        ("first packet", first, Some(inserts.0 + 150.0)),
        ("TCP not ours", tcp, Some(bare_miss.0 + 15.0)),
        ("UDP not ours", udp, Some(bare_miss.0 + 15.0)),
        ("UDP port known", known, None),
    ])
}
