// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model of what an application may see of its sockets. Where the hooks choose at random, the
//! model takes over the choice that it sees, and says whether it was allowed.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::SocketAddr,
};

use super::{
    operations::{Family, Kind, Wanted},
    services::{Backend, Fate, Services, plain},
};
use crate::{clients::Answer, world::From};

/// The destination that a connect has given to a socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// One of these backends; answers show which.
    Backend(Vec<Backend>),
    /// The policy drops everything that the socket sends.
    Dropped,
    /// The address itself, perhaps a pod's. Datagrams of a pod's socket to a service are served
    /// packet by packet.
    Direct(Option<u8>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Peer {
    /// The address that the application gave.
    pub(crate) to: SocketAddr,
    pub(crate) way: Route,
}

/// The state of a socket.
#[derive(Clone, Debug)]
pub(crate) struct Talk {
    pub(crate) kind: Kind,
    pub(crate) peer: Option<Peer>,
    /// The destinations of its datagrams, with the backend that got them, if that is known.
    pub(crate) sent: HashMap<SocketAddr, Option<Backend>>,
    /// The service address that was last used with each pod, by pod and IP family.
    pub(crate) last: HashMap<(u8, bool), SocketAddr>,
    /// All service addresses that it has used, with each pod that they may have led to.
    pub(crate) led: HashSet<(u8, SocketAddr)>,
    /// True if the socket hears only its old peer: Linux does not forget the peer of a disconnected
    /// IPv6 socket.
    pub(crate) is_deaf: bool,
    /// True if a connect has passed the hook. If the kernel then refuses it, the entry stays, but
    /// only the list shows it.
    pub(crate) tried: bool,
    /// The address of its last connect.
    pub(crate) was_connected: Option<SocketAddr>,
}

impl Talk {
    fn disconnect(&mut self) {
        self.peer = None;
        self.is_deaf |= self.was_connected.is_some() && self.kind.family != Family::V4;
    }
}

/// The result of an operation.
#[derive(Clone, Debug)]
pub(crate) enum Seen {
    /// The answer, and the client's own port.
    Answer(Answer, u16),
    Error(i32),
    Silence,
    /// The operation succeeded; there is no answer to wait for.
    Done,
}

pub(crate) type Judgement = Result<(), String>;

#[derive(Default)]
pub(crate) struct Model {
    pub(crate) services: Services,
    pub(crate) talks: BTreeMap<u8, Talk>,
}

impl Model {
    pub(crate) fn open(&mut self, socket: u8, kind: Kind) {
        let talk = Talk {
            kind,
            peer: None,
            sent: HashMap::new(),
            last: HashMap::new(),
            led: HashSet::new(),
            is_deaf: false,
            tried: false,
            was_connected: None,
        };
        self.talks.insert(socket, talk);
    }
    /// Returns whether the socket cannot reach this kind of address at all.
    pub(crate) fn is_foreign(kind: Kind, to: SocketAddr) -> bool {
        kind.family == Family::V6 && plain(to).is_ipv4()
    }
    /// Returns whether the kernel does nothing sensible with the address, or the model cannot
    /// predict the result. A socket that has been connected keeps its IP family; a connection to
    /// loopback gives it a source that reaches nobody else.
    pub(crate) fn is_senseless(&self, socket: u8, to: SocketAddr) -> bool {
        let talk = &self.talks[&socket];
        let was = talk.was_connected.map(plain);
        let is_other = was.is_some_and(|was| was.is_ipv4() != to.ip().to_canonical().is_ipv4());
        let is_tied = talk.peer.as_ref().is_some_and(|peer| {
            plain(peer.to).ip().is_loopback() && matches!(peer.way, Route::Direct(_))
        });
        is_other || is_tied || self.fate(talk, to) == Fate::Unclear
    }
    pub(crate) fn fate(&self, talk: &Talk, to: SocketAddr) -> Fate {
        let Kind { udp, place, .. } = talk.kind;
        self.services.fate(place, plain(to), udp, true)
    }

    /// Returns whether a connect is sure to be answered or refused, so that it may take the full
    /// timeout.
    pub(crate) fn connects(&self, socket: u8, to: SocketAddr) -> bool {
        let talk = &self.talks[&socket];
        !Self::is_foreign(talk.kind, to)
            && matches!(
                self.fate(talk, to),
                Fate::Served(_) | Fate::Refused | Fate::Untouched(Some(_))
            )
    }
    /// Judges a connect. Returns `false` if nothing more can be predicted for the socket.
    pub(crate) fn connect(
        &mut self,
        socket: u8,
        to: SocketAddr,
        seen: &Seen,
    ) -> Result<bool, String> {
        if let Some(talk) = self.talks.get_mut(&socket) {
            talk.tried = true;
        }
        let talk = &self.talks[&socket];
        let Kind { udp, place, .. } = talk.kind;
        let before = talk.peer.clone();
        if Self::is_foreign(talk.kind, to) {
            return match seen {
                Seen::Error(_) => Ok(udp),
                _ => Err(format!("an IPv6 socket connects to {to}")),
            };
        }
        let is_per_packet = udp && place == From::Pod;
        let way = match (self.fate(talk, to), seen) {
            (Fate::Served(_) | Fate::Refused | Fate::Dropped, Seen::Done) if is_per_packet => {
                Route::Direct(None)
            }
            (Fate::Refused, Seen::Error(libc::ECONNREFUSED)) => return Ok(true),
            (Fate::Refused, _) => {
                return Err(format!("it must be refused at once, but {seen:?}"));
            }
            (Fate::Served(allowed), Seen::Done) => Route::Backend(match before {
                // The socket connects to the same service again, and its backend still serves.
                Some(Peer {
                    to: same,
                    way: Route::Backend(kept),
                }) if plain(same) == plain(to)
                    && kept.iter().all(|one| self.services.serves(*one)) =>
                {
                    kept
                }
                _ => allowed,
            }),
            (Fate::Served(allowed), Seen::Answer(answer, port)) => {
                let backend = chosen(&allowed, answer)?;
                expect_own(talk, answer, *port)?;
                self.services.hold(place, plain(to), backend);
                Route::Backend(vec![backend])
            }
            (Fate::Served(_) | Fate::Untouched(Some(_)), _) if !udp => {
                match (self.fate(talk, to), seen) {
                    (Fate::Untouched(Some(pod)), Seen::Answer(answer, port))
                        if by(answer) == pod =>
                    {
                        expect_own(talk, answer, *port)?;
                        Route::Direct(Some(pod))
                    }
                    _ => return Err(format!("{to} must be reached, but {seen:?}")),
                }
            }
            (Fate::Untouched(pod), Seen::Done) => Route::Direct(pod),
            (Fate::Dropped, Seen::Done) if place == From::Node => Route::Dropped,
            (Fate::Dropped, Seen::Done) => Route::Direct(None),
            (Fate::Unclear, Seen::Done) => return Ok(false),
            (Fate::Dropped, Seen::Error(libc::ETIMEDOUT)) if !udp => return Ok(false),
            (Fate::Untouched(None) | Fate::Unclear, Seen::Error(_)) => return Ok(false),
            (fate, _) => return Err(format!("{to} is {fate:?}, but {seen:?}")),
        };
        let talk = self.talks.get_mut(&socket).expect("open");
        if let Route::Backend(backends) = &way {
            for backend in backends {
                talk.led.insert((backend.pod, to));
            }
        }
        talk.was_connected = Some(to);
        talk.is_deaf = false;
        talk.peer = Some(Peer { to, way });
        Ok(true)
    }
    pub(crate) fn disconnect(&mut self, socket: u8) {
        if let Some(talk) = self.talks.get_mut(&socket) {
            talk.disconnect();
        }
    }

    /// Updates the model after the agent has applied a change. `errors` holds each socket's error
    /// since the previous operation.
    pub(crate) fn changed(&mut self, errors: &HashMap<u8, Option<i32>>) -> Judgement {
        let Self { services, talks } = self;
        for (number, talk) in talks {
            if errors.get(number) == Some(&Some(libc::ECONNABORTED)) {
                return Err(format!("socket {number} is closed: {talk:?}"));
            }
            let Kind { udp, place, .. } = talk.kind;
            if !udp || place != From::Node {
                continue;
            }
            let Some(peer) = &mut talk.peer else { continue };
            let to = plain(peer.to);
            let Route::Backend(backends) = &peer.way else {
                continue;
            };
            let (left, gone): (Vec<_>, Vec<_>) =
                backends.iter().partition(|one| services.serves(**one));
            if gone.is_empty() {
                continue;
            }
            // If the socket's backend has gone, the agent has connected the socket again.
            let all = services
                .service(place, to, udp)
                .map_or_else(Vec::new, |service| services.backends(service));
            for backend in &all {
                talk.led.insert((backend.pod, peer.to));
            }
            peer.way = match services.fate(place, to, udp, false) {
                Fate::Served(_) => Route::Backend(all),
                // The backend may be on another node, where nobody answers.
                Fate::Unclear => Route::Backend([all, gone].concat()),
                Fate::Refused | Fate::Dropped if left.is_empty() => Route::Dropped,
                _ => Route::Direct(None),
            };
        }
        Ok(())
    }

    /// Applies a new or changed service.
    pub(crate) fn apply(&mut self, wanted: &Wanted) {
        self.services.apply(wanted);
    }
}

/// Returns the last number of the address of the pod that answered.
pub(crate) fn by(answer: &Answer) -> u8 {
    match answer.by.as_str() {
        "one" => 20,
        "two" => 21,
        "three" => 22,
        _ => 0,
    }
}

/// Returns the backend that answered, if it is one of those that are allowed.
pub(crate) fn chosen(allowed: &[Backend], answer: &Answer) -> Result<Backend, String> {
    let mut matching = allowed.iter().filter(|one| one.pod == by(answer));
    matching
        .next()
        .copied()
        .ok_or_else(|| format!("{} answers, allowed are {allowed:?}", answer.by))
}

/// Checks that the backend sees the socket's own address and port.
pub(crate) fn expect_own(talk: &Talk, answer: &Answer, port: u16) -> Judgement {
    let is_own = answer.seen.port() == port
        && (talk.kind.place == From::Node
            || answer.seen.ip() == super::services::pod(10, answer.seen.is_ipv6()));
    if is_own {
        return Ok(());
    }
    Err(format!("the backend sees {}, not port {port}", answer.seen))
}
