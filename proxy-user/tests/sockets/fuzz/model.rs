// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model: what an application may see of its sockets. Where the hooks choose at random, it
//! takes the choice that is seen and says whether that one was allowed.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::SocketAddr,
};

use super::{
    operations::{Family, Kind, Wanted},
    services::{Backend, Fate, Services, plain},
};
use crate::{clients::Answer, world::From};

/// What a socket was given by a connect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// One of these; which one, answers show.
    Backend(Vec<Backend>),
    /// The policy drops what it sends.
    Dropped,
    /// The address itself, perhaps a pod's. What a pod's datagram socket sends to a service is
    /// served packet by packet.
    Direct(Option<u8>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Peer {
    /// As the application wrote it.
    pub(crate) to: SocketAddr,
    pub(crate) way: Route,
}

/// A socket.
#[derive(Clone, Debug)]
pub(crate) struct Talk {
    pub(crate) kind: Kind,
    pub(crate) peer: Option<Peer>,
    /// Where it has sent datagrams, and the backend that got them, if that is known.
    pub(crate) sent: HashMap<SocketAddr, Option<Backend>>,
    /// The service's address that was used last with a pod.
    pub(crate) last: HashMap<(u8, bool), SocketAddr>,
    /// Every address that it has asked for, by the pod that it may have led to.
    pub(crate) led: HashSet<(u8, SocketAddr)>,
    /// Linux does not forget the peer of an IPv6 socket that is disconnected: it hears nobody else.
    pub(crate) is_deaf: bool,
    /// A connect has passed the hook. Where the kernel refuses it then, the entry stays: nothing
    /// uses it but the list.
    pub(crate) tried: bool,
    /// Where it was connected last.
    pub(crate) was_connected: Option<SocketAddr>,
}

impl Talk {
    fn disconnect(&mut self) {
        self.peer = None;
        self.is_deaf |= self.was_connected.is_some() && self.kind.family != Family::V4;
    }
}

/// What an operation showed.
#[derive(Clone, Debug)]
pub(crate) enum Seen {
    /// The answer, and the client's own port.
    Answer(Answer, u16),
    Error(i32),
    Silence,
    /// It worked; there is no answer to wait for.
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
    /// Whether the socket cannot reach this kind of address at all.
    pub(crate) fn is_foreign(kind: Kind, to: SocketAddr) -> bool {
        kind.family == Family::V6 && plain(to).is_ipv4()
    }
    /// Whether the kernel itself makes nothing sensible of it, or the model cannot say what comes
    /// of it: a socket that has been connected has a family for good; with a connection to loopback
    /// it has a source that reaches nobody else.
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

    /// Whether a connect may take as long as it likes.
    pub(crate) fn connects(&self, socket: u8, to: SocketAddr) -> bool {
        let talk = &self.talks[&socket];
        !Self::is_foreign(talk.kind, to)
            && matches!(
                self.fate(talk, to),
                Fate::Served(_) | Fate::Refused | Fate::Untouched(Some(_))
            )
    }
    /// Judges a connect. `false`: nothing more can be said of the socket.
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
                // The same service again, and its backend serves.
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

    /// The agent has brought a change into effect; `error`: of each socket, since the operation
    /// before.
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
            // The agent has connected it again, if it was one of those that have gone.
            let all = services
                .service(place, to, udp)
                .map_or_else(Vec::new, |service| services.backends(service));
            for backend in &all {
                talk.led.insert((backend.pod, peer.to));
            }
            peer.way = match services.fate(place, to, udp, false) {
                Fate::Served(_) => Route::Backend(all),
                // Perhaps elsewhere, where nobody answers.
                Fate::Unclear => Route::Backend([all, gone].concat()),
                Fate::Refused | Fate::Dropped if left.is_empty() => Route::Dropped,
                _ => Route::Direct(None),
            };
        }
        Ok(())
    }

    /// Whether a service is there, for changes of it.
    pub(crate) fn apply(&mut self, wanted: &Wanted) {
        self.services.apply(wanted);
    }
}

/// The last number of the pod that answered.
pub(crate) fn by(answer: &Answer) -> u8 {
    match answer.by.as_str() {
        "one" => 20,
        "two" => 21,
        "three" => 22,
        _ => 0,
    }
}

/// The backend that answered, of those that are allowed.
pub(crate) fn chosen(allowed: &[Backend], answer: &Answer) -> Result<Backend, String> {
    let mut matching = allowed.iter().filter(|one| one.pod == by(answer));
    matching
        .next()
        .copied()
        .ok_or_else(|| format!("{} answers, allowed are {allowed:?}", answer.by))
}

/// A backend sees the socket's own address and port.
pub(crate) fn expect_own(talk: &Talk, answer: &Answer, port: u16) -> Judgement {
    let is_own = answer.seen.port() == port
        && (talk.kind.place == From::Node
            || answer.seen.ip() == super::services::pod(10, answer.seen.is_ipv6()));
    if is_own {
        return Ok(());
    }
    Err(format!("the backend sees {}, not port {port}", answer.seen))
}
