// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections to services that another proxy has translated: nf_conntrack keeps them, and goes on
//! translating them when the other proxy's rules are gone. In: the pinned maps with the services,
//! and nf_conntrack. Out: how many there are, and their tuples in the map `direct`, so that no flow
//! gets one of them. Run by `agent`, in a thread.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use linux::Tracked;
use proxy_common::{
    FlowKey, FrontendKey, Port, RecordId, V4, V6,
    lookup::{FrontendMaps, find_record},
    maps::{self, node_address},
};

use crate::maps::{family::Family, open_table, tables::Table};

/// Looks for connections that another proxy has translated, on any thread.
#[derive(Debug)]
pub struct ForeignLookout {
    pub(super) home: PathBuf,
}

/// The connections that another proxy has translated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ForeignConnections {
    /// How many there are, exchanges of datagrams included.
    pub count: usize,
    /// Whether some end with the other proxy's rules: IPVS itself translates its connections.
    pub need_rules: bool,
    /// Whether the table that has the kernel translate is there.
    pub are_kept: bool,
}

impl ForeignLookout {
    /// Counts the connections, and has the kernel translate them until the last one has ended, and
    /// the last one that it has given another source port meanwhile. Reads all of nf_conntrack, so
    /// it takes longer the more connections there are.
    pub fn look(&self) -> io::Result<ForeignConnections> {
        let (mut found, mut has_new) = (Vec::new(), false);
        let by_ipvs = linux::has_ipvs_services();
        linux::tracked(|tracked| {
            if tracked.zone == 0 && tracked.is_sent_elsewhere() && (tracked.is_by_nat() || by_ipvs)
            {
                found.push(tracked);
            } else {
                has_new |= tracked.has_another_port();
            }
        })?;
        let (v4, v6): (Vec<_>, Vec<_>) = found
            .iter()
            .partition(|tracked| tracked.original.dst.is_ipv4());
        let foreign = [self.of_services::<V4>(v4)?, self.of_services::<V6>(v6)?].concat();
        if !foreign.is_empty() {
            linux::keep_translations()?;
        } else if !has_new && found.is_empty() {
            linux::end_translations()?;
        }
        Ok(ForeignConnections {
            count: foreign.len(),
            need_rules: foreign.iter().any(|tracked| !tracked.is_by_nat()),
            are_kept: linux::has_translations()?,
        })
    }

    /// Returns those of the connections whose destination is a service, and notes their tuples.
    fn of_services<'a, A: Family>(&self, found: Vec<&'a Tracked>) -> io::Result<Vec<&'a Tracked>> {
        if found.is_empty() {
            return Ok(found);
        }
        let services: Services<A> = Services::open(&self.home)?;
        let direct: Table<u32, u32> = open_table(&self.home, maps::DIRECT)?;
        let of_services = found.into_iter().filter(|tracked| services.has(tracked));
        let noted = of_services.inspect(|tracked| {
            if let Some((place, value)) = reply_key::<A>(tracked).map(|key| key.fingerprint()) {
                // A note that is missing only makes it possible that a flow gets the tuple.
                _ = direct.update(&place, &value);
            }
        });
        Ok(noted.collect())
    }
}

/// Returns the key that a flow with the connection's tuple would have for its replies.
fn reply_key<A: Family>(tracked: &Tracked) -> Option<FlowKey<A>> {
    let port = |end: SocketAddr| Port::from_host(end.port());
    let (server, client) = (tracked.reply.src, tracked.reply.dst);
    let (from, to) = (A::of_ip(server.ip())?, A::of_ip(client.ip())?);
    let (server, client) = (port(server), port(client));
    Some(FlowKey::new(from, server, to, client, tracked.protocol))
}

/// The maps with the services of one address family.
struct Services<A: Family> {
    frontends: Table<FrontendKey<A>, u32>,
    addresses: Table<A, u32>,
}

impl<A: Family> Services<A> {
    fn open(home: &Path) -> io::Result<Self> {
        Ok(Self {
            frontends: open_table(home, A::FRONTENDS)?,
            addresses: open_table(home, A::NODE_ADDRESSES)?,
        })
    }
    /// True if the connection's destination is a service's address; also if it is a cluster IP that
    /// no longer has this port.
    fn has(&self, tracked: &Tracked) -> bool {
        let to = tracked.original.dst;
        A::of_ip(to.ip()).is_some_and(|address| {
            find_record(self, address, Port::from_host(to.port()), tracked.protocol).is_some()
        })
    }
}

impl<A: Family> FrontendMaps<A> for Services<A> {
    fn bits(&self, _: Port) -> u64 {
        u64::MAX
    }
    fn record(&self, key: &FrontendKey<A>) -> Option<RecordId> {
        self.frontends.lookup(key).ok()?.map(RecordId)
    }
    fn serves_node_ports(&self, address: A) -> bool {
        let flags = self.addresses.lookup(&address);
        matches!(flags, Ok(Some(flags)) if flags & node_address::NODE_PORT != 0)
    }
    fn in_service_range(&self, _: A) -> bool {
        // No need to check the ranges: only cluster IPs have the key that is looked up next.
        true
    }
}
