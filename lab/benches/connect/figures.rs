// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Computes the rates' ratios over all rounds, with their intervals, and which goals they miss.
//! Pure.

use lab::{
    load::{
        client::Took,
        setup::Setup,
        statistics::{Interval, interval},
    },
    node::topology::Plumbing,
};

use crate::{Case, mode::Mode};

/// The number of destinations in a round: the pod's own port on the node without an agent and on
/// the node with it; then the port behind the service on the former and the service on the latter.
pub(crate) const ARMS: usize = 4;

pub(crate) const PLAIN: usize = 0;

pub(crate) const BESIDE: usize = 1;

pub(crate) const DIRECTLY: usize = 2;

pub(crate) const BY_SERVICE: usize = 3;

/// What each destination's jobs took: connections, datagrams, exchanges on an open connection.
pub(crate) type Round = [[Took; 3]; ARMS];

pub(crate) struct Figures {
    service_tcp: Interval,
    /// Microseconds that connect() to the service takes longer than to the pod.
    connect: Interval,
    service_udp: Interval,
    service_open: Interval,
    other_tcp: Interval,
    other_udp: Interval,
    /// Microseconds that one connection to the pod takes.
    direct: f64,
    run_again: u32,
}

impl Figures {
    pub(crate) fn of(pairs: &[(Round, Round)], run_again: u32) -> Self {
        let over = |figure: &dyn Fn(&(Round, Round)) -> f64| {
            interval(&pairs.iter().map(figure).collect::<Vec<_>>())
        };
        let ratio = |without: usize, with: usize, job: usize| {
            let of = move |round: &Round| round[without][job].each / round[with][job].each;
            over(&move |(a, b)| (of(a) * of(b)).sqrt())
        };
        let more = |round: &Round| round[BY_SERVICE][0].connect - round[DIRECTLY][0].connect;
        let direct = |round: &Round| round[DIRECTLY][0].each;
        Self {
            service_tcp: ratio(DIRECTLY, BY_SERVICE, 0),
            connect: over(&|(a, b)| f64::midpoint(more(a), more(b))),
            service_udp: ratio(DIRECTLY, BY_SERVICE, 1),
            service_open: ratio(DIRECTLY, BY_SERVICE, 2),
            other_tcp: ratio(PLAIN, BESIDE, 0),
            other_udp: ratio(PLAIN, BESIDE, 1),
            direct: over(&|(a, b)| f64::midpoint(direct(a), direct(b))).median,
            run_again,
        }
    }

    pub(crate) fn print(&self, case: &Case<'_>) {
        let show =
            |Interval { median, low, high }: Interval| format!("{median:.3} [{low:.3} {high:.3}]");
        println!(
            "{:>7} {:>9} {:>8} {:>6}  {:<19} {:<24} {:<19} {:<19} {:<19} {:<19} {:>6.1} {:>7}",
            case.plumbing.name(),
            case.setup.name(),
            case.services,
            case.mode.name(),
            show(self.service_tcp),
            show(self.connect),
            show(self.service_udp),
            show(self.service_open),
            show(self.other_tcp),
            show(self.other_udp),
            self.direct,
            self.run_again
        );
    }

    /// Returns the goals that the figures miss, one line each.
    pub(crate) fn missed(&self, case: &Case<'_>) -> Vec<String> {
        if !case.mode.has_agent() {
            return Vec::new();
        }
        let socket = case.mode == Mode::Socket;
        let mut goals = vec![
            ("TCP not ours", self.other_tcp.median, 0.98),
            ("UDP not ours", self.other_udp.median, 0.98),
        ];
        if socket {
            goals.push(("TCP by service", self.service_tcp.median, 0.97));
            goals.push(("TCP by service, lower bound", self.service_tcp.low, 0.95));
            // Connected UDP sockets of pods are translated on the packet path, not at their
            // sockets.
            let least = match case.plumbing {
                Plumbing::Bridge => 0.90,
                Plumbing::Routed => 0.95,
            };
            goals.push(("UDP by service", self.service_udp.median, least));
        } else if case.mode.is_past() {
            let least = match (case.plumbing, case.setup) {
                (Plumbing::Bridge, Setup::Bare) => 1.0,
                (Plumbing::Bridge, Setup::Netfilter) => 1.15,
                (Plumbing::Routed, Setup::Bare) => 1.05,
                (Plumbing::Routed, Setup::Netfilter) => 1.12,
            };
            goals.push(("TCP by service", self.service_tcp.median, least));
        } else if case.plumbing == Plumbing::Routed {
            goals.push(("TCP by service", self.service_tcp.median, 0.93));
        } else {
            goals.push(("TCP by service", self.service_tcp.median, 0.85));
        }
        let at = format!(
            "{}, {}, {} services, {}",
            case.plumbing.name(),
            case.setup.name(),
            case.services,
            case.mode.name()
        );
        let mut missed: Vec<_> = goals
            .into_iter()
            .filter(|(_, seen, least)| seen < least)
            .map(|(what, seen, least)| format!("{at}: {what} {seen:.3}, at least {least}"))
            .collect();
        if socket && self.connect.median > 2.0 {
            missed.push(format!(
                "{at}: connect() takes {:.2} µs more, at most 2",
                self.connect.median
            ));
        }
        missed
    }
}
