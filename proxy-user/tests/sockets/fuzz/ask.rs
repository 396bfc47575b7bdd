// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The part of the model that says which answers a message may get.

use std::net::SocketAddr;

use super::{
    model::{Judgement, Model, Peer, Route, Seen, Talk, expect_own},
    services::{Backend, Fate},
};
use crate::world::{From, plain};

/// What may happen after a message is sent.
#[derive(Clone, Default, Debug)]
pub(crate) struct Outlook {
    /// The pods that may answer, by the last number of their addresses.
    pods: Vec<u8>,
    /// True if there must be an answer from one of the pods.
    pub(crate) answers: bool,
    /// The errno with which the call must fail. 0: any error; None: the call must succeed.
    fails: Option<i32>,
    /// The sources that an answer may have as the application sees them.
    from: Vec<SocketAddr>,
    /// The backends of which the hooks may choose one for this message.
    pub(crate) chosen: Vec<Backend>,
    /// True if the packet path may translate the message and change its source port.
    pub(crate) per_packet: bool,
}

impl Outlook {
    fn answer(pods: Vec<u8>, from: SocketAddr) -> Self {
        Self {
            pods,
            answers: true,
            from: vec![from],
            ..Self::default()
        }
    }
    fn failure(error: i32) -> Self {
        Self {
            fails: Some(error),
            ..Self::default()
        }
    }
    /// Returns the same, but nobody needs to answer unless `must`.
    fn answered_if(mut self, must: bool) -> Self {
        self.answers &= must;
        self
    }
}

fn pods(backends: &[Backend]) -> Vec<u8> {
    backends.iter().map(|one| one.pod).collect()
}

impl Model {
    pub(crate) fn outlook(&self, socket: u8, to: Option<SocketAddr>) -> Outlook {
        let talk = &self.talks[&socket];
        match (&talk.peer, to) {
            (None, None) => Outlook::failure(0),
            (Some(peer), None) => self.to_peer(talk, peer),
            (Some(peer), Some(to)) if talk.kind.udp => self.past_peer(talk, peer, to),
            (None, Some(to)) if talk.kind.udp => self.to_address(talk, to),
            (_, Some(_)) => Outlook::default(),
        }
    }

    /// Returns what may happen after a message without an address on a connected socket.
    fn to_peer(&self, talk: &Talk, peer: &Peer) -> Outlook {
        let to = peer.to;
        let fate = || self.fate(talk, to);
        match &peer.way {
            Route::Direct(Some(_)) => Outlook {
                from: vec![to],
                ..self.to_address(talk, to)
            },
            Route::Backend(backends) => {
                let serves = backends.iter().all(|one| self.services.serves(*one));
                Outlook::answer(pods(backends), to).answered_if(serves || !talk.kind.udp)
            }
            // Packets of a pod's socket to a service's address are translated by the packet path.
            Route::Direct(None) if talk.kind.place == From::Pod => match fate() {
                Fate::Untouched(_) => Outlook::default(),
                // An endpoint of weight 0 keeps the flows that it has, whatever the fate of others.
                fate => Outlook {
                    per_packet: true,
                    ..Outlook::answer(pods(&self.any(talk, to)), to)
                        .answered_if(matches!(fate, Fate::Served(_)))
                },
            },
            Route::Direct(None) => Outlook::default(),
            Route::Dropped => match fate() {
                Fate::Served(allowed) => Outlook::answer(pods(&allowed), to).answered_if(false),
                _ => Outlook::default(),
            },
        }
    }
    /// Returns all backends of the service at an address; session affinity is ignored.
    fn any(&self, talk: &Talk, to: SocketAddr) -> Vec<Backend> {
        let (place, to) = (talk.kind.place, plain(to));
        let service = self.services.service(place, to, talk.kind.udp);
        service.map_or_else(Vec::new, |number| self.services.backends(number))
    }

    /// Returns what may happen after an unconnected socket sends a datagram to an address.
    fn to_address(&self, talk: &Talk, to: SocketAddr) -> Outlook {
        if Self::is_foreign(talk.kind, to) {
            return Outlook::failure(0);
        }
        match talk.sent.get(&plain(to)) {
            Some(Some(backend)) if self.services.serves(*backend) => {
                return Outlook::answer(vec![backend.pod], to);
            }
            Some(None) => {
                let all = self.any(talk, to);
                return Outlook {
                    chosen: all.clone(),
                    ..Outlook::answer(pods(&all), to).answered_if(false)
                };
            }
            _ => {}
        }
        let v6 = plain(to).is_ipv6();
        match self.fate(talk, to) {
            Fate::Served(allowed) => {
                // The hooks prefer backends whose answers count as no other service's.
                let is_free = |one: &&Backend| {
                    let last = talk.last.get(&(one.pod, v6));
                    last.is_none_or(|last| *last == plain(to))
                };
                let is_known = talk.sent.values().all(Option::is_some)
                    && !self.services.has_affinity(allowed[0].service);
                let free: Vec<_> = allowed.iter().filter(is_free).copied().collect();
                let is_free = is_known && !free.is_empty();
                let chosen = if is_free { free } else { allowed };
                Outlook {
                    chosen: chosen.clone(),
                    ..Outlook::answer(pods(&chosen), to)
                }
            }
            Fate::Refused => Outlook::failure(libc::ECONNREFUSED),
            Fate::Dropped if talk.kind.place == From::Node => Outlook::failure(libc::EPERM),
            Fate::Untouched(Some(pod)) => {
                // If the pod is also a backend, its answers may have the service's address.
                let led = talk.led.iter().filter(|(one, _)| *one == pod);
                let from = led.map(|(_, to)| *to).chain([to]);
                Outlook {
                    from: from.collect(),
                    // Packets of this socket may have gone to the pod through a service. Then
                    // direct ones get another source port.
                    per_packet: talk.tried && talk.kind.place == From::Pod,
                    ..Outlook::answer(vec![pod], to)
                }
            }
            Fate::Dropped | Fate::Untouched(None) | Fate::Unclear => Outlook::default(),
        }
    }

    /// Returns what may happen after a connected socket sends a datagram to another address. The
    /// socket receives only from its peer.
    fn past_peer(&self, talk: &Talk, peer: &Peer, to: SocketAddr) -> Outlook {
        let is_named = match peer.way {
            Route::Backend(_) | Route::Dropped => true,
            Route::Direct(None) => talk.kind.place == From::Pod,
            _ => false,
        };
        if plain(to) == plain(peer.to) && is_named {
            return self.to_peer(talk, peer);
        }
        let alone = self.to_address(talk, to);
        if alone.fails.is_some() {
            return alone;
        }
        let heard = match &peer.way {
            Route::Backend(backends) => pods(backends),
            Route::Direct(pod) => pod.iter().copied().collect(),
            Route::Dropped => Vec::new(),
        };
        let from = [&alone.from[..], &[peer.to]].concat();
        let pods = alone.pods.iter().chain(&heard).copied().collect();
        Outlook {
            pods,
            from,
            per_packet: true,
            ..alone.answered_if(false)
        }
    }

    /// Checks what happened after a message, and updates the model by it.
    pub(crate) fn ask(&mut self, socket: u8, to: Option<SocketAddr>, seen: &Seen) -> Judgement {
        let outlook = self.outlook(socket, to);
        let talk = &self.talks[&socket];
        match (outlook.fails, seen) {
            (Some(0), Seen::Error(_)) => return Ok(()),
            (Some(wanted), Seen::Error(error)) if wanted == *error => return Ok(()),
            (Some(wanted), _) => return Err(format!("it must fail with {wanted}, but {seen:?}")),
            (None, Seen::Error(_) | Seen::Silence | Seen::Done) if outlook.answers => {
                let expected = format!("{outlook:?} {talk:?}");
                return Err(format!("it must be answered, but {seen:?}; {expected}"));
            }
            (None, Seen::Answer(answer, port)) => {
                let (by, from) = (answer.by, answer.from);
                if !outlook.pods.contains(&by) {
                    return Err(format!("{by} must not answer: {outlook:?}"));
                }
                if !outlook.from.contains(&from) {
                    return Err(format!("the answer comes from {from}: {outlook:?}"));
                }
                if !outlook.per_packet {
                    expect_own(talk, answer, *port)?;
                }
            }
            _ => {}
        }
        self.note(socket, to, seen, &outlook);
        Ok(())
    }
}
