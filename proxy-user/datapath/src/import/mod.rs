// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Imports the connections that another proxy has translated from nf_conntrack into the flow
//! tables, so that its rules can be removed. In: the pinned maps, with services and attached
//! interfaces, and nf_conntrack. Out: flows. Run by `agent`, in a thread.
//!
//! At no moment may a packet pass untranslated or go to another backend. The reply packets of a
//! connection that is not masqueraded look the same to nf_conntrack before and after, from backend
//! to client. So the old and the new connection cannot exist at once. Therefore its segments are
//! dropped for a moment (`FlowKind::HELD`), and TCP repeats them. The old connection in
//! nf_conntrack is replaced by one from client to backend. Otherwise nf_conntrack would take the
//! next packet for the first of a new connection, and the node's rules could drop it or change its
//! source.

mod clients;
mod enter;
mod services;

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
};

use linux::{Editor, Plain, Tracked, get_pinned};
use proxy_common::{FlowState, Protocol, Settings, V4, V6, maps};

use self::{
    clients::Clients,
    enter::{Flow, Tables},
    services::Services,
};
use crate::maps::{PortFilter, family::Family, tables::Table};

/// The number of connections that are imported together. Each batch waits once, about 8 ms, until
/// the running programs have ended; the connections' segments are dropped in that time.
const BATCH: usize = 128;

/// Imports another proxy's connections into our flow tables, on any thread. Until it is done, the
/// agent must not change over to other maps.
#[derive(Debug)]
pub struct Importer {
    home: PathBuf,
}

/// The result of an import.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Imported {
    /// How many connections and UDP exchanges are flows now.
    pub connections: usize,
    /// How many connections still need the other proxy's rules, by the reason why they were not
    /// imported.
    pub left: BTreeMap<Left, usize>,
    /// How many of those in `left` are TCP or SCTP connections.
    pub held: usize,
}

/// The reason why a connection was not imported.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Left {
    Own,
    Unreached,
    NoEndpoint,
    Unsettled,
    Masqueraded,
    Taken,
    Full,
    Refused,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "of the node's own processes",
            Self::Unreached => "of clients behind no known interface",
            Self::NoEndpoint => "to endpoints that the service no longer has",
            Self::Unsettled => "that begin or end",
            Self::Masqueraded => "masqueraded by rules that stay",
            Self::Taken => "whose addresses and ports another flow has",
            Self::Full => "without room in the flow table",
            Self::Refused => "that nf_conntrack does not give away",
        })
    }
}

/// The outcome of the attempt to import one connection.
enum Fate {
    Imported,
    /// Nothing is left to do: the connection belongs to no service, its client has a flow already,
    /// or it has just ended.
    None,
    Left(Left),
}

impl Importer {
    pub(super) fn new(home: &Path) -> Self {
        Self { home: home.into() }
    }

    /// Imports every connection that can be imported. Reads all of nf_conntrack, so it takes longer
    /// the more connections there are.
    pub fn import(&self) -> io::Result<Imported> {
        let mut found = Vec::new();
        linux::tracked(|tracked| {
            if tracked.zone == 0 && tracked.is_sent_elsewhere() {
                found.push(tracked);
            }
        })?;
        let mut imported = Imported::default();
        if found.is_empty() {
            return Ok(imported);
        }
        let node = Node {
            editor: Editor::open()?,
            ports: get_pinned(&self.home.join(maps::PORTS), false).and_then(PortFilter::new)?,
            marks_only: self.settings()?.has(Settings::MARK_ONLY),
        };
        let mut clients = Clients::read(&self.home)?;
        let (v4, v6): (Vec<_>, Vec<_>) = found
            .iter()
            .partition(|tracked| tracked.original.src.is_ipv4());
        self.import_all::<V4>(&v4, &node, &mut clients, &mut imported)?;
        self.import_all::<V6>(&v6, &node, &mut clients, &mut imported)?;
        Ok(imported)
    }

    fn import_all<A: Family>(
        &self,
        found: &[&Tracked],
        node: &Node,
        clients: &mut Clients,
        imported: &mut Imported,
    ) -> io::Result<()> {
        if found.is_empty() {
            return Ok(());
        }
        let services: Services<A> = Services::read(&self.home)?;
        let tables: Tables<A> = Tables::open(&self.home, node)?;
        for batch in found.chunks(BATCH) {
            let mut count = |tracked: &Tracked, fate| match fate {
                Fate::Imported => imported.connections += 1,
                Fate::None => {}
                Fate::Left(why) => {
                    *imported.left.entry(why).or_default() += 1;
                    imported.held += usize::from(tracked.protocol != Protocol::UDP);
                }
            };
            let mut prepared = Vec::new();
            for tracked in batch {
                let flow = plan(tracked, &services, &tables, clients);
                match flow.and_then(|flow| tables.prepare(&flow).map(|()| flow)) {
                    Ok(flow) => prepared.push((tracked, flow)),
                    Err(fate) => count(tracked, fate),
                }
            }
            if !prepared.is_empty() {
                // After this wait, every packet that came before the new elements has passed
                // nf_conntrack.
                linux::wait_for_programs();
            }
            for (tracked, flow) in &prepared {
                count(tracked, tables.complete(tracked, flow));
            }
        }
        Ok(())
    }

    fn settings(&self) -> io::Result<Settings> {
        let table: Table<u32, Settings> = open(&self.home, maps::SETTINGS)?;
        Ok(table.lookup(&0)?.unwrap_or(Settings::EMPTY))
    }
}

/// What the imports of IPv4 and IPv6 connections have in common.
struct Node {
    editor: Editor,
    ports: PortFilter,
    /// True with the setting `masquerade: mark`: the programs only mark packets, and the node's own
    /// rules masquerade them.
    marks_only: bool,
}

/// Returns the flow that a connection will become, or the outcome if it cannot become one.
fn plan<A: Family>(
    tracked: &Tracked,
    services: &Services<A>,
    tables: &Tables<'_, A>,
    clients: &mut Clients,
) -> Result<Flow<A>, Fate> {
    let (original, reply) = (&tracked.original, &tracked.reply);
    let service = services.at(original.dst, tracked.protocol);
    let service = service.ok_or(Fate::None)?;
    let Some(state) = state_of(tracked) else {
        return Err(match tracked.protocol {
            _ if has_ended(tracked) => tables.forget_ended(tracked),
            // A UDP exchange without a reply has nothing to keep.
            Protocol::UDP => Fate::None,
            _ => Fate::Left(Left::Unsettled),
        });
    };
    let interface = clients.interface_of(original.src.ip());
    let interface = interface.map_err(Fate::Left)?;
    let backend = services.backend(service, reply.src);
    let backend = backend.ok_or(Fate::Left(Left::NoEndpoint))?;
    let is_masqueraded = reply.dst.ip() != original.src.ip();
    if is_masqueraded && (tables.node.marks_only || !clients.is_own(reply.dst.ip())) {
        return Err(Fate::Left(Left::Masqueraded));
    }
    let flow = Flow::new(tracked, state, interface, service, backend, is_masqueraded);
    flow.ok_or(Fate::None)
}

/// True if this is a TCP connection that has ended. nf_conntrack keeps it for two minutes. Without
/// any NAT rule it then drops the SYNs of a new connection from the same client port to the same
/// endpoint, because the reply tuples are equal.
fn has_ended(tracked: &Tracked) -> bool {
    /// TIME_WAIT and CLOSE in the kernel's `enum tcp_conntrack`.
    const TCP_ENDED: [u8; 2] = [7, 8];
    let state = tracked.state();
    tracked.protocol == Protocol::TCP && state.is_some_and(|state| TCP_ENDED.contains(&state))
}

/// True if the connection is in a state in which it can become a flow.
fn is_open(tracked: &Tracked) -> bool {
    state_of(tracked).is_some()
}

/// Returns the state of the flow that the connection becomes; `None` if it cannot become one now.
fn state_of(tracked: &Tracked) -> Option<FlowState> {
    /// ESTABLISHED, FIN_WAIT and CLOSE_WAIT in the kernel's `enum tcp_conntrack`. In the latter two
    /// states one side may go on sending for a long time.
    const TCP_OPEN: [u8; 3] = [3, 4, 5];
    /// ESTABLISHED in the kernel's `enum sctp_conntrack`.
    const SCTP_ESTABLISHED: u8 = 4;
    let is_open = match (tracked.protocol, tracked.state()) {
        (Protocol::TCP, Some(state)) => TCP_OPEN.contains(&state),
        (Protocol::SCTP, state) => state == Some(SCTP_ESTABLISHED),
        (Protocol::UDP, _) => {
            if !tracked.has(Tracked::ASSURED) {
                return tracked
                    .has(Tracked::SEEN_REPLY)
                    .then_some(FlowState::ANSWERED);
            }
            true
        }
        _ => false,
    };
    (is_open && tracked.has(Tracked::SEEN_REPLY)).then_some(FlowState::ESTABLISHED)
}

fn open<K: Plain, V: Plain>(home: &Path, map: &str) -> io::Result<Table<K, V>> {
    get_pinned(&home.join(map), false).and_then(Table::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::Tuple;

    fn tracked(protocol: Protocol, status: u32, state: u8) -> Tracked {
        let end = ([10, 0, 0, 1], 1).into();
        let tuple = Tuple { src: end, dst: end };
        let nest = if protocol == Protocol::TCP { 1 } else { 3 };
        // A nested attribute with the state in it.
        let info = [12, 0, nest, 0, 5, 0, 1, 0, state, 0, 0, 0];
        Tracked {
            protocol,
            original: tuple,
            reply: tuple,
            status,
            id: 0,
            timeout: 0,
            mark: 0,
            zone: 0,
            protocol_info: info.to_vec(),
        }
    }

    #[test]
    fn only_open_conntrack_entries_become_flows_and_closed_tcp_ones_have_ended() {
        let both = Tracked::SEEN_REPLY | Tracked::ASSURED;
        let state = |protocol, status, state| state_of(&tracked(protocol, status, state));
        for open in [3, 4, 5] {
            let found = state(Protocol::TCP, both, open);
            assert_eq!(found, Some(FlowState::ESTABLISHED));
        }
        for other in [0, 1, 2, 6, 7, 8] {
            assert_eq!(state(Protocol::TCP, both, other), None, "{other}");
        }
        assert_eq!(state(Protocol::TCP, 0, 3), None);
        let ended = |protocol, state| has_ended(&tracked(protocol, both, state));
        assert!([7, 8].into_iter().all(|state| ended(Protocol::TCP, state)));
        assert!((0..7).all(|state| !ended(Protocol::TCP, state)));
        assert!((0..9).all(|state| !ended(Protocol::SCTP, state)));
        assert_eq!(state(Protocol::SCTP, both, 4), Some(FlowState::ESTABLISHED));
        assert_eq!(state(Protocol::SCTP, both, 5), None);
        let answered = Tracked::SEEN_REPLY;
        assert_eq!(state(Protocol::UDP, answered, 0), Some(FlowState::ANSWERED));
        assert_eq!(state(Protocol::UDP, both, 0), Some(FlowState::ESTABLISHED));
        assert_eq!(state(Protocol::UDP, 0, 0), None);
    }
}
