// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists the sockets whose destination the socket hooks have translated.

use std::net::SocketAddr;

use linux::now;
use proxy_common::{Backend, SocketBucket, SocketEntry, SocketKey, SocketRole, V4, V6};
use serde::Serialize;

use super::{Reader, SECOND, failed, socket, sorted};
use crate::{error::DatapathError, maps::family::Family};

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
