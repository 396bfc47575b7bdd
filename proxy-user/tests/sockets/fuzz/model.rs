// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model of what an application may see of its sockets. Where the hooks choose at random, the
//! model checks that their choice was allowed, and remembers it.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::SocketAddr,
};

use super::{
    operations::{Family, Kind},
    services::{Backend, Fate, Services},
};
use crate::{
    clients::Answer,
    world::{From, plain},
};

/// Where a connected socket sends to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// To one of these backends; answers show to which.
    Backend(Vec<Backend>),
    /// Nowhere: the traffic policy drops everything that the socket sends.
    Dropped,
    /// To the address of the connect; the number is that of a pod that has the address. Datagrams
    /// of a pod's socket to a service are translated by the packet path.
    Direct(Option<u8>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Peer {
    /// The address with which the application has called connect.
    pub(crate) to: SocketAddr,
    pub(crate) way: Route,
}

/// What the model knows about a socket.
#[derive(Default, Debug)]
pub(crate) struct Talk {
    pub(crate) kind: Kind,
    pub(crate) peer: Option<Peer>,
    /// Addresses to which the socket has sent datagrams, and the backend of each (None: unknown).
    pub(crate) sent: HashMap<SocketAddr, Option<Backend>>,
    /// The service address that was last used with each pod. Key: the pod, and true for IPv6.
    pub(crate) last: HashMap<(u8, bool), SocketAddr>,
    /// All pairs of a pod and a service address whose datagrams may have gone to that pod.
    pub(crate) led: HashSet<(u8, SocketAddr)>,
    /// True if the socket receives only from its old peer, which Linux does not forget by IPv6.
    pub(crate) is_deaf: bool,
    /// True if a connect has run the hook. If the kernel then refused the connect, the hook's entry
    /// still exists, but only `portolan sockets` shows it.
    pub(crate) tried: bool,
    /// The address of the last successful connect; None before the first one.
    pub(crate) was_connected: Option<SocketAddr>,
}

impl Talk {
    fn disconnect(&mut self) {
        self.peer = None;
        self.is_deaf |= self.was_connected.is_some() && self.kind.family != Family::V4;
    }
}

/// The result of an operation on a socket.
#[derive(Clone, Debug)]
pub(crate) enum Seen {
    /// An answer came; the number is the client's own port.
    Answer(Answer, u16),
    Error(i32),
    Silence,
    /// The operation succeeded, and there is no answer to wait for.
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
            ..Talk::default()
        };
        self.talks.insert(socket, talk);
    }
    /// Returns true for an IPv4 address and a socket for IPv6 only, which cannot reach it.
    pub(crate) fn is_foreign(kind: Kind, to: SocketAddr) -> bool {
        kind.family == Family::V6 && plain(to).is_ipv4()
    }
    /// Returns true if the model cannot predict the result of the operation: another family than
    /// that of an earlier connect, any address after a connect to loopback (the socket's source
    /// address then reaches only loopback), or an unclear destination.
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

    /// Returns true if a TCP connect is certainly answered or refused: the test may wait for it.
    pub(crate) fn connects(&self, socket: u8, to: SocketAddr) -> bool {
        let talk = &self.talks[&socket];
        let fate = self.fate(talk, to);
        let is_sure = matches!(
            fate,
            Fate::Served(_) | Fate::Refused | Fate::Untouched(Some(_))
        );
        is_sure && !Self::is_foreign(talk.kind, to)
    }
    /// Checks the result of a connect; false if the model cannot predict the socket any more.
    pub(crate) fn connect(&mut self, id: u8, to: SocketAddr, seen: &Seen) -> Result<bool, String> {
        self.talks.get_mut(&id).expect("open").tried = true;
        let talk = &self.talks[&id];
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
                // The socket connects to the same service again while its backend still serves.
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
            (Fate::Untouched(Some(pod)), Seen::Answer(answer, port)) if answer.by == pod => {
                expect_own(talk, answer, *port)?;
                Route::Direct(Some(pod))
            }
            (Fate::Served(_) | Fate::Untouched(Some(_)), _) if !udp => {
                return Err(format!("{to} must be reached, but {seen:?}"));
            }
            (Fate::Untouched(pod), Seen::Done) => Route::Direct(pod),
            (Fate::Dropped, Seen::Done) if place == From::Node => Route::Dropped,
            (Fate::Dropped, Seen::Done) => Route::Direct(None),
            (Fate::Unclear, Seen::Done) => return Ok(false),
            (Fate::Dropped, Seen::Error(libc::ETIMEDOUT)) if !udp => return Ok(false),
            (Fate::Untouched(None) | Fate::Unclear, Seen::Error(_)) => return Ok(false),
            (fate, _) => return Err(format!("{to} is {fate:?}, but {seen:?}")),
        };
        let talk = self.talks.get_mut(&id).expect("open");
        if let Route::Backend(backends) = &way {
            let led = backends.iter().map(|one| (one.pod, to));
            talk.led.extend(led);
        }
        talk.was_connected = Some(to);
        talk.is_deaf = false;
        talk.peer = Some(Peer { to, way });
        Ok(true)
    }
    /// Returns true if the policy drops what the socket sends: the agent may close it at any time.
    pub(crate) fn is_dropped(&self, socket: u8) -> bool {
        let peer = self.talks[&socket].peer.as_ref();
        peer.is_some_and(|peer| peer.way == Route::Dropped)
    }
    pub(crate) fn disconnect(&mut self, socket: u8) {
        if let Some(talk) = self.talks.get_mut(&socket) {
            talk.disconnect();
        }
    }

    /// Updates the model after the agent has applied a change. `errors` has each socket's errno
    /// since the previous operation, None for no error. The agent closes the node's connected UDP
    /// sockets whose backend has gone, and dropped ones when their service has endpoints.
    pub(crate) fn changed(&mut self, errors: &HashMap<u8, Option<i32>>) -> Judgement {
        let Self { services, talks } = self;
        for (number, talk) in talks {
            let is_closed = errors.get(number) == Some(&Some(libc::ECONNABORTED));
            let is_nodes = talk.kind.udp && talk.kind.place == From::Node;
            let way = talk.peer.as_mut().map(|peer| &mut peer.way);
            let (may_close, must_close) = match way {
                Some(Route::Backend(backends)) if is_nodes => {
                    let before = backends.len();
                    backends.retain(|one| services.serves(*one));
                    (backends.len() < before, backends.is_empty())
                }
                Some(Route::Dropped) => (is_nodes, false),
                _ => (false, false),
            };
            if is_closed && !may_close || !is_closed && must_close {
                return Err(format!("socket {number}: closed {is_closed}: {talk:?}"));
            }
            if is_closed {
                talk.disconnect();
            }
        }
        Ok(())
    }
}

/// Returns the backend that answered; an error if it is not one of those that are allowed.
pub(crate) fn chosen(allowed: &[Backend], answer: &Answer) -> Result<Backend, String> {
    let found = allowed.iter().find(|one| one.pod == answer.by).copied();
    found.ok_or_else(|| format!("{} answers, allowed are {allowed:?}", answer.by))
}

/// Checks that the backend saw the socket's own port and, for a pod's socket, the pod's address.
pub(crate) fn expect_own(talk: &Talk, answer: &Answer, port: u16) -> Judgement {
    let is_own = answer.seen.port() == port
        && (talk.kind.place == From::Node
            || answer.seen.ip() == super::services::pod(10, answer.seen.is_ipv6()));
    if is_own {
        return Ok(());
    }
    Err(format!("the backend sees {}, not port {port}", answer.seen))
}
