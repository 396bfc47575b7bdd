// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records the exchanges of one client: counts, first and last durations, ports, failures.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
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
    /// Returns the length of the first and the last window: a minute, or a quarter of the run.
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

/// An exchange that has begun.
#[derive(Clone, Copy)]
pub(crate) struct Begun {
    pub(crate) began: Instant,
    pub(crate) to: SocketAddr,
    /// The source address; None if the kernel chooses it.
    pub(crate) from: Option<IpAddr>,
    pub(crate) local: Option<SocketAddr>,
    /// Whether the exchange began with a new connection or socket.
    pub(crate) is_new: bool,
    /// When the exchange has failed, if that is not the time at which it is known.
    pub(crate) failed: Option<Instant>,
}

/// One exchange of a client with a service.
pub(crate) struct Exchange {
    pub(crate) begun: Begun,
    /// The time at which the exchange was answered or failed.
    pub(crate) ended: Instant,
    pub(crate) outcome: Result<(), String>,
}

impl Begun {
    pub(crate) fn now(to: SocketAddr, from: Option<IpAddr>) -> Self {
        Self {
            began: Instant::now(),
            to,
            from,
            local: None,
            is_new: true,
            failed: None,
        }
    }
    /// Begins another exchange on the same connection or socket. It is no longer new.
    pub(crate) fn again(self) -> Self {
        Self {
            began: Instant::now(),
            is_new: false,
            ..self
        }
    }
    pub(crate) fn ends<T>(self, outcome: &io::Result<T>) -> Exchange {
        Exchange {
            begun: self,
            ended: self.failed.unwrap_or_else(Instant::now),
            outcome: outcome.as_ref().map(drop).map_err(ToString::to_string),
        }
    }
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
        let begun = &exchange.begun;
        if let Some(local) = begun.local.filter(|_| begun.is_new) {
            *self.ports.entry(local.port()).or_default() += 1;
        }
        let Span { begin, length } = self.span;
        let at = begun.began.saturating_duration_since(begin);
        let took = exchange.ended.saturating_duration_since(begun.began);
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
            let from = begun.local.map(|local| local.to_string());
            println!(
                "FAIL {}: {} -> {}{}: {error}, begun after {:.3} s, known {:.3} s later",
                self.plan,
                from.unwrap_or_default(),
                begun.to,
                if begun.is_new { "" } else { ", kept" },
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
