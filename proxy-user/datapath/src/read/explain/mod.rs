// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Explains from the pinned maps what the programs would do with one packet or one connecting
//! socket, and why. Reads key by key, so many services do not make it slower. Changes nothing. The
//! policy is that of `proxy_common`. Called by `portolan explain`.

mod maps;
mod packet;
mod service;
mod socket;

use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;
use proxy_common::{
    Backend, BackendId, Counter, FrontendKind, Origin, Protocol, ServiceFlags, ServiceId, Settings,
    V4, V6, flow::ClientInterface,
};

use self::maps::FamilyMaps;
use super::{Flow, Reader};
use crate::{error::DatapathError, maps::family::Family};
pub use service::ServiceAddress;

/// A packet that begins a connection or belongs to one, or a connection attempt of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    pub protocol: Protocol,
    pub client: IpAddr,
    /// 0 for any port; then no open connection is looked up.
    pub client_port: u16,
    pub to: SocketAddr,
    pub by: By,
}

/// The hook at which the programs see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// A packet that comes in on the interface with this index.
    Interface(u32),
    /// A process of this node connects a socket.
    NodeSocket,
    /// A process of a pod connects a socket.
    PodSocket,
}

/// What the programs would do, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Explained {
    /// The outcome, as the programs count it.
    pub counter: Counter,
    /// Why no service is involved, or why a socket is left to the packet path, where the counter
    /// alone does not tell.
    pub because: Option<&'static str>,
    pub settings: Settings,
    /// `None` where no service is involved.
    pub origin: Option<Origin>,
    pub frontend: Option<MatchedFrontend>,
    /// Every serving endpoint of the service port, in the order of addresses.
    pub endpoints: Vec<ServingEndpoint>,
    /// The endpoints that it may go to. Empty unless it is forwarded.
    pub to: Vec<SocketAddr>,
    /// True if only endpoints of this node may be chosen.
    pub local_only: bool,
    /// True if the policy masquerades it, without regard to hairpin.
    pub masquerades: bool,
    pub affinity: Option<AffineEndpoint>,
    /// The connection that it belongs to.
    pub flow: Option<Flow>,
    /// How flows identify the interface that it comes in on.
    pub(super) interface: ClientInterface,
}

/// The frontend at a destination.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MatchedFrontend {
    /// Namespace and name.
    pub service: String,
    pub port_name: String,
    pub kind: FrontendKind,
    /// `None` for a node port.
    pub address: Option<IpAddr>,
    /// 0 for all ports that a cluster IP does not serve.
    pub port: u16,
    pub flags: ServiceFlags,
    pub service_id: u32,
    pub affinity_timeout: u32,
    /// The numbers of endpoints for clients inside the cluster and for all others.
    pub internal: u32,
    pub external: u32,
    /// The client ranges that may use it, if it has source ranges.
    pub source_ranges: Vec<IpNet>,
}

/// A serving endpoint of the service port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ServingEndpoint {
    pub address: SocketAddr,
    /// True if the policy may choose it for this client.
    pub chosen_from: bool,
    /// True if some policy may choose it: `cluster` among the cluster's endpoints, `local` among
    /// this node's.
    pub cluster: bool,
    pub local: bool,
}

/// The endpoint that the client has affinity to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AffineEndpoint {
    pub endpoint: SocketAddr,
    pub seconds_left: u64,
    /// The service port, which the dry run needs for its own affinity entry.
    pub(super) service: ServiceId,
}

impl AffineEndpoint {
    /// Returns the affinity to this endpoint, for so many more seconds.
    pub fn new(endpoint: SocketAddr, seconds_left: u64) -> Self {
        Self {
            endpoint,
            seconds_left,
            service: ServiceId::NONE,
        }
    }
}

impl Explained {
    /// Returns an explanation without a service, or one in which something else than policy
    /// decides.
    pub fn unmatched(settings: Settings, counter: Counter, because: Option<&'static str>) -> Self {
        Self {
            counter,
            because,
            settings,
            origin: None,
            frontend: None,
            endpoints: Vec::new(),
            to: Vec::new(),
            local_only: false,
            masquerades: false,
            affinity: None,
            flow: None,
            interface: ClientInterface::SHARED,
        }
    }
}

impl Reader {
    /// Explains what the programs would do. `None` if client and destination are of different
    /// families.
    pub fn explain(&mut self, asked: &Asked) -> Result<Option<Explained>, DatapathError> {
        match (asked.client, asked.to.ip()) {
            (IpAddr::V4(client), IpAddr::V4(to)) => {
                self.explain_of::<V4>(asked, client.into(), to.into())
            }
            (IpAddr::V6(client), IpAddr::V6(to)) => {
                self.explain_of::<V6>(asked, client.into(), to.into())
            }
            _ => return Ok(None),
        }
        .map(Some)
    }

    fn explain_of<A: Family>(
        &mut self,
        asked: &Asked,
        client: A,
        to: A,
    ) -> Result<Explained, DatapathError> {
        let maps = FamilyMaps::<A>::open(self)?;
        match asked.by {
            By::Interface(interface) => {
                let mut explained = packet::explain(self, &maps, asked, interface, client, to)?;
                explained.interface = maps.client_interface(interface);
                Ok(explained)
            }
            By::NodeSocket | By::PodSocket => socket::explain(self, &maps, asked, to),
        }
    }

    /// Returns the source address of a masqueraded packet that leaves an interface for this next
    /// hop and destination, as far as the maps know it.
    pub fn masquerade_address(
        &self,
        interface: u32,
        next_hop: IpAddr,
        destination: IpAddr,
    ) -> Result<Option<IpAddr>, DatapathError> {
        if destination.is_ipv6() {
            FamilyMaps::<V6>::open(self)?.masquerade_address(interface, next_hop, destination)
        } else {
            FamilyMaps::<V4>::open(self)?.masquerade_address(interface, next_hop, destination)
        }
    }

    /// Returns the word of an interface with our programs, as in [`proxy_common::maps::interface`];
    /// `None` if it has none.
    pub fn interface_word(&self, index: u32) -> Result<Option<u64>, DatapathError> {
        let table = self.table::<u32, u64>(proxy_common::maps::INTERFACES)?;
        table
            .lookup(&index)
            .map_err(super::failed(proxy_common::maps::INTERFACES))
    }

    /// True if another generation of maps handles everything new.
    pub fn is_drained(&self) -> Result<bool, DatapathError> {
        use proxy_common::maps::{DRAINED, generation};
        let table = self.table::<u32, u32>(DRAINED)?;
        let word = table.lookup(&0).map_err(super::failed(DRAINED))?;
        Ok(word.is_some_and(|word| word & generation::DRAINED != 0))
    }
}

/// Marks those endpoints of a service port that are in a block.
fn endpoints<A: Family>(
    all: Vec<Backend<A>>,
    block: &[(BackendId, Backend<A>)],
) -> Vec<ServingEndpoint> {
    use proxy_common::EndpointSet;
    let chosen: HashSet<_> = block
        .iter()
        .map(|(_, backend)| (backend.address, backend.port))
        .collect();
    let describe = |backend: Backend<A>| ServingEndpoint {
        address: super::socket(backend.address, backend.port),
        chosen_from: chosen.contains(&(backend.address, backend.port)),
        cluster: backend.sets.intersects(EndpointSet::CLUSTER),
        local: backend.sets.intersects(EndpointSet::LOCAL),
    };
    let mut found: Vec<_> = all.into_iter().map(describe).collect();
    found.sort_unstable();
    found.dedup();
    found
}
