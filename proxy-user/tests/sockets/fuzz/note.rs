// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The part of the model that learns from answers which backend the hooks have chosen.

use std::net::SocketAddr;

use super::{
    ask::Outlook,
    model::{Model, Peer, Route, Seen, chosen},
    services::plain,
};

impl Model {
    /// Records the backend that an answer shows, and what later messages may now get.
    pub(crate) fn note(
        &mut self,
        socket: u8,
        to: Option<SocketAddr>,
        seen: &Seen,
        outlook: &Outlook,
    ) {
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
                for one in &outlook.chosen {
                    talk.led.insert((one.pod, to));
                }
                let backend = answered
                    .filter(|_| peer.is_none())
                    .and_then(|answer| chosen(&outlook.chosen, answer).ok());
                if let Some(backend) = backend {
                    services.hold(place, plain(to), backend);
                    talk.last.insert((backend.pod, v6), plain(to));
                }
                if !outlook.chosen.is_empty() {
                    talk.sent.insert(plain(to), backend);
                }
            }
            _ => {}
        }
    }
}
