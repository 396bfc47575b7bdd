// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walks through the maps `sock_buckets` and `sockets`, a part at a time. Removes idle entries, and
//! closes the node's connected UDP sockets whose backend is gone. Called by `Sweep`.

use std::{
    collections::{HashMap, HashSet},
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use linux::{ConnectedSocket, now};
use proxy_common::{
    FlowState, Protocol, SocketBucket, SocketEntry, SocketKey, SocketRole, V4, V6, flow::IdleTimes,
};

use super::Gone;
use crate::{
    error::DatapathError,
    maps::{
        PinnedMaps,
        arrays::MappedArray,
        family::Family,
        tables::{Table, Walk},
    },
    store::{Store, Stored},
};

/// Elements per step, and steps per call of `sweep`. With one call a second, full tables take eight
/// seconds.
const STEP: usize = 4096;
const STEPS: usize = 8;

/// The time before a socket is looked for once more. Its entry stays after it was closed, until its
/// process has released it.
const AGAIN: Duration = Duration::from_secs(60);

/// The sockets that must be closed, as far as the current walk has found them.
#[derive(Default)]
struct Findings {
    /// The node's UDP sockets that need another backend.
    lost: HashSet<ConnectedSocket>,
    /// TCP sockets that are connected to pods that are gone.
    gone: HashSet<ConnectedSocket>,
}

impl Findings {
    /// Adds the node's connected UDP socket with this entry if its backend is gone, if its frontend
    /// belongs to another service now, or if its datagrams were dropped and its service has
    /// endpoints again.
    fn note<A: Stored>(
        &mut self,
        key: &SocketKey<A>,
        entry: &SocketEntry<A>,
        store: &Store,
        gone: &Gone,
    ) {
        if entry.protocol == Protocol::TCP
            && gone.contains(&entry.backend_address.into())
            && entry.is_whole(key)
        {
            self.gone.insert((key.cookie, backend_of(entry)));
        }
        let is_the_nodes = entry.flags & SocketEntry::<A>::HOST != 0;
        if entry.protocol != Protocol::UDP || !is_the_nodes || !entry.is_whole(key) {
            return;
        }
        let frontend = SocketAddr::new(entry.frontend.into(), entry.frontend_port.host());
        let owner = store.owner(entry.frontend, entry.frontend_port, entry.protocol);
        let is_dropped = entry.flags & SocketEntry::<A>::DROPPED != 0;
        if is_dropped {
            if owner.is_some_and(|(_, has_endpoints)| has_endpoints) {
                self.lost.insert((key.cookie, frontend));
            }
            return;
        }
        let backends = store.backends::<A>();
        let current = entry.backend.0 < backends.capacity()
            && backends
                .load(entry.backend.0)
                .is_current(entry.service, entry.generation)
            && owner.is_some_and(|(service, _)| service == entry.service);
        if !current {
            self.lost.insert((key.cookie, backend_of(entry)));
        }
    }
}

/// The walks through the socket maps of IPv4 and IPv6.
pub(super) struct SocketWalk {
    v4: FamilyWalk<V4>,
    v6: FamilyWalk<V6>,
    findings: Findings,
    /// When each socket was last closed; the address is the backend's or the frontend's. See
    /// [`AGAIN`].
    tried: HashMap<ConnectedSocket, Instant>,
    /// How many sockets have been closed because their pods are gone.
    pub(super) closed: u64,
}

impl SocketWalk {
    pub(super) fn open(open: &PinnedMaps) -> Result<Self, DatapathError> {
        Ok(Self {
            v4: FamilyWalk::open(open)?,
            v6: FamilyWalk::open(open)?,
            findings: Findings::default(),
            tried: HashMap::new(),
            closed: 0,
        })
    }

    /// Continues the walk, and closes the sockets that it has found. To be called about once a
    /// second.
    pub(super) fn sweep(
        &mut self,
        store: &Store,
        idle_times: &IdleTimes,
        gone: &Gone,
    ) -> Result<(), DatapathError> {
        if self.is_complete() {
            self.begin();
        }
        self.walk(store, idle_times, gone, STEPS)?;
        self.close_gone()?;
        self.close_lost()
    }

    /// True if the last call reached the ends of the maps of IPv4 and IPv6.
    pub(super) fn is_complete(&self) -> bool {
        self.v4.ended && self.v6.ended
    }

    /// Walks through all maps at once, and closes the node's UDP sockets that need another backend.
    /// For when a UDP service has changed.
    pub(super) fn close_lost_now(
        &mut self,
        store: &Store,
        idle_times: &IdleTimes,
    ) -> Result<(), DatapathError> {
        self.begin();
        self.tried.clear();
        self.walk(store, idle_times, &Gone::new(), usize::MAX)?;
        // The next walk finds sockets that were being connected in the meantime.
        self.close_lost()
    }

    fn begin(&mut self) {
        self.findings = Findings::default();
        self.v4.begin();
        self.v6.begin();
    }

    /// Continues the walks through the maps of IPv4 and of IPv6, each for this number of steps.
    fn walk(
        &mut self,
        store: &Store,
        idle_times: &IdleTimes,
        gone: &Gone,
        steps: usize,
    ) -> Result<(), DatapathError> {
        let (with, findings) = ((store, gone), &mut self.findings);
        self.v4.sweep(with, idle_times, findings, steps)?;
        self.v6.sweep(with, idle_times, findings, steps)
    }

    /// Closes the TCP sockets that the walk has found connected to pods that are gone.
    fn close_gone(&mut self) -> Result<(), DatapathError> {
        let gone = std::mem::take(&mut self.findings.gone);
        if let Some((closed, of)) = self.close(gone, linux::close_tcp)? {
            self.closed += closed as u64;
            tracing::info!(
                closed,
                of,
                "sockets connected to pods that are gone are closed"
            );
        }
        Ok(())
    }

    /// Closes the node's UDP sockets that the walk has found without a backend that serves: a
    /// process that connects again reaches the next one.
    fn close_lost(&mut self) -> Result<(), DatapathError> {
        let lost = std::mem::take(&mut self.findings.lost);
        self.tried.retain(|_, at| at.elapsed() < AGAIN);
        if let Some((closed, _)) = self.close(lost, linux::close_udp)? {
            tracing::debug!(closed, "UDP sockets of the node whose backend has gone");
        }
        Ok(())
    }

    /// Closes those of these sockets that have not been tried yet; returns how many were closed, of
    /// how many. `None` if there are none.
    fn close(
        &mut self,
        mut found: HashSet<ConnectedSocket>,
        close: fn(&HashSet<ConnectedSocket>) -> io::Result<usize>,
    ) -> Result<Option<(usize, usize)>, DatapathError> {
        found.retain(|socket| !self.tried.contains_key(socket));
        if found.is_empty() {
            return Ok(None);
        }
        let closed = close(&found).map_err(DatapathError::CloseSockets)?;
        let (of, now) = (found.len(), Instant::now());
        self.tried
            .extend(found.into_iter().map(|socket| (socket, now)));
        Ok(Some((closed, of)))
    }
}

/// The walk through the socket maps of one address family.
struct FamilyWalk<A: Stored> {
    buckets: MappedArray<SocketBucket<A>>,
    /// The window of `sock_buckets` that comes next; after the last one comes the map `sockets`.
    window: u32,
    sockets: Table<SocketKey<A>, SocketEntry<A>>,
    walk: Walk,
    /// True if the walk has finished the maps.
    ended: bool,
}

impl<A: Stored> FamilyWalk<A> {
    fn open(maps: &PinnedMaps) -> Result<Self, DatapathError> {
        Ok(Self {
            buckets: maps.take(A::SOCKET_BUCKETS, MappedArray::new)?,
            window: 0,
            sockets: maps.take(A::SOCKETS, Table::new)?,
            walk: Walk::new(STEP),
            ended: true,
        })
    }

    fn begin(&mut self) {
        self.window = 0;
        self.walk = Walk::new(STEP);
        self.ended = false;
    }

    fn sweep(
        &mut self,
        (store, gone): (&Store, &Gone),
        idle_times: &IdleTimes,
        findings: &mut Findings,
        steps: usize,
    ) -> Result<(), DatapathError> {
        let failed = DatapathError::of_map("walk", A::SOCKETS);
        let now = now();
        for _ in 0..steps {
            if self.ended {
                break;
            }
            if self.window < self.buckets.windows() {
                self.buckets
                    .scan_window(self.window, |bucket| {
                        if let Some(key) = bucket.key()
                            && key.role == SocketRole::CONNECTED
                        {
                            findings.note(&key, &bucket.entry, store, gone);
                        }
                    })
                    .map_err(DatapathError::of_map("walk", A::SOCKET_BUCKETS))?;
                self.window += 1;
                continue;
            }
            let mut idle = Vec::new();
            let more = self
                .walk
                .step(&self.sockets, |key, entry: SocketEntry<A>| {
                    match key.role {
                        SocketRole::CONNECTED => findings.note(&key, &entry, store, gone),
                        // The hooks remove such an entry when the socket is closed.
                        SocketRole::LIST => {}
                        _ if is_idle(&entry, idle_times, now) => idle.push((key, entry)),
                        _ => {}
                    }
                })
                .map_err(failed)?;
            for (key, entry) in idle {
                // The entries for the two directions belong together: neither is removed while the
                // other is in use.
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
            self.ended = !more;
        }
        Ok(())
    }
}

fn backend_of<A: Family>(entry: &SocketEntry<A>) -> SocketAddr {
    SocketAddr::new(entry.backend_address.into(), entry.backend_port.host())
}

/// KUBE: a UDP flow that is idle for longer than conntrack's `udpStreamTimeout` is removed.
fn is_idle<A: Family>(entry: &SocketEntry<A>, idle_times: &IdleTimes, now: u64) -> bool {
    idle_times.is_expired(Protocol::UDP, FlowState::ESTABLISHED, entry.last_used, now)
}

/// Returns the key of the entry for the other direction of the same exchange of datagrams; `None`
/// for an entry that has no other direction.
fn counterpart<A: Family>(key: &SocketKey<A>, entry: &SocketEntry<A>) -> Option<SocketKey<A>> {
    let (role, address, port) = match key.role {
        SocketRole::FORWARD => (
            SocketRole::REVERSE,
            entry.backend_address,
            entry.backend_port,
        ),
        SocketRole::REVERSE => (SocketRole::FORWARD, entry.frontend, entry.frontend_port),
        _ => return None,
    };
    Some(SocketKey::new(key.cookie, role, address, port))
}
