// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records the exchanges of one client: counts, durations in the first and the last minute, source
//! ports, failures.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use lab::load::client::histogram;

use crate::clients::Plan;

/// At most this many failures of each client are printed.
const PRINTED: u64 = 5;

/// The time of a run, from the moment when the clients begin.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) begin: Instant,
    pub(crate) length: Duration,
}

impl Span {
    /// Returns the length of the first and of the last window of time: a minute, or a quarter of a
    /// short run.
    pub(crate) fn window(self) -> Duration {
        (self.length / 4).min(Duration::from_secs(60))
    }
    pub(crate) fn end(self) -> Instant {
        self.begin + self.length
    }
    pub(crate) fn is_over(self) -> bool {
        Instant::now() >= self.end()
    }
}

/// One exchange of a client with a service.
pub(crate) struct Exchange {
    pub(crate) began: Instant,
    /// The time at which the exchange was answered or failed.
    pub(crate) ended: Instant,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) to: SocketAddr,
    /// Whether the exchange began with a new connection or socket.
    pub(crate) is_new: bool,
    pub(crate) outcome: Result<(), String>,
}

/// Counts and durations of all exchanges of one client.
pub(crate) struct Tally {
    pub(crate) plan: Plan,
    span: Span,
    pub(crate) done: u64,
    pub(crate) failed: u64,
    /// Failures that a disturbance excuses.
    pub(crate) excused: u64,
    /// Durations in nanoseconds of the exchanges in the first and in the last window of time.
    pub(crate) first: Histogram<u32>,
    pub(crate) last: Histogram<u32>,
    /// How often each source port was used for a new connection or socket. Key: the port.
    pub(crate) ports: BTreeMap<u16, u32>,
}

impl Tally {
    pub(crate) fn new(plan: Plan, span: Span) -> Self {
        Self {
            plan,
            span,
            done: 0,
            failed: 0,
            excused: 0,
            first: histogram(),
            last: histogram(),
            ports: BTreeMap::new(),
        }
    }

    pub(crate) fn note(&mut self, exchange: &Exchange) {
        let local = exchange.local.filter(|_| exchange.is_new);
        if let Some(local) = local {
            *self.ports.entry(local.port()).or_default() += 1;
        }
        let Span { begin, length } = self.span;
        let at = exchange.began.saturating_duration_since(begin);
        let took = exchange.ended.saturating_duration_since(exchange.began);
        let Err(error) = &exchange.outcome else {
            self.done += 1;
            let took = took.as_nanos() as u64;
            if at < self.span.window() {
                self.first.saturating_record(took);
            } else if at + self.span.window() > length {
                self.last.saturating_record(took);
            }
            return;
        };
        self.failed += 1;
        if self.failed <= PRINTED {
            let from = exchange.local.map(|local| local.to_string());
            println!(
                "FAIL {}: {} -> {}: {error}, begun after {:.3} s, known {:.3} s later",
                self.plan,
                from.unwrap_or_default(),
                exchange.to,
                at.as_secs_f64(),
                took.as_secs_f64()
            );
        }
    }

    /// Returns the mean number of connections over all source ports that were used.
    pub(crate) fn times_each_port(&self) -> f64 {
        let connections: u32 = self.ports.values().sum();
        f64::from(connections) / self.ports.len().max(1) as f64
    }
}
