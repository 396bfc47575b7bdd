// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists the flows, which are the connections and UDP exchanges that the tc programs translate, and
//! the sockets whose destination the socket hooks have translated.

use std::{collections::HashMap, io, net::SocketAddr};

use linux::now;
use proxy_common::{
    Backend, FlowEntry, FlowKey, FlowKind, SocketBucket, SocketEntry, SocketKey, SocketRole, V4, V6,
};
use serde::Serialize;

use super::{Reader, SECOND, failed, socket, sorted};
use crate::{
    error::DatapathError,
    maps::{FlowTable, family::Family},
};

/// One flow, put together from its entry for packets of the client and its entries for replies.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Flow {
    pub service: String,
    pub protocol: &'static str,
    pub client: SocketAddr,
    pub frontend: SocketAddr,
    pub backend: SocketAddr,
    /// The client's source port as the backend sees it; `None` if it is the client's own.
    pub translated_port: Option<u16>,
    /// The source address and port that the backend sees, if the flow is masqueraded and its first
    /// packet has left the node.
    pub masquerade: Option<SocketAddr>,
    pub masqueraded: bool,
    /// True if the endpoint's node puts the client's address back (clientAddress: keep).
    pub carried: bool,
    pub state: &'static str,
    pub idle_seconds: u64,
    /// Index of the interface by which the client's packets leave past the node's stack, because
    /// the stack has let a packet pass there within the last seconds. None if it has not, or if
    /// nothing in the stack judges forwarded packets: then nothing is recorded.
    pub past_stack_by: Option<u32>,
}

impl Reader {
    /// Returns every flow, sorted.
    pub fn flows(&self) -> Result<Vec<Flow>, DatapathError> {
        let mut rows = Vec::new();
        self.each_flow(|_| true, |flow| rows.push(flow))?;
        rows.sort();
        Ok(rows)
    }

    /// Calls `visit` with every flow for which `wants` returns true, in no order. The table is read
    /// in parts, so only flows that the caller keeps take memory. When `wants` sees a flow, its
    /// [`Flow::masquerade`] is not set yet.
    pub fn each_flow(
        &self,
        wants: impl Fn(&Flow) -> bool,
        mut visit: impl FnMut(Flow),
    ) -> Result<(), DatapathError> {
        self.each_flow_of::<V4>(&wants, &mut visit)?;
        self.each_flow_of::<V6>(&wants, &mut visit)
    }
    fn each_flow_of<A: Family>(
        &self,
        wants: &impl Fn(&Flow) -> bool,
        visit: &mut impl FnMut(Flow),
    ) -> Result<(), DatapathError> {
        let flows: FlowTable<A> = self.flow_table()?;
        let now = now();
        let mut names = HashMap::new();
        let mut failure = None;
        let visited = flows.each(|key, entry| {
            if failure.is_some() || entry.kind != FlowKind::ORIGINAL {
                return;
            }
            let id = entry.service.0;
            let service = names.entry(id).or_insert_with(|| self.service_port(id));
            let mut flow = flow_of(service, &key, &entry, now);
            if !wants(&flow) {
                return;
            }
            match masquerade_of(&flows, &key, &entry) {
                Ok(masquerade) => flow.masquerade = masquerade,
                Err(error) => failure = Some(error),
            }
            visit(flow);
        });
        visited
            .and_then(|()| failure.map_or(Ok(()), Err))
            .map_err(failed(A::FLOW_SLOTS))
    }
}

/// Returns a flow with the data of its entry for packets of the client only: `masquerade` is
/// `None`.
pub(super) fn flow_of<A: Family>(
    service: &str,
    key: &FlowKey<A>,
    entry: &FlowEntry<A>,
    now: u64,
) -> Flow {
    let is_moved = entry.client_port != key.src_port && !entry.is_restored();
    Flow {
        service: service.to_owned(),
        protocol: key.protocol.name(),
        client: client_of(key, entry),
        frontend: socket(key.dst, key.dst_port),
        backend: socket(entry.address, entry.port),
        translated_port: is_moved.then(|| entry.client_port.host()),
        masquerade: None,
        masqueraded: entry.is_masqueraded(),
        carried: entry.is_carried() || entry.is_restored(),
        state: entry.state.name(),
        idle_seconds: now.saturating_sub(entry.last_seen) / SECOND,
        past_stack_by: entry
            .offload
            .is_fresh(key.protocol, entry.last_seen, now)
            .then(|| entry.offload.interface()),
    }
}

/// Returns the client's address and port; on the endpoint's node, those that it puts back.
fn client_of<A: Family>(key: &FlowKey<A>, entry: &FlowEntry<A>) -> SocketAddr {
    if entry.is_restored() {
        socket(entry.masquerade, entry.masquerade_port)
    } else {
        socket(key.src, key.src_port)
    }
}

/// Returns the masquerade source of a flow, which is in its entry for replies; `None` if there is
/// none (yet).
fn masquerade_of<A: Family>(
    flows: &FlowTable<A>,
    key: &FlowKey<A>,
    entry: &FlowEntry<A>,
) -> io::Result<Option<SocketAddr>> {
    if !entry.is_masqueraded() {
        return Ok(None);
    }
    let mut reply_key = *key;
    entry.reply_key_into(key, &mut reply_key);
    Ok(flows
        .lookup(&reply_key)?
        .and_then(|reply| masquerade(&reply)))
}

pub(super) fn masquerade<A: Family>(reply: &FlowEntry<A>) -> Option<SocketAddr> {
    let is_known = !reply.masquerade_port.is_any();
    is_known.then(|| socket(reply.masquerade, reply.masquerade_port))
}

/// One socket that is connected to a backend of a service, or sends datagrams to it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SocketRow {
    pub service: String,
    pub protocol: &'static str,
    /// `node` for the node's own processes, else `pod`.
    pub owner: &'static str,
    /// The socket's cookie, which `ss --extended` shows in hexadecimal in the owner's network
    /// namespace.
    pub cookie: u64,
    /// The address to which the process connects or sends.
    pub frontend: SocketAddr,
    pub backend: SocketAddr,
    pub connected: bool,
    /// True if the backend still serves.
    pub current: bool,
    /// Seconds since the socket was connected, or last sent a datagram to the frontend.
    pub age_seconds: u64,
}

impl Reader {
    /// Returns every socket whose destination the socket hooks have translated, sorted.
    pub fn sockets(&self) -> Result<Vec<SocketRow>, DatapathError> {
        Ok(sorted(self.sockets_of::<V4>()?, self.sockets_of::<V6>()?))
    }
    fn sockets_of<A: Family>(&self) -> Result<Vec<SocketRow>, DatapathError> {
        let buckets = self.entries::<u32, SocketBucket<A>>(A::SOCKET_BUCKETS)?;
        let sockets = self.entries::<SocketKey<A>, SocketEntry<A>>(A::SOCKETS)?;
        let backends = self.table::<u32, Backend<A>>(A::BACKENDS)?;
        let now = now();
        let mut rows = Vec::new();
        let buckets = buckets
            .into_iter()
            .filter_map(|(_, bucket)| Some((bucket.key()?, bucket.entry)));
        for (key, entry) in buckets.chain(sockets) {
            let connected = key.role == SocketRole::CONNECTED;
            let listed = connected || key.role == SocketRole::FORWARD;
            let dropped = entry.flags & SocketEntry::<A>::DROPPED != 0;
            if !listed || dropped || entry.is_peers() || !entry.is_whole(&key) {
                continue;
            }
            let backend = backends
                .lookup(&entry.backend.0)
                .map_err(failed(A::BACKENDS))?;
            let host = entry.flags & SocketEntry::<A>::HOST != 0;
            rows.push(SocketRow {
                service: self.service_port(entry.service.0),
                protocol: entry.protocol.name(),
                owner: if host { "node" } else { "pod" },
                cookie: key.cookie.number(),
                frontend: socket(entry.frontend, entry.frontend_port),
                backend: socket(entry.backend_address, entry.backend_port),
                connected,
                current: backend
                    .is_some_and(|backend| backend.is_current(entry.service, entry.generation)),
                age_seconds: now.saturating_sub(entry.last_used) / SECOND,
            });
        }
        Ok(rows)
    }
}
