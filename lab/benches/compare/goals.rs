// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the measured figures with portolan's goals. From `Results` alone.

use crate::{
    plan::{Measure, Proxy},
    results::{Live, Measured, Results},
};
use lab::load::setup::Setup;

/// A goal and whether the figures reach it.
pub(crate) struct Goal {
    pub(crate) what: String,
    pub(crate) wanted: String,
    pub(crate) seen: String,
    /// By how much the goal is missed; None if it is reached.
    pub(crate) missed: Option<String>,
}

const SETUPS: [Setup; 2] = [Setup::Bare, Setup::Netfilter];

const PORTOLAN: [Proxy; 3] = [
    Proxy::PortolanSocket,
    Proxy::PortolanPacket,
    Proxy::PortolanAuto,
];

/// Figures, each behind a text with the conditions in which it was measured.
type Seen = Vec<(String, f64)>;

struct Figures<'a> {
    results: &'a Results,
    services: Vec<u32>,
}

/// Returns every goal for which there are measurements.
pub(crate) fn goals(results: &Results) -> Vec<Goal> {
    let services = results.services();
    let figures = Figures { results, services };
    let packet_path = if results.machine.plumbing == "bridge" {
        0.85
    } else {
        0.93
    };
    let changes = |name: &str, p50: bool, service: bool| {
        let which = if p50 { "p50" } else { "p99" };
        let figures = figures.each(Setup::Netfilter, Proxy::PortolanSocket, |measured, _| {
            let changes = measured.changes.as_ref()?;
            let of = if service {
                changes.service
            } else {
                changes.endpoint
            };
            Some(if p50 { of.p50 } else { of.p99 })
        });
        let most = match (p50, service) {
            (true, _) => 5.0,
            (false, true) => 25.0,
            (false, false) => 10.0,
        };
        at_most(format!("{name}, {which}, ms"), most, figures)
    };
    let start = |most: f64, of: u32| {
        let figures = figures.each(Setup::Netfilter, Proxy::PortolanSocket, |measured, n| {
            (n == of).then_some(measured.start.as_ref()?.answered)
        });
        at_most(
            format!("start until the last of {of} services answers, s"),
            most,
            figures,
        )
    };
    let far = |what: &str, wanted: f64, setup, proxy| {
        let seen = figures.beside_nftables(setup, proxy, Measure::NodePortRemote);
        at_least(what.to_owned(), wanted, seen)
    };
    let mut all = vec![
        at_least(
            "short connections at the socket, of direct".to_owned(),
            0.97,
            figures.ratios(Proxy::PortolanSocket, Measure::LastService),
        ),
        at_least(
            "short connections on the packet path, of direct".to_owned(),
            packet_path,
            figures.ratios(Proxy::PortolanPacket, Measure::LastService),
        ),
        at_least(
            "short connections at the socket on a bare node, of nftables".to_owned(),
            1.25,
            figures.beside_nftables(Setup::Bare, Proxy::PortolanSocket, Measure::LastService),
        ),
        at_most(
            "growth of a short connection's time from the fewest to the most services, %"
                .to_owned(),
            5.0,
            figures.growth(),
        ),
        changes("a changed endpoint", true, false),
        changes("a changed endpoint", false, false),
        changes("a new service", true, true),
        changes("a new service", false, true),
        at_most(
            "the agent's share of a change, ms".to_owned(),
            1.0,
            figures.each(Setup::Netfilter, Proxy::PortolanSocket, |measured, _| {
                Some(measured.changes.as_ref()?.sync)
            }),
        ),
        start(2.0, 10_000),
        start(6.0, 50_000),
        start(12.0, 100_000),
        at_most(
            "full sync of 50 000 services, s".to_owned(),
            0.5,
            figures.each(Setup::Netfilter, Proxy::PortolanSocket, |measured, n| {
                (n == 50_000).then_some(measured.start.as_ref()?.synced)
            }),
        ),
        at_most(
            "memory beyond 15 MiB + 2 kB a service + 100 B an endpoint, MiB".to_owned(),
            0.0,
            figures.each(Setup::Netfilter, Proxy::PortolanSocket, |measured, n| {
                let allowed = 15.0 + f64::from(n) * 2_200.0 / f64::from(1 << 20);
                Some(measured.start.as_ref()?.resident - allowed)
            }),
        ),
        at_most(
            "processor while 1 000 endpoints change a second, % of one".to_owned(),
            50.0,
            figures.churn(|churn| churn.processor),
        ),
        at_most(
            "the latest change meanwhile, ms".to_owned(),
            100.0,
            figures.churn(|churn| churn.latency.longest),
        ),
        figures.live(
            "live frames by a node port to another node past the stack, of nftables",
            2.0,
            Proxy::PortolanAuto,
        ),
        figures.live("the same by XDP", 5.0, Proxy::PortolanXdp),
        far(
            "packets by a node port to another node, of nftables",
            1.2,
            Setup::Netfilter,
            Proxy::PortolanPacket,
        ),
        far(
            "the same past the stack (`forwarding: auto`)",
            2.0,
            Setup::Netfilter,
            Proxy::PortolanAuto,
        ),
        far(
            "the same by the stack on a bare node, which kube-proxy cannot have",
            1.2,
            Setup::Bare,
            Proxy::PortolanPacket,
        ),
    ];
    all.extend(past_the_stack(&figures, &results.machine.plumbing));
    all.into_iter().flatten().collect()
}

/// Returns the goals of `forwarding: auto`, relative to direct connections: for each figure one
/// goal on a bare node, and one with conntrack active.
fn past_the_stack(figures: &Figures<'_>, plumbing: &str) -> Vec<Option<Goal>> {
    let short = match plumbing {
        "bridge" => [1.0, 1.15],
        _ => [1.05, 1.12],
    };
    let goals = [
        ("short connections", Measure::LastService, short),
        ("open connection", Measure::OpenConnection, [1.03, 1.1]),
        ("UDP queries", Measure::Datagrams, [1.0, 1.0]),
        ("throughput", Measure::Throughput, [0.98, 0.98]),
        (
            "node port to a pod here",
            Measure::NodePortLocal,
            [1.05, 1.12],
        ),
        ("connections to no service", Measure::NotOurs, [0.99, 0.99]),
    ];
    let each = goals.into_iter().flat_map(|(what, measure, wanted)| {
        SETUPS.into_iter().zip(wanted).map(move |(setup, wanted)| {
            let seen = figures.each(setup, Proxy::PortolanAuto, |measured, _| {
                Some(measured.packets.get(&measure)?.ratio.median)
            });
            let what = format!("past the stack, {what}, {} node, of direct", setup.name());
            at_least(what, wanted, seen)
        })
    });
    each.collect()
}

impl Figures<'_> {
    fn each(
        &self,
        setup: Setup,
        proxy: Proxy,
        figure: impl Fn(&Measured, u32) -> Option<f64>,
    ) -> Seen {
        let of = |services: &u32| {
            let seen = figure(self.results.measured(setup, proxy, *services)?, *services)?;
            Some((format!("{} node, {services} services", setup.name()), seen))
        };
        self.services.iter().filter_map(of).collect()
    }

    fn ratios(&self, proxy: Proxy, measure: Measure) -> Seen {
        let of_setup = |setup| {
            self.each(setup, proxy, |measured, _| {
                Some(measured.packets.get(&measure)?.ratio.median)
            })
        };
        SETUPS.into_iter().flat_map(of_setup).collect()
    }

    fn beside_nftables(&self, setup: Setup, proxy: Proxy, measure: Measure) -> Seen {
        self.each(setup, proxy, |measured, services| {
            let nftables = self
                .results
                .measured(Setup::Netfilter, Proxy::Nftables, services)?;
            let time = |measured: &Measured| Some(measured.packets.get(&measure)?.by_service);
            Some(time(nftables)? / time(measured)?)
        })
    }

    fn live(&self, what: &str, wanted: f64, proxy: Proxy) -> Option<Goal> {
        let of_flows = |one: &Live| {
            let of = format!("{} {}", one.flows, one.unit());
            (of, one.of_nftables.median)
        };
        let live = self.results.live.iter();
        let these = live.filter(|one| (one.setup, one.proxy) == (Setup::Netfilter, proxy));
        at_least(what.to_owned(), wanted, these.map(of_flows).collect())
    }

    /// Returns by how many percent the time of a short connection grows from the fewest to the most
    /// services. It is relative to direct connections: these become slower too if other programs
    /// use the machine's caches.
    fn growth(&self) -> Seen {
        let (Some(fewest), Some(most)) = (self.services.first(), self.services.last()) else {
            return Seen::new();
        };
        let mut seen = Seen::new();
        for setup in SETUPS {
            for proxy in PORTOLAN {
                let ratio = |services: u32| {
                    let packets = &self.results.measured(setup, proxy, services)?.packets;
                    Some(packets.get(&Measure::LastService)?.ratio.median)
                };
                if fewest != most
                    && let (Some(few), Some(many)) = (ratio(*fewest), ratio(*most))
                {
                    let of = format!("{}, {} node", proxy.name(), setup.name());
                    seen.push((of, (few / many - 1.0) * 100.0));
                }
            }
        }
        seen
    }

    fn churn(&self, figure: impl Fn(&crate::results::Churn) -> f64) -> Seen {
        self.each(Setup::Netfilter, Proxy::PortolanSocket, |measured, _| {
            let mut most = measured.churn.iter().filter(|churn| churn.wanted == 1_000);
            most.next().map(&figure)
        })
    }
}

fn at_least(what: String, wanted: f64, seen: Seen) -> Option<Goal> {
    let worst = seen.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let missed = (worst.1 < wanted).then(|| format!("by {:.3}", wanted - worst.1));
    Some(goal(
        what,
        format!("at least {wanted}"),
        &seen,
        worst,
        missed,
    ))
}

fn at_most(what: String, wanted: f64, seen: Seen) -> Option<Goal> {
    let worst = seen.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let missed = (worst.1 > wanted).then(|| format!("by {:.3}", worst.1 - wanted));
    Some(goal(
        what,
        format!("at most {wanted}"),
        &seen,
        worst,
        missed,
    ))
}

fn goal(
    what: String,
    wanted: String,
    seen: &Seen,
    worst: &(String, f64),
    missed: Option<String>,
) -> Goal {
    let (low, high) = seen
        .iter()
        .fold((f64::MAX, f64::MIN), |(low, high), (_, seen)| {
            (low.min(*seen), high.max(*seen))
        });
    let seen = if seen.len() == 1 {
        format!("{low:.3}")
    } else {
        format!("{low:.3} to {high:.3}; the worst: {}", worst.0)
    };
    Goal {
        what,
        wanted,
        seen,
        missed,
    }
}
