// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The part of the model that learns from answers which backend the hooks have chosen, and compares
//! it with what `portolan sockets` shows.

use std::{collections::HashMap, net::SocketAddr};

use datapath::read::SocketRow;

use super::{
    ask::Outlook,
    model::{Judgement, Model, Peer, Route, Seen, chosen},
    services::{Backend, pod_at},
};
use crate::{kept::word, world::plain};

impl Model {
    /// Records the backend that an answer shows, and what later messages may now get.
    pub(crate) fn note(&mut self, socket: u8, to: Option<SocketAddr>, seen: &Seen, next: &Outlook) {
        let Self { services, talks } = self;
        let Some(talk) = talks.get_mut(&socket).filter(|talk| talk.kind.udp) else {
            return;
        };
        let answered = match seen {
            Seen::Answer(answer, _) => Some(answer),
            _ => None,
        };
        let place = talk.kind.place;
        let is_peers = |peer: &Peer, to: SocketAddr| {
            plain(peer.to) == plain(to) && matches!(peer.way, Route::Backend(_))
        };
        match (&mut talk.peer, to) {
            (Some(peer), to) if to.is_none_or(|to| is_peers(peer, to)) => {
                if let (Route::Backend(backends), Some(answer)) = (&mut peer.way, answered)
                    && backends.iter().all(|one| services.serves(*one))
                {
                    backends.retain(|one| one.pod == answer.by);
                }
            }
            (peer, Some(to)) => {
                let v6 = plain(to).is_ipv6();
                let known = talk.sent.get(&plain(to)).copied().flatten();
                if known.is_some_and(|known| services.serves(known)) {
                    talk.last
                        .insert((known.map_or(0, |known| known.pod), v6), plain(to));
                    return;
                }
                // Answers of a removed backend do not seem to come from a service any more.
                if let Some(gone) = known
                    && talk.last.get(&(gone.pod, v6)) == Some(&plain(to))
                {
                    talk.last.remove(&(gone.pod, v6));
                }
                if services.service(place, plain(to), true).is_none() {
                    return;
                }
                let led = next.chosen.iter().map(|one| (one.pod, to));
                talk.led.extend(led);
                let answered = answered.filter(|_| peer.is_none());
                let backend = answered.and_then(|answer| chosen(&next.chosen, answer).ok());
                if let Some(backend) = backend {
                    services.hold(place, plain(to), backend);
                    talk.last.insert((backend.pod, v6), plain(to));
                }
                if !next.chosen.is_empty() {
                    talk.sent.insert(plain(to), backend);
                }
            }
            _ => {}
        }
    }

    /// Compares `portolan sockets` with the model. `cookies`: sockets' numbers by their cookies.
    pub(crate) fn rows(&self, cookies: &HashMap<u64, u8>, rows: &[SocketRow]) -> Judgement {
        for row in rows {
            let Some(socket) = cookies.get(&row.cookie) else {
                return Err(format!("the row of a socket that is closed: {row:?}"));
            };
            let talk = &self.talks[socket];
            if row.owner != word(talk.kind.place) || (row.connected && !talk.tried) {
                return Err(format!("socket {socket} is {talk:?}, but its row {row:?}"));
            }
        }
        let has = |socket: u8, connected, to: SocketAddr, backend: Backend| {
            rows.iter().any(|row| {
                cookies.get(&row.cookie) == Some(&socket)
                    && (row.connected, row.frontend, row.current) == (connected, plain(to), true)
                    && pod_at(row.backend) == Some(backend.pod)
            })
        };
        for (number, talk) in &self.talks {
            if let Some(Peer {
                to,
                way: Route::Backend(backends),
            }) = &talk.peer
                && let [backend] = backends[..]
                && self.services.serves(backend)
                && !has(*number, true, *to, backend)
            {
                return Err(format!("no row of the connected socket {number}: {talk:?}"));
            }
            for (to, backend) in &talk.sent {
                if let Some(backend) = *backend
                    && self.services.serves(backend)
                    && !has(*number, false, *to, backend)
                {
                    return Err(format!("no row of socket {number} to {to}: {talk:?}"));
                }
            }
        }
        Ok(())
    }
}
