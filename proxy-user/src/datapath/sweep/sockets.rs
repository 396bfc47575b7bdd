// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walks the maps `sock_buckets` and `sockets`: forgets what has idled out, closes the node's connected UDP sockets whose
//! backend has gone, and keeps the port filter telling of pods' ones. Called by `Datapath`.

use std::{
    collections::{HashMap, HashSet},
    os::fd::OwnedFd,
};

use proxy_common::{
    Backend, FlowState, Protocol, SocketBucket, SocketCookie, SocketEntry, SocketKey, SocketRole,
    V4, V6, flow::IdleTimes, ports,
};

use super::flows::now;
use crate::datapath::{
    error::DatapathError,
    maps::{
        arrays::MappedArray,
        family::Family,
        tables::{Table, Walk},
    },
    store::{Store, Stored, opened, retract},
    sys::{self, Destroyed},
};

/// Elements per step and steps per sweep: full tables are walked in eight seconds.
const STEP: usize = 4096;
const STEPS: usize = 8;

/// What a walk found.
#[derive(Default)]
struct Findings {
    /// The node's connected UDP sockets whose backend has gone.
    lost: HashSet<SocketCookie>,
    /// Ports of backends that have gone with pods' sockets still connected to them.
    stale: HashSet<u16>,
}

/// Both families' walks.
pub(crate) struct Sockets {
    v4: FamilySockets<V4>,
    v6: FamilySockets<V6>,
    findings: Findings,
    /// Ports that the filter calls stale and of which the walk has not met a socket yet.
    doubted: HashSet<u16>,
    /// Families of the present walk that have been walked to the end.
    ended: [bool; 2],
}

impl Sockets {
    pub(crate) fn open(fds: &mut HashMap<&'static str, OwnedFd>) -> Result<Self, DatapathError> {
        Ok(Self {
            v4: FamilySockets::open(fds)?,
            v6: FamilySockets::open(fds)?,
            findings: Findings::default(),
            doubted: HashSet::new(),
            ended: [true; 2],
        })
    }

    /// Goes on with the walk; call it about once a second.
    pub(crate) fn sweep(
        &mut self,
        store: &Store,
        idle_times: &IdleTimes,
    ) -> Result<Destroyed, DatapathError> {
        if self.ended == [true; 2] {
            self.begin(store);
        }
        self.walk(store, idle_times, STEPS)?;
        if self.ended == [true; 2] {
            let stale = std::mem::take(&mut self.findings.stale);
            for port in self.doubted.difference(&stale) {
                retract(store.port_filter(), *port, ports::STALE);
            }
        }
        self.close_lost()
    }

    /// The last call came to the end of both tables.
    pub(crate) fn is_walked(&self) -> bool {
        self.ended == [true; 2]
    }

    /// UDP backends have gone: walks everything at once, so that nobody goes on talking to them.
    pub(crate) fn close_stale(
        &mut self,
        store: &Store,
        idle_times: &IdleTimes,
    ) -> Result<Destroyed, DatapathError> {
        self.begin(store);
        self.walk(store, idle_times, usize::MAX)?;
        // A socket that was being connected meanwhile is met by the next walk, which also settles the filter.
        self.close_lost()
    }

    fn begin(&mut self, store: &Store) {
        self.ended = [false; 2];
        self.findings = Findings::default();
        self.v4.begin();
        self.v6.begin();
        self.doubted = stale_ports(store.port_filter());
    }

    /// Goes on with both families' walks for so many steps each.
    fn walk(
        &mut self,
        store: &Store,
        idle_times: &IdleTimes,
        steps: usize,
    ) -> Result<(), DatapathError> {
        let [v4_ended, v6_ended] = &mut self.ended;
        let findings = &mut self.findings;
        self.v4
            .sweep(store, idle_times, findings, steps, v4_ended)?;
        self.v6.sweep(store, idle_times, findings, steps, v6_ended)
    }

    fn close_lost(&mut self) -> Result<Destroyed, DatapathError> {
        let lost = std::mem::take(&mut self.findings.lost);
        if lost.is_empty() {
            return Ok(Destroyed::default());
        }
        sys::destroy_udp(&lost).map_err(DatapathError::CloseSockets)
    }
}

fn stale_ports(filter: &MappedArray<u64>) -> HashSet<u16> {
    let mut stale = HashSet::new();
    for word in 0..ports::WORDS {
        let bits = filter.load(word);
        if bits & ports::STALE_IN_ANY == 0 {
            continue;
        }
        let first = ports::first_of(word);
        stale.extend(
            (first..=first + (ports::PER_WORD - 1) as u16)
                .filter(|port| ports::bits(bits, *port) & ports::STALE != 0),
        );
    }
    stale
}

/// One family's walk.
struct FamilySockets<A: Family> {
    buckets: MappedArray<SocketBucket<A>>,
    /// The window of `sock_buckets` that comes next; after the last one comes `sockets`.
    window: u32,
    sockets: Table<SocketKey<A>, SocketEntry<A>>,
    walk: Walk,
}

impl<A: Stored> FamilySockets<A> {
    fn open(fds: &mut HashMap<&'static str, OwnedFd>) -> Result<Self, DatapathError> {
        Ok(Self {
            buckets: opened(fds, A::SOCKET_BUCKETS, MappedArray::new)?,
            window: 0,
            sockets: opened(fds, A::SOCKETS, Table::new)?,
            walk: Walk::new(STEP),
        })
    }

    fn begin(&mut self) {
        self.window = 0;
        self.walk = Walk::new(STEP);
    }

    fn sweep(
        &mut self,
        store: &Store,
        idle_times: &IdleTimes,
        findings: &mut Findings,
        steps: usize,
        ended: &mut bool,
    ) -> Result<(), DatapathError> {
        let failed_at = |map| {
            move |source| DatapathError::Map {
                attempt: "walk",
                map,
                source,
            }
        };
        let failed = failed_at(A::SOCKETS);
        let now = now();
        let backends = &A::maps(store.maps()).backends;
        for _ in 0..steps {
            if *ended {
                break;
            }
            if self.window < self.buckets.windows() {
                self.buckets
                    .scan_window(self.window, |bucket| {
                        if let Some(key) = bucket.key()
                            && key.role == SocketRole::CONNECTED
                        {
                            judge(&key, &bucket.entry, backends, findings);
                        }
                    })
                    .map_err(failed_at(A::SOCKET_BUCKETS))?;
                self.window += 1;
                continue;
            }
            let mut idle = Vec::new();
            let more = self
                .walk
                .step(&self.sockets, |key, entry: SocketEntry<A>| {
                    match key.role {
                        SocketRole::CONNECTED => judge(&key, &entry, backends, findings),
                        // It goes with its socket.
                        SocketRole::LIST => {}
                        _ if is_idle(&entry, idle_times, now) => idle.push((key, entry)),
                        _ => {}
                    }
                })
                .map_err(failed)?;
            for (key, entry) in idle {
                // What is only received keeps what is sent to alive, and the other way round.
                if let Some(other) = counterpart(&key, &entry)
                    && self
                        .sockets
                        .lookup(&other)
                        .map_err(failed)?
                        .is_some_and(|other| !is_idle(&other, idle_times, now))
                {
                    continue;
                }
                self.sockets.delete(&key).map_err(failed)?;
            }
            *ended = !more;
        }
        Ok(())
    }
}

/// KUBE: a flow of datagrams that is idle for longer than conntrack's `udpStreamTimeout` is forgotten.
fn is_idle<A: Family>(entry: &SocketEntry<A>, idle_times: &IdleTimes, now: u64) -> bool {
    idle_times.is_expired(Protocol::UDP, FlowState::ESTABLISHED, entry.last_used, now)
}

/// The key of the same association's other direction.
fn counterpart<A: Family>(key: &SocketKey<A>, entry: &SocketEntry<A>) -> Option<SocketKey<A>> {
    let other = match key.role {
        SocketRole::FORWARD => SocketKey::new(
            key.cookie,
            SocketRole::REVERSE,
            entry.backend_address,
            entry.backend_port,
        ),
        SocketRole::REVERSE => SocketKey::new(
            key.cookie,
            SocketRole::FORWARD,
            entry.frontend,
            entry.frontend_port,
        ),
        _ => return None,
    };
    Some(other)
}

/// Looks whether a connected UDP socket's backend has gone.
fn judge<A: Family>(
    key: &SocketKey<A>,
    entry: &SocketEntry<A>,
    backends: &MappedArray<Backend<A>>,
    findings: &mut Findings,
) {
    if entry.protocol != Protocol::UDP || !entry.is_whole(key) {
        return;
    }
    let current = entry.backend.0 < backends.capacity()
        && backends
            .load(entry.backend.0)
            .is_current(entry.service, entry.generation);
    if current {
        return;
    }
    if entry.flags & SocketEntry::<A>::HOST != 0 {
        findings.lost.insert(key.cookie);
    } else {
        findings.stale.insert(entry.backend_port.host());
    }
}
