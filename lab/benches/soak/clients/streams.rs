// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients with long TCP connections: keep-alive, a pool that uses its source ports again, long
//! streams, idle connections, and connections that are held to pods of which one goes without a
//! word: those to it end, all others stay.

use std::{
    io::{self, ErrorKind},
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use super::{Calls, Client, Kept, ensure_same, nonce, short::Connection};
use crate::{pods::Phase, record::Begun};

/// Requests on one connection of `KeepAlive`.
const REQUESTS: u32 = 100;
/// Connections of a `Pool`, and requests on each.
const POOL: usize = 8;
const POOL_REQUESTS: u32 = 20;
/// The first source port of a `Pool`: outside every range that the kernel chooses from.
const POOL_PORTS: u16 = 20_000;
/// Messages of one stream: more than a run has time for, and milliseconds between two of them.
const MESSAGES: u64 = 1_000_000;
const PERIOD: u64 = 50;
const IDLE: usize = 5;
/// Idle connections are used again when less than this time is left of the run.
const END: Duration = Duration::from_secs(8);

/// An open connection, the pod that has answered, and the number of requests so far.
struct Open {
    connection: Connection,
    by: Option<Ipv4Addr>,
    requests: u32,
}

impl Open {
    /// Sends a request for an answer of `length` bytes on the connection in `kept`. If `kept` is
    /// None, opens one from the source port `port` (0: any). The `most`-th request asks the server
    /// to close the connection. `kept` is None afterwards if the server has closed the connection,
    /// or after an error.
    fn ask(kept: &mut Kept<Self>, calls: &mut Calls<'_>, (port, most, length): (u16, u32, u64)) {
        let open = |connection| Self {
            connection,
            by: None,
            requests: 0,
        };
        calls.exchange_on(
            kept,
            |_, begun| Connection::open(begun, port).map(open),
            |calls, open| {
                open.requests += 1;
                let has_to_close = open.requests >= most;
                let answer = open.connection.ask(calls, length, has_to_close)?;
                ensure_same(open.by.replace(answer.by), answer.by)?;
                Ok(!answer.is_last)
            },
        );
    }
}

/// A client with requests of many sizes on one connection, and a new connection after 100 requests.
#[derive(Default)]
pub(super) struct KeepAlive(Kept<Open>);

impl Client for KeepAlive {
    fn exchange(&mut self, calls: &mut Calls<'_>) {
        let length = 1 << calls.random.below(17);
        Open::ask(&mut self.0, calls, (0, REQUESTS, length));
    }
}

/// A client with a pool of connections. Each is opened again from its previous source port.
#[derive(Default)]
pub(super) struct Pool {
    connections: [Kept<Open>; POOL],
    next: usize,
}

impl Client for Pool {
    fn exchange(&mut self, calls: &mut Calls<'_>) {
        self.next = (self.next + 1) % POOL;
        let port = POOL_PORTS + self.next as u16;
        let kept = &mut self.connections[self.next];
        Open::ask(kept, calls, (port, POOL_REQUESTS, 100));
    }
}

/// A client with one connection on which messages arrive all the time.
#[derive(Default)]
pub(super) struct Stream(Kept<Connection>);

impl Client for Stream {
    fn exchange(&mut self, calls: &mut Calls<'_>) {
        calls.exchange_on(
            &mut self.0,
            |calls, begun| {
                let mut connection = Connection::open(begun, 0)?;
                connection.send(&calls.request("stream", [nonce(), MESSAGES, PERIOD]))?;
                Ok(connection)
            },
            |_, connection| connection.receive().map(|_| true),
        );
    }
}

/// A client whose connections have no traffic between the beginning and the end of the run.
#[derive(Default)]
pub(super) struct Idle {
    connections: [Kept<Open>; IDLE],
    is_done: bool,
}

impl Client for Idle {
    fn exchange(&mut self, calls: &mut Calls<'_>) {
        let is_first = self.connections.iter().all(Option::is_none);
        let is_end = Instant::now() + END > calls.span.end();
        if self.is_done || !(is_first || is_end) {
            return;
        }
        self.is_done = is_end;
        for kept in &mut self.connections {
            Open::ask(kept, calls, (0, u32::MAX, 100));
        }
    }
}

/// How many connections a client holds, and how many more once the new pod is there. So many that
/// each of four pods has some.
const COUNT: usize = 24;
/// Connections to the pod that has gone must have ended after this time: 3 s until it counts as
/// gone, two walks through the flow table, and the next repetition of a segment.
const TO_END: Duration = Duration::from_secs(25);
/// A silent client sends again after this time.
const SILENCE: Duration = Duration::from_secs(11);

/// A connection that is held, its last exchange, and what had become of the pod that goes.
type Held = (Open, Begun, Phase);

/// A client that holds connections.
#[derive(Default)]
pub(super) struct Holder {
    held: Vec<Option<Held>>,
    next: usize,
}

impl Client for Holder {
    fn exchange(&mut self, calls: &mut Calls<'_>) {
        let departure = &calls.world.departure;
        let phase = departure.phase();
        let count = match phase {
            Phase::Replaced(_) => 2 * COUNT,
            _ => COUNT,
        };
        self.held.resize_with(count, || None);
        self.next = (self.next + 1) % count;
        let is_silent = self.next.is_multiple_of(2);
        let held = &mut self.held[self.next];
        if let Some((open, begun, opened)) = held
            && departure.concerns(open.by, *opened)
        {
            if is_over(open, *begun, calls, phase, is_silent) {
                *held = None;
            }
            return;
        }
        let (mut kept, opened) = match held.take() {
            Some((open, begun, opened)) => (Some((open, begun)), opened),
            None => (None, phase),
        };
        Open::ask(&mut kept, calls, (0, u32::MAX, 100));
        *held = kept.map(|(open, begun)| (open, begun, opened));
    }
}

/// Returns whether the connection to the pod that goes has ended, or should have, and counts it.
fn is_over(
    held: &mut Open,
    last: Begun,
    calls: &mut Calls<'_>,
    phase: Phase,
    silent: bool,
) -> bool {
    let (Phase::Gone(at) | Phase::Replaced(at)) = phase else {
        return false;
    };
    let speaks = !silent || at.elapsed() >= SILENCE;
    let begun = last.again();
    let departure = &calls.world.departure;
    let has_to_end = departure.has_to_end;
    let fault = match held.connection.end(calls, speaks) {
        None if has_to_end && at.elapsed() >= TO_END => {
            io::Error::other("the pod has gone, and the connection hangs")
        }
        None => return false,
        Some(error)
            if !has_to_end
                || [ErrorKind::ConnectionReset, ErrorKind::ConnectionAborted]
                    .contains(&error.kind()) =>
        {
            departure.count(calls.tally.plan.origin.is_at_socket());
            return true;
        }
        Some(error) => error,
    };
    calls.note(&begun.ends::<()>(&Err(fault)));
    true
}
