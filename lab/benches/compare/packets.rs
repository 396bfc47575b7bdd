// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Times connections and packets through services. Compares each, in rounds, with the same
//! operation on an equal node without a proxy.

use std::{
    net::{IpAddr, SocketAddr},
    sync::atomic::Ordering,
};

use anyhow::{Context, Result, ensure};

use crate::{
    plan::{CONNECT, Measure, PROCESSOR, Proxy},
    results::Measured,
    world::{NAMES, PORT_DIRECTLY, World, destinations},
};
use lab::{
    interrupt::INTERRUPTED,
    load::{
        client::{self, Took, histogram},
        records::{self, TARGETS},
        statistics::{interval, median},
        table::grouped,
    },
};

/// Operations of one measurement in one round. `EACH`: connections of each of the `CLIENTS`.
const CONNECTIONS: u32 = 200;
const EXCHANGES: u32 = 500;
const CLIENTS: u32 = 8;
const EACH: u32 = 40;
/// Enough, over all rounds, that a client's ports come again.
const EACH_FROM_OUTSIDE: u32 = 200;
const PACKETS: u32 = 2_000;

/// The destinations of one side of a comparison: the pods themselves, or services.
struct Side {
    is_service: bool,
    /// The destinations of short connections. The last one is the last service's address.
    many: Vec<SocketAddr>,
}

impl Side {
    fn direct() -> Result<Self> {
        let many = TARGETS.map(|pod| Ok((pod.parse::<IpAddr>()?, PORT_DIRECTLY).into()));
        Ok(Self {
            is_service: false,
            many: many.into_iter().collect::<Result<_>>()?,
        })
    }

    /// Returns the addresses of the services, in an order that is the same in every run.
    fn by_service(services: u32) -> Self {
        let last = services - 1;
        let visited = (0..last).map(|number| records::spread(number, last));
        let many = visited.chain([last]).map(records::address_of);
        Self {
            is_service: true,
            many: many.collect(),
        }
    }

    /// Does the operations of one round.
    fn work(&self, measure: Measure, round: u32) -> Result<Took> {
        let to = destinations(measure)[usize::from(self.is_service)];
        match measure {
            Measure::LastService => {
                let last = self.many[self.many.len() - 1];
                client::connections(&[last], CONNECTIONS)
            }
            Measure::RandomService | Measure::NotOurs => {
                let others = self.many.iter().cycle();
                let others = others.skip((round * CONNECTIONS) as usize);
                let these: Vec<_> = others.take(CONNECTIONS as usize).copied().collect();
                client::connections(&these, CONNECTIONS)
            }
            Measure::OpenConnection => client::exchanges(to, EXCHANGES),
            Measure::Datagrams => client::datagrams(to, EXCHANGES),
            Measure::Crowd => client::crowd(to, CLIENTS, EACH),
            Measure::NodePortCrowd => client::crowd(to, CLIENTS, EACH_FROM_OUTSIDE),
            Measure::NodePortLocal | Measure::NodePortRemote => client::flood(to, PACKETS),
        }
    }

    /// Does the operations of one round on a node, from a pod or from outside. Fails if an answer
    /// is missing or comes from an unknown server.
    fn run(&self, world: &World, measure: Measure, round: u32) -> Result<Took> {
        let work = || self.work(measure, round);
        let outside = &world.topology.outside;
        if measure == Measure::NodePortCrowd {
            return client::run(outside, None, work);
        }
        let is_flood = matches!(measure, Measure::NodePortLocal | Measure::NodePortRemote);
        if !is_flood {
            let took = client::run(world.client(), Some(&world.cgroup), work)?;
            let foreign = took.answered.iter().find(|name| !NAMES.contains(name));
            ensure!(foreign.is_none(), "{foreign:?} answered");
            return Ok(took);
        }
        world.empty_sinks();
        let took = client::run(outside, None, work)?;
        let came = world.empty_sinks();
        // A few packets may still be on the network. A path that drops packets would look fast.
        let enough = PACKETS / 100 * 99;
        ensure!(came >= enough, "{came} of {PACKETS} packets arrived");
        Ok(took)
    }
}

/// Times every operation in rounds: by services on the node `served`, directly on `plain`.
pub(crate) fn measure(
    plain: &World,
    served: &World,
    (measures, rounds): (&[Measure], u32),
    measured: &mut Measured,
) -> Result<()> {
    let directly = Side::direct()?;
    let by_service = match measured.cell.proxy {
        Proxy::Direct => Side::direct()?,
        _ => Side::by_service(measured.cell.services),
    };
    for measure in measures.iter().copied() {
        let side = match measure {
            Measure::NotOurs => &directly,
            _ => &by_service,
        };
        let one = |round: u32, of_service: bool| match of_service {
            false => directly.run(plain, measure, round),
            true => side.run(served, measure, round),
        };
        let took = in_rounds(rounds, one).with_context(|| measure.heading())?;
        record(measure, &took, measured);
    }
    Ok(())
}

/// A round is run again if its direct figure differs from the median of all by more than this.
const UNSTEADY: f64 = 0.2;
/// The most rounds, as a multiple of the requested ones.
const MOST_ROUNDS: u32 = 3;

/// What one round took: directly, then by service.
type Pair = [Took; 2];

fn in_rounds(rounds: u32, one: impl Fn(u32, bool) -> Result<Took>) -> Result<Vec<Pair>> {
    // The first round does not count: caches are cold, and neighbours' MAC addresses are unknown.
    one(0, false)?;
    one(0, true)?;
    let round = |number: u32| -> Result<Pair> {
        ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
        // The direct operation goes first in even rounds, the one by service in odd ones.
        let is_odd = !number.is_multiple_of(2);
        let mut pair = [one(number, is_odd)?, one(number, !is_odd)?];
        pair.rotate_left(is_odd.into());
        Ok(pair)
    };
    let mut kept = Vec::new();
    for number in 0..rounds * MOST_ROUNDS {
        kept.push(round(number)?);
        if kept.len() as u32 == rounds {
            let direct: Vec<_> = kept.iter().map(|[direct, _]: &Pair| direct.each).collect();
            let middle = median(&direct);
            if number + 1 < rounds * MOST_ROUNDS {
                kept.retain(|[direct, _]| (direct.each / middle - 1.0).abs() <= UNSTEADY);
            }
            if kept.len() as u32 == rounds {
                break;
            }
        }
    }
    ensure!(kept.len() >= 2, "the machine is too busy to measure on");
    Ok(kept)
}

fn record(measure: Measure, pairs: &[Pair], measured: &mut Measured) {
    let of = |side: usize, figure: fn(&Took) -> f64| {
        let figures = pairs.iter().map(|pair| figure(&pair[side]));
        median(&figures.collect::<Vec<_>>())
    };
    let ratios: Vec<_> = pairs.iter().map(|[a, b]| a.each / b.each).collect();
    let [ratio, low, high] = interval(&ratios);
    let rate = grouped((1e6 / of(1, |took| took.each)) as u32);
    let shown = format!("{ratio:.3} [{low:.3} {high:.3}] ({rate})");
    measured.add(measure.heading(), ratio, shown);
    if measure != Measure::LastService {
        return;
    }
    let connects = |side: usize| {
        let mut all = histogram();
        for pair in pairs {
            // Cannot fail: both histograms have the same bounds.
            _ = all.add(&pair[side].connects);
        }
        let quantiles = [0.5, 0.99, 0.999];
        let [a, b, c] = quantiles.map(|quantile| all.value_at_quantile(quantile) as f64 / 1e3);
        (a, format!("{a:.1} / {b:.1} / {c:.0}"))
    };
    let ((_, direct), (median, served)) = (connects(0), connects(1));
    measured.add(CONNECT, median, format!("{served} ({direct})"));
    let [direct, served] = [0, 1].map(|side| of(side, |took| took.processor));
    measured.add(PROCESSOR, served, format!("{served:.1} ({direct:.1})"));
}
