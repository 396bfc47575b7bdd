// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Enters a connection's flow and takes the connection from nf_conntrack, in an order that no
//! packet notices.

use std::{io, path::Path};

use linux::{Tracked, Tuple, now};
use proxy_common::{
    BackendId, FlowEntry, FlowKey, FlowKind, FlowState, Port, Protocol, ServiceId,
    flow::{ClientInterface, Offload, SPARE},
    ports,
};

use super::{Fate, Left, Node, is_open, open};
use crate::maps::{family::Family, tables::Table};

/// No ring has the flow's key: an established flow gives way to none.
const NO_SLOT: u32 = u32::MAX;
/// How often nf_conntrack may have taken a packet for the first of a new connection, in the moment
/// between two requests.
const TRIES: u32 = 3;

type Element<A> = (FlowKey<A>, FlowEntry<A>);

/// The entries of a flow to be.
pub(super) struct Flow<A> {
    original: Element<A>,
    reply: Element<A>,
    masqueraded: Option<Element<A>>,
    /// What nf_conntrack is to know of it: what the stack sees, from client to backend.
    seen: Tracked,
}

impl<A: Family> Flow<A> {
    /// The flow of a connection; none if its addresses are not of one family.
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
        // The stack judges every packet, as it has done so far.
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

    /// The original entry while the flow is being imported.
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

/// One family's flow table.
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

    /// Enters what changes nothing for packets on their way.
    pub(super) fn prepare(&self, flow: &Flow<A>) -> Result<(), Fate> {
        self.make_way(flow)?;
        // Before the entries that they announce.
        let port = flow.reply.0.src_port;
        self.node.ports.announce(port, ports::REPLY);
        let Some(masqueraded) = &flow.masqueraded else {
            // While nf_conntrack translates replies, none matches their entry.
            return self.insert_all(&[&flow.reply, &flow.held()]);
        };
        let port = masqueraded.0.dst_port;
        self.node.ports.announce(port, ports::MASQUERADE);
        // What nf_conntrack knows before and after has no tuple in common: both may be there.
        // Replies change over first.
        let created = self.node.editor.create(&flow.seen);
        created.map_err(|error| Fate::Left(refusal(&error)))?;
        let entered = self.insert_all(&[&flow.reply, masqueraded, &flow.original]);
        if entered.is_err() {
            self.forget(flow.seen.protocol, flow.seen.original);
        }
        entered
    }

    /// Takes the connection from nf_conntrack.
    pub(super) fn complete(&self, tracked: &Tracked, flow: &Flow<A>) -> Fate {
        // A short connection may have ended since the table was read; as a flow it would last for a
        // day.
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

    /// Has nf_conntrack forget a connection that has ended.
    pub(super) fn forget_ended(&self, tracked: &Tracked) -> Fate {
        match self.node.editor.remove(tracked) {
            Ok(_) => Fate::None,
            Err(_) => Fate::Left(Left::Unsettled),
        }
    }

    /// Removes what [`Self::prepare`] has entered.
    fn undo(&self, tracked: &Tracked, flow: &Flow<A>) {
        if let Some(masqueraded) = &flow.masqueraded {
            self.remove_all(&[&flow.original, masqueraded, &flow.reply]);
            self.forget(tracked.protocol, flow.seen.original);
        } else {
            self.remove_all(&[&flow.original, &flow.reply]);
        }
    }

    /// An error if there is a flow: whoever has begun one since then has another connection. What
    /// an agent has left behind that was killed in the middle is removed.
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

    /// Enters all of them, or none.
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
            // One that stays goes when it is idle.
            _ = self.flows.delete(key);
        }
    }
    /// What it leaves behind ends by itself.
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

/// What becomes of a connection that could not be taken from nf_conntrack.
fn unremoved(removed: io::Result<bool>) -> Fate {
    match removed {
        // It has ended meanwhile.
        Ok(_) => Fate::None,
        Err(_) => Fate::Left(Left::Refused),
    }
}
