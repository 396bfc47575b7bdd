// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clients of the soak test. Each is a thread that does one exchange after the other, at its
//! pace, until the end of the run.

mod datagrams;
mod plan;
mod short;
mod streams;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::atomic::{AtomicU64, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::Result;
use lab::random::Random;

pub(crate) use self::plan::{HELD, HOLDER, Plan, plans};
use crate::{
    cluster::{PORT, Service, frontend},
    pods::ROLLING,
    record::{Begun, Exchange, Span, Tally},
    world::{Origin, World, is_here, v6_of},
};

/// Timeout of a TCP connection or of an answer over TCP: longer than until the second SYN.
const PATIENCE: Duration = Duration::from_secs(5);

/// The time from a change of endpoints until no new connection follows the old ones.
const TO_FOLLOW: Duration = Duration::from_secs(3);

/// What one kind of client does.
pub(crate) trait Client {
    /// Does one or several exchanges, and notes the outcome of each.
    fn exchange(&mut self, calls: &mut Calls<'_>);
}

/// The service that a client calls, and what else it needs for its calls.
pub(crate) struct Calls<'a> {
    service: Service,
    /// The service's address. None if there is no proxy or the client calls an endpoint directly.
    frontend: Option<SocketAddr>,
    world: &'a World,
    span: Span,
    /// Whether the client is a process of the node, and its service's endpoints are replaced.
    endpoints_go: bool,
    /// Whether only endpoints of the node may answer, and see the client's own address.
    is_local: bool,
    random: Random,
    tally: Tally,
}

impl Calls<'_> {
    fn address(&mut self) -> SocketAddr {
        match self.frontend {
            Some(address) => address,
            None => {
                let endpoint = self.random.pick(&self.world.cluster.ready(self.service));
                match self.tally.plan.is_v6 {
                    true => (v6_of(endpoint), PORT).into(),
                    false => (endpoint, PORT).into(),
                }
            }
        }
    }

    /// Fails if the pod that has answered had been left out of the service's endpoints for longer
    /// than a change may take when the exchange began.
    fn ensure_endpoint(&self, answer: &Answer, begun: &Begun) -> io::Result<()> {
        let left = self.world.cluster.left(self.service, answer.by);
        let since = left.map(|left| begun.began.saturating_duration_since(left));
        match since.filter(|since| self.frontend.is_some() && *since > TO_FOLLOW) {
            None => Ok(()),
            Some(since) => Err(io::Error::other(format!(
                "{} answers, which has been no ready endpoint for {since:.1?}",
                answer.by
            ))),
        }
    }

    /// Fails if the answer breaks `externalTrafficPolicy: Local`. `own` is the address of the
    /// client's socket. Its port may have changed: where another flow has the tuple, portolan takes
    /// another source port, as nf_nat does.
    fn ensure_local(&self, answer: &Answer, own: SocketAddr) -> io::Result<()> {
        let (by, seen) = (answer.by, answer.seen);
        let is_own = match own.ip().is_unspecified() {
            // A UDP socket that is not connected. Only the node could have changed its address.
            true => !self.world.topology.node_addresses.contains(&seen.ip()),
            false => seen.ip() == own.ip(),
        };
        if self.is_local && !(is_here(by) && is_own) {
            let text = format!("{by} answers, and sees {seen} as the client {own}");
            return Err(io::Error::other(text));
        }
        Ok(())
    }

    fn request(&self, verb: &str, numbers: [u64; 3]) -> String {
        let [a, b, c] = numbers;
        format!("{verb} {} {a} {b} {c}\n", self.service.bit())
    }

    /// Does one exchange, on a connection or socket that is kept or on a new one, and notes its
    /// outcome. Returns what `work` returns; None if it has failed.
    fn exchange<T>(
        &mut self,
        kept: Option<Begun>,
        work: impl FnOnce(&mut Self, &mut Begun) -> io::Result<T>,
    ) -> Option<T> {
        let from = self.tally.plan.origin.source();
        let mut begun = kept.map_or_else(|| Begun::now(self.address(), from), Begun::again);
        let outcome = work(self, &mut begun);
        self.note(&begun.ends(&outcome));
        outcome.ok()
    }

    /// Does one exchange by `work`, on what is kept or `open` makes; kept if `work` returns true.
    fn exchange_on<T>(
        &mut self,
        kept: &mut Kept<T>,
        open: impl FnOnce(&mut Self, &mut Begun) -> io::Result<T>,
        work: impl FnOnce(&mut Self, &mut T) -> io::Result<bool>,
    ) {
        let before = kept.take();
        let begun = before.as_ref().map(|(_, begun)| *begun);
        let after = self.exchange(begun, |calls, begun| {
            let mut one = match before {
                Some((one, _)) => one,
                None => open(calls, begun)?,
            };
            let stays = work(calls, &mut one)?;
            Ok(stays.then_some((one, *begun)))
        });
        *kept = after.flatten();
    }

    fn note(&mut self, exchange: &Exchange) {
        let Exchange { begun, ended, .. } = exchange;
        if exchange.outcome.is_err() && self.world.broken.excuses(begun.began, *ended) {
            self.tally.excused += 1;
        } else {
            self.tally.note(exchange);
        }
    }
}

/// A connection or socket that a client keeps, and the last exchange on it.
type Kept<T> = Option<(T, Begun)>;

/// Returns a number that no other request has.
fn nonce() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns the address with which a socket to `to` binds to all addresses of its family.
fn any(to: SocketAddr) -> IpAddr {
    match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// A server's answer to a request.
#[derive(Debug)]
struct Answer {
    /// The pod, by its IPv4 address.
    by: Ipv4Addr,
    number: u64,
    /// The client's address and port as the server sees them.
    seen: SocketAddr,
    /// Whether the server closes the connection after this answer.
    is_last: bool,
}

impl Answer {
    fn parse(text: &str) -> io::Result<Self> {
        let mut words = text.split_whitespace();
        let mut word = || words.next().unwrap_or_default();
        let (by, number) = (word().parse::<Ipv4Addr>(), word().parse());
        let (word, seen) = (word(), word().parse());
        match (by, number, word, seen) {
            (Ok(by), Ok(number), "ok" | "bye", Ok(seen)) => Ok(Self {
                by,
                number,
                seen,
                is_last: word == "bye",
            }),
            (Ok(by), Ok(_), "stranger", _) => {
                let fault = format!("{by} answers, which is no endpoint of the service");
                Err(io::Error::other(fault))
            }
            _ => Err(io::Error::other(format!("no sound answer: {text:.80}"))),
        }
    }
}

/// Fails if another pod answers now than before.
fn ensure_same(before: Option<Ipv4Addr>, now: Ipv4Addr) -> io::Result<()> {
    let Some(before) = before.filter(|before| *before != now) else {
        return Ok(());
    };
    let text = format!("{now} answers, and {before} did before and still serves");
    Err(io::Error::other(text))
}

impl Plan {
    /// Runs the planned client at its origin until the end of the run. Returns its tally.
    pub(crate) fn run(self, world: &World, span: Span, proxied: bool, seed: u64) -> Result<Tally> {
        let by = self.by.filter(|_| proxied);
        let calls = Calls {
            service: self.service,
            frontend: by.map(|by| frontend(self.service, by, self.is_v6)),
            world,
            span,
            is_local: by.is_some()
                && self.service == Service::Local
                && matches!(self.origin, Origin::OtherNode | Origin::Outside),
            endpoints_go: self.origin == Origin::Node && ROLLING.contains(&self.service),
            random: Random::new(seed),
            tally: Tally::new(self, span),
        };
        world.run(self.origin, || self.exchanges(calls))
    }

    fn exchanges(self, mut calls: Calls<'_>) -> Tally {
        let span = calls.span;
        let mut client = (self.make)();
        // Spreads the times at which the clients start.
        let offset = Duration::from_millis(calls.random.below(500));
        sleep((span.begin + offset).saturating_duration_since(Instant::now()));
        while !span.is_over() {
            let began = Instant::now();
            client.exchange(&mut calls);
            sleep((began + self.pace).saturating_duration_since(Instant::now()));
        }
        calls.tally
    }
}
