// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares what `portolan sockets` shows with the model's sockets.

use std::{collections::HashMap, net::SocketAddr};

use datapath::read::SocketRow;

use super::{
    model::{Judgement, Model, Peer, Route},
    services::{Backend, plain, pod_at},
};

impl Model {
    /// Compares `portolan sockets` with the model. `cookies`: sockets' numbers by their cookies.
    pub(crate) fn rows(&self, cookies: &HashMap<u64, u8>, rows: &[SocketRow]) -> Judgement {
        for row in rows {
            let Some(socket) = cookies.get(&row.cookie) else {
                return Err(format!("the row of a socket that is closed: {row:?}"));
            };
            let talk = &self.talks[socket];
            if row.owner != talk.kind.place.word() || (row.connected && !talk.tried) {
                return Err(format!("socket {socket} is {talk:?}, but its row {row:?}"));
            }
        }
        let has = |socket: u8, connected, to: SocketAddr, backend: Backend| {
            rows.iter().any(|row| {
                cookies.get(&row.cookie) == Some(&socket)
                    && (row.connected, row.frontend, row.current) == (connected, plain(to), true)
                    && pod_at(row.backend) == Some(backend.pod)
            })
        };
        for (number, talk) in &self.talks {
            if let Some(Peer {
                to,
                way: Route::Backend(backends),
            }) = &talk.peer
                && let [backend] = backends[..]
                && self.services.serves(backend)
                && !has(*number, true, *to, backend)
            {
                return Err(format!("no row of the connected socket {number}: {talk:?}"));
            }
            for (to, backend) in &talk.sent {
                if let Some(backend) = *backend
                    && self.services.serves(backend)
                    && !has(*number, false, *to, backend)
                {
                    return Err(format!("no row of socket {number} to {to}: {talk:?}"));
                }
            }
        }
        Ok(())
    }
}
