// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the programs would do with one packet, or one connecting socket, and why, by the pinned
//! maps. Asked key by key, so it takes no longer where there are many services. Nothing is changed.
//! The policy is `proxy_common`'s. Called by `portolan explain`.

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

/// A packet that begins a connection or belongs to one, or what a process asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    pub protocol: Protocol,
    pub client: IpAddr,
    /// 0 if any: then no open connection is looked for.
    pub client_port: u16,
    pub to: SocketAddr,
    pub by: By,
}

/// Where the programs meet it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// A packet that comes in by the interface with this index.
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
    /// Why no service is concerned, or a socket is left to the packet path, where the counter alone
    /// does not say it.
    pub because: Option<&'static str>,
    pub settings: Settings,
    /// Not asked where no service is concerned.
    pub origin: Option<Origin>,
    pub frontend: Option<MatchedFrontend>,
    /// Every endpoint of the service port that serves, in the order of addresses.
    pub endpoints: Vec<ServingEndpoint>,
    /// Where it goes: one of these. Empty unless it is forwarded.
    pub to: Vec<SocketAddr>,
    /// Only endpoints of this node may be chosen.
    pub local_only: bool,
    /// Whether the policy masquerades it, hairpin left aside.
    pub masquerades: bool,
    pub affinity: Option<AffineEndpoint>,
    /// The connection that it belongs to.
    pub flow: Option<Flow>,
    /// How flows know the interface that it comes in by.
    pub(super) interface: ClientInterface,
}

/// The frontend that a destination leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MatchedFrontend {
    /// Namespace and name.
    pub service: String,
    pub port_name: String,
    pub kind: FrontendKind,
    /// None for a node port.
    pub address: Option<IpAddr>,
    /// 0 for all ports that a cluster IP does not serve.
    pub port: u16,
    pub flags: ServiceFlags,
    pub service_id: u32,
    pub affinity_timeout: u32,
    /// Endpoints for clients inside the cluster, and for all others.
    pub internal: u32,
    pub external: u32,
    /// Those that may use it, if it has source ranges.
    pub source_ranges: Vec<IpNet>,
}

/// A serving endpoint of the service port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ServingEndpoint {
    pub address: SocketAddr,
    /// The policy may choose it for this client.
    pub chosen_from: bool,
    /// Some policy chooses it: as one of the cluster's, as one of this node's.
    pub cluster: bool,
    pub local: bool,
}

/// The endpoint that affinity holds the client to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AffineEndpoint {
    pub endpoint: SocketAddr,
    pub seconds_left: u64,
    /// What the dry run needs to know it, too.
    pub(super) service: ServiceId,
}

impl AffineEndpoint {
    /// Of this endpoint, for so many more seconds.
    pub fn new(endpoint: SocketAddr, seconds_left: u64) -> Self {
        Self {
            endpoint,
            seconds_left,
            service: ServiceId::NONE,
        }
    }
}

impl Explained {
    /// No service is concerned, or something else than policy decides.
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
    /// What the programs would do. `None` if client and destination are of different families.
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

    /// The address that a masqueraded packet to this next hop and destination leaves an interface
    /// with, as far as the maps know it.
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

    /// The word of an interface that has our programs, as in [`proxy_common::maps::interface`];
    /// none if it has not.
    pub fn interface_word(&self, index: u32) -> Result<Option<u64>, DatapathError> {
        let table = self.table::<u32, u64>(proxy_common::maps::INTERFACES)?;
        table
            .lookup(&index)
            .map_err(super::failed(proxy_common::maps::INTERFACES))
    }

    /// Whether another generation of maps serves what is new.
    pub fn is_drained(&self) -> Result<bool, DatapathError> {
        use proxy_common::maps::{DRAINED, generation};
        let table = self.table::<u32, u32>(DRAINED)?;
        let word = table.lookup(&0).map_err(super::failed(DRAINED))?;
        Ok(word.is_some_and(|word| word & generation::DRAINED != 0))
    }
}

/// Marks those of a service port's endpoints that a block has.
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
