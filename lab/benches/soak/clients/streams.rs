// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients with long TCP connections: keep-alive, a pool that uses its source ports again, long
//! streams, idle connections.

use std::{io, time::Duration, time::Instant};

use super::{Answer, Begun, Calls, Client, ensure_same, nonce, short::Connection};
use crate::record::Exchange;

/// Requests on one connection of `KeepAlive`.
const REQUESTS: u32 = 100;
/// Connections of a `Pool`, and requests on each.
const POOL: usize = 8;
const POOL_REQUESTS: u32 = 20;
/// The first source port of a `Pool`: outside every range that the kernel chooses from.
const POOL_PORTS: u16 = 20_000;
/// Messages of one stream: more than a run has time for.
const MESSAGES: u64 = 1_000_000;
const PERIOD: Duration = Duration::from_millis(50);
const IDLE: usize = 5;
/// Idle connections are used again when less than this time is left of the run.
const END: Duration = Duration::from_secs(8);

/// An open connection, its server's last answer, and the number of requests so far.
struct Open {
    connection: Connection,
    begun: Begun,
    by: Option<Answer>,
    requests: u32,
}

impl Open {
    /// Sends a request for an answer of `length` bytes on the connection in `kept`. If `kept` is
    /// None, opens one from the source port `port` (0: any). The `most`-th request asks the server
    /// to close the connection. `kept` is None afterwards if the server has closed the connection,
    /// or after an error.
    fn ask(
        kept: &mut Option<Self>,
        calls: &mut Calls<'_>,
        port: u16,
        most: u32,
        length: u64,
    ) -> Exchange {
        let mut begun = Begun::next(kept.as_ref().map(|open| &open.begun), calls);
        let outcome = Self::try_ask(kept.take(), calls, &mut begun, port, most, length);
        let exchange = begun.ends(&outcome);
        *kept = outcome.ok().flatten();
        exchange
    }

    fn try_ask(
        kept: Option<Self>,
        calls: &Calls<'_>,
        begun: &mut Begun,
        port: u16,
        most: u32,
        length: u64,
    ) -> io::Result<Option<Self>> {
        let mut open = match kept {
            Some(open) => open,
            None => Self {
                connection: Connection::open(begun, port)?,
                begun: *begun,
                by: None,
                requests: 0,
            },
        };
        open.requests += 1;
        let is_last = open.requests >= most;
        let answer = open.connection.ask(calls, length, is_last)?;
        if let Some(before) = &open.by {
            ensure_same(before.by.into(), answer.by.into())?;
        }
        let stays = !answer.is_last;
        open.by = Some(answer);
        Ok(stays.then_some(open))
    }
}

/// A client with requests of many sizes on one connection, and a new connection after 100 requests.
#[derive(Default)]
pub(super) struct KeepAlive(Option<Open>);

impl Client for KeepAlive {
    fn exchange(&mut self, calls: &mut Calls<'_>, note: &mut dyn FnMut(Exchange)) {
        let length = 1 << calls.random.below(16);
        note(Open::ask(&mut self.0, calls, 0, REQUESTS, length));
    }
}

/// A client with a pool of connections. Each is opened again from its previous source port.
#[derive(Default)]
pub(super) struct Pool {
    connections: [Option<Open>; POOL],
    next: usize,
}

impl Client for Pool {
    fn exchange(&mut self, calls: &mut Calls<'_>, note: &mut dyn FnMut(Exchange)) {
        self.next = (self.next + 1) % POOL;
        let port = POOL_PORTS + self.next as u16;
        let kept = &mut self.connections[self.next];
        note(Open::ask(kept, calls, port, POOL_REQUESTS, 100));
    }
}

/// A client with one connection on which messages arrive all the time.
#[derive(Default)]
pub(super) struct Stream(Option<(Connection, Begun)>);

impl Client for Stream {
    fn exchange(&mut self, calls: &mut Calls<'_>, note: &mut dyn FnMut(Exchange)) {
        let mut begun = Begun::next(self.0.as_ref().map(|(_, begun)| begun), calls);
        let mut receive = || {
            let mut connection = match self.0.take() {
                Some((connection, _)) => connection,
                None => {
                    let mut connection = Connection::open(&mut begun, 0)?;
                    let period = PERIOD.as_millis() as u64;
                    connection.send(&calls.request("stream", [nonce(), MESSAGES, period]))?;
                    connection
                }
            };
            connection.receive()?;
            Ok(connection)
        };
        let received: io::Result<Connection> = receive();
        note(begun.ends(&received));
        self.0 = received.ok().map(|connection| (connection, begun));
    }
}

/// A client whose connections have no traffic between the beginning and the end of the run.
#[derive(Default)]
pub(super) struct Idle {
    connections: [Option<Open>; IDLE],
    is_done: bool,
}

impl Client for Idle {
    fn exchange(&mut self, calls: &mut Calls<'_>, note: &mut dyn FnMut(Exchange)) {
        let is_first = self.connections.iter().all(Option::is_none);
        let is_end = Instant::now() + END > calls.scene.span.end();
        if self.is_done || !(is_first || is_end) {
            return;
        }
        self.is_done = is_end;
        for kept in &mut self.connections {
            note(Open::ask(kept, calls, 0, u32::MAX, 100));
        }
    }
}
