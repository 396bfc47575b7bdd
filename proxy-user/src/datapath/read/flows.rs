// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The flow table of the packet path.

use std::{collections::HashMap, net::SocketAddr};

use proxy_common::{FlowEntry, FlowKey, FlowKind, V4, V6};
use serde::Serialize;

use super::{Reader, SECOND, failed, socket};
use crate::datapath::{
    error::DatapathError,
    maps::{family::Family, tables::Table},
    sys::now,
};

/// One flow, that is an original entry and what belongs to it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Flow {
    pub service: String,
    pub protocol: &'static str,
    pub client: SocketAddr,
    pub frontend: SocketAddr,
    pub backend: SocketAddr,
    /// The client's source port as the backend sees it, where it had to be translated.
    pub translated_port: Option<u16>,
    /// The source that the backend sees, once a masqueraded flow has left.
    pub masquerade: Option<SocketAddr>,
    pub masqueraded: bool,
    pub state: &'static str,
    pub idle_seconds: u64,
}

impl Reader {
    /// Every flow, sorted.
    pub fn flows(&self) -> Result<Vec<Flow>, DatapathError> {
        let mut rows = self.flows_of::<V4>()?;
        rows.extend(self.flows_of::<V6>()?);
        rows.sort();
        Ok(rows)
    }
    fn flows_of<A: Family>(&self) -> Result<Vec<Flow>, DatapathError> {
        let flows: Table<FlowKey<A>, FlowEntry<A>> = self.table(A::FLOWS)?;
        let entries: HashMap<_, _> = flows
            .entries()
            .map_err(failed(A::FLOWS))?
            .into_iter()
            .collect();
        let now = now();
        let originals = entries
            .iter()
            .filter(|(key, entry)| entry.kind == FlowKind::ORIGINAL && entry.is_whole(key));
        Ok(originals
            .map(|(key, entry)| self.flow_of(key, entry, &entries, now))
            .collect())
    }
    /// The row of an original entry; `entries` has its reply at least.
    pub(super) fn flow_of<A: Family>(
        &self,
        key: &FlowKey<A>,
        entry: &FlowEntry<A>,
        entries: &HashMap<FlowKey<A>, FlowEntry<A>>,
        now: u64,
    ) -> Flow {
        let mut reply_key = *key;
        entry.reply_key_into(key, &mut reply_key);
        let reply = entries
            .get(&reply_key)
            .filter(|reply| !reply.masquerade_port.is_any());
        Flow {
            service: self.service_port(entry.service.0),
            protocol: key.protocol.name(),
            client: socket(key.src, key.src_port),
            frontend: socket(key.dst, key.dst_port),
            backend: socket(entry.address, entry.port),
            translated_port: (entry.client_port != key.src_port).then(|| entry.client_port.host()),
            masquerade: reply.map(|reply| socket(reply.masquerade, reply.masquerade_port)),
            masqueraded: entry.is_masqueraded(),
            state: entry.state.name(),
            idle_seconds: now.saturating_sub(entry.last_seen) / SECOND,
        }
    }
}
