// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Creates the flow of one connection and removes the connection from nf_conntrack, in an order in
//! which no packet stays untranslated.

use std::{io, path::Path};

use linux::{Tracked, Tuple, now};
use proxy_common::{
    BackendId, FlowEntry, FlowKey, FlowKind, FlowState, Port, Protocol, ServiceId,
    flow::{ClientInterface, Offload, SPARE},
    ports,
};

use super::{Fate, Left, Node, is_open, open};
use crate::maps::{family::Family, tables::Table};

/// The `slot` of a flow that is in no ring, the list from which flows are evicted: an established
/// flow is never evicted.
const NO_SLOT: u32 = u32::MAX;
/// How often the creation of the new connection in nf_conntrack is tried again. It fails if a reply
/// came after the old connection was removed: nf_conntrack then takes the reply for the first
/// packet of a connection.
const TRIES: u32 = 3;

type Element<A> = (FlowKey<A>, FlowEntry<A>);

/// The elements of the flow table that make up one flow, before they are inserted.
pub(super) struct Flow<A> {
    original: Element<A>,
    reply: Element<A>,
    masqueraded: Option<Element<A>>,
    /// The connection that nf_conntrack will track in place of the old one: from client to backend,
    /// as the stack sees the packets.
    seen: Tracked,
}

impl<A: Family> Flow<A> {
    /// Returns the flow that a tracked connection becomes; `None` if its addresses are not all of
    /// one family.
    pub(super) fn new(
        tracked: &Tracked,
        state: FlowState,
        interface: ClientInterface,
        service: ServiceId,
        (backend, generation): (BackendId, u32),
        is_masqueraded: bool,
    ) -> Option<Self> {
        let (original, reply) = (&tracked.original, &tracked.reply);
        let address = |end: std::net::SocketAddr| A::of_ip(end.ip());
        let port = |end: std::net::SocketAddr| Port::from_host(end.port());
        let (client, frontend) = (address(original.src)?, address(original.dst)?);
        let (server, leaving) = (address(reply.src)?, address(reply.dst)?);
        let protocol = tracked.protocol;
        let mut tuple = reply.reversed();
        if is_masqueraded {
            tuple.src = original.src;
        }
        let (tag, reply_tag) = tracked.tags();
        // Every packet still passes the kernel's stack (`NEEDS_STACK`), as it did before the
        // import.
        let masquerade = if is_masqueraded {
            FlowEntry::<A>::MASQUERADE
        } else {
            0
        };
        let entry = FlowEntry {
            check: 0,
            kind: FlowKind::REPLY,
            flags: FlowEntry::<A>::NEEDS_STACK | masquerade,
            port: port(original.dst),
            address: frontend,
            masquerade: A::UNSPECIFIED,
            client_port: port(original.src),
            masquerade_port: Port::ANY,
            service,
            backend,
            generation,
            interface,
            state: FlowState::NEW,
            last_seen: now(),
            sequence: reply_tag,
            reuse: 0,
            slot: NO_SLOT,
            offload: Offload::NONE,
            _pad: SPARE,
        };
        let mut reply_entry = entry;
        let masqueraded = is_masqueraded.then(|| {
            (reply_entry.masquerade, reply_entry.masquerade_port) = (leaving, port(reply.dst));
            let key = FlowKey::new(server, port(reply.src), leaving, port(reply.dst), protocol);
            let mut back = entry;
            back.kind = FlowKind::MASQUERADED_REPLY;
            (back.address, back.port) = (client, port(tuple.src));
            sealed(key, back)
        });
        let key = FlowKey::new(server, port(reply.src), client, port(tuple.src), protocol);
        let reply_element = sealed(key, reply_entry);
        let key = FlowKey::new(
            client,
            port(original.src),
            frontend,
            port(original.dst),
            protocol,
        )
        .behind(interface);
        let mut there = entry;
        there.kind = FlowKind::ORIGINAL;
        (there.address, there.port) = (server, port(reply.src));
        there.client_port = port(tuple.src);
        (there.state, there.sequence) = (state, tag);
        Some(Self {
            original: sealed(key, there),
            reply: reply_element,
            masqueraded,
            seen: Tracked {
                original: tuple,
                reply: tuple.reversed(),
                ..tracked.clone()
            },
        })
    }

    /// Returns the flow's original element as it is during the import: of the kind `HELD`, which
    /// makes the programs drop the client's packets.
    fn held(&self) -> Element<A> {
        let (key, entry) = self.original;
        let held = FlowEntry {
            kind: FlowKind::HELD,
            state: FlowState::NEW,
            ..entry
        };
        sealed(key, held)
    }
}

/// The flow table of one address family.
pub(super) struct Tables<'a, A: Family> {
    flows: Table<FlowKey<A>, FlowEntry<A>>,
    pub(super) node: &'a Node,
}

impl<'a, A: Family> Tables<'a, A> {
    pub(super) fn open(home: &Path, node: &'a Node) -> io::Result<Self> {
        Ok(Self {
            flows: open(home, A::FLOWS)?,
            node,
        })
    }

    /// First half of an import: inserts the flow's elements. The old connection stays in
    /// nf_conntrack.
    pub(super) fn prepare(&self, flow: &Flow<A>) -> Result<(), Fate> {
        self.make_way(flow)?;
        // The port bit must come before the entries that need it.
        let port = flow.reply.0.src_port;
        self.node.ports.announce(port, ports::REPLY);
        let Some(masqueraded) = &flow.masqueraded else {
            // While nf_conntrack translates replies, none of them matches this entry.
            return self.insert_all(&[&flow.reply, &flow.held()]);
        };
        let port = masqueraded.0.dst_port;
        self.node.ports.announce(port, ports::MASQUERADE);
        // The old and the new connection in nf_conntrack have no tuple in common, so both can
        // exist. Replies change over first.
        let created = self.node.editor.create(&flow.seen);
        created.map_err(|error| Fate::Left(refusal(&error)))?;
        let entered = self.insert_all(&[&flow.reply, masqueraded, &flow.original]);
        if entered.is_err() {
            self.forget(flow.seen.protocol, flow.seen.original);
        }
        entered
    }

    /// Second half of an import: removes the old connection from nf_conntrack and completes the
    /// flow.
    pub(super) fn complete(&self, tracked: &Tracked, flow: &Flow<A>) -> Fate {
        // A short connection may have ended since nf_conntrack was read. As a flow it would last
        // for a day.
        let found = self.node.editor.find(tracked);
        if !found
            .as_ref()
            .is_ok_and(|found| found.as_ref().is_some_and(is_open))
        {
            self.undo(tracked, flow);
            return match found {
                Ok(None) => Fate::None,
                Ok(Some(_)) => Fate::Left(Left::Unsettled),
                Err(error) => Fate::Left(refusal(&error)),
            };
        }
        let completed = match &flow.masqueraded {
            Some(_) => self.complete_masqueraded(tracked, flow),
            None => self.complete_plain(tracked, flow),
        };
        match completed {
            Ok(()) => Fate::Imported,
            Err(fate) => fate,
        }
    }

    /// Removes a connection that has ended from nf_conntrack.
    pub(super) fn forget_ended(&self, tracked: &Tracked) -> Fate {
        match self.node.editor.remove(tracked) {
            Ok(_) => Fate::None,
            Err(_) => Fate::Left(Left::Unsettled),
        }
    }

    /// Removes what [`Self::prepare`] has inserted and created.
    fn undo(&self, tracked: &Tracked, flow: &Flow<A>) {
        if let Some(masqueraded) = &flow.masqueraded {
            self.remove_all(&[&flow.original, masqueraded, &flow.reply]);
            self.forget(tracked.protocol, flow.seen.original);
        } else {
            self.remove_all(&[&flow.original, &flow.reply]);
        }
    }

    /// Fails if the table has a flow with this key: another connection has begun since nf_conntrack
    /// was read. Removes elements that were left by an agent that was killed during an import.
    fn make_way(&self, flow: &Flow<A>) -> Result<(), Fate> {
        match self.flows.lookup(&flow.original.0) {
            Ok(None) => Ok(()),
            Ok(Some(entry)) if entry.kind == FlowKind::HELD => {
                self.remove_all(&[&flow.original, &flow.reply]);
                Ok(())
            }
            _ => Err(Fate::None),
        }
    }

    fn complete_masqueraded(&self, tracked: &Tracked, flow: &Flow<A>) -> Result<(), Fate> {
        let removed = self.node.editor.remove(tracked);
        if matches!(removed, Ok(true)) {
            return Ok(());
        }
        self.undo(tracked, flow);
        Err(unremoved(removed))
    }

    fn complete_plain(&self, tracked: &Tracked, flow: &Flow<A>) -> Result<(), Fate> {
        let editor = &self.node.editor;
        let (removed, mut created) = match editor.replace(tracked, &flow.seen) {
            Ok(answers) => answers,
            Err(error) => (Err(error), Err(io::ErrorKind::Other.into())),
        };
        if !matches!(removed, Ok(true)) {
            if created.is_ok() {
                self.forget(tracked.protocol, flow.seen.original);
            }
            self.remove_all(&[&flow.original, &flow.reply]);
            return Err(unremoved(removed));
        }
        for _ in 0..TRIES {
            match created {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    // A reply came in between, and the node's rules may have given its connection
                    // another source.
                    self.forget(tracked.protocol, flow.seen.reply);
                    created = editor.create(&flow.seen);
                }
                _ => break,
            }
        }
        let (key, entry) = &flow.original;
        let entered = self.flows.update(key, entry);
        entered.map_err(|_| Fate::Left(Left::Full))
    }

    /// Inserts all of the elements into the flow table, or none.
    fn insert_all(&self, elements: &[&Element<A>]) -> Result<(), Fate> {
        for (n, (key, entry)) in elements.iter().enumerate() {
            let why = match self.flows.insert(key, entry) {
                Ok(true) => continue,
                Ok(false) => Left::Taken,
                Err(_) => Left::Full,
            };
            self.remove_all(&elements[..n]);
            return Err(Fate::Left(why));
        }
        Ok(())
    }
    fn remove_all(&self, elements: &[&Element<A>]) {
        for (key, _) in elements {
            // An element that cannot be deleted now is removed later, when it has been idle.
            _ = self.flows.delete(key);
        }
    }
    /// Removes the connection with this tuple from nf_conntrack. If that fails, it expires by
    /// itself.
    fn forget(&self, protocol: Protocol, tuple: Tuple) {
        _ = self.node.editor.remove_tuple(protocol, tuple);
    }
}

fn sealed<A: Family>(key: FlowKey<A>, entry: FlowEntry<A>) -> Element<A> {
    (key, entry.sealed(&key))
}

fn refusal(error: &io::Error) -> Left {
    match error.kind() {
        io::ErrorKind::AlreadyExists => Left::Taken,
        _ => Left::Refused,
    }
}

/// Returns the outcome for a connection that could not be removed from nf_conntrack. `removed` is
/// `Ok(false)` if nf_conntrack no longer had it.
fn unremoved(removed: io::Result<bool>) -> Fate {
    match removed {
        // The connection has ended in the meantime.
        Ok(_) => Fate::None,
        Err(_) => Fate::Left(Left::Refused),
    }
}
