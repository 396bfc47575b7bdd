// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Explains from the pinned maps what the programs would do with one packet or one connecting
//! socket, and why. Reads key by key, so many services do not make it slower. Changes nothing. The
//! policy is that of `proxy_common`. Called by `portolan explain`.

mod maps;
mod packet;
mod service;

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;
use proxy_common::{
    Backend, Counter, FrontendKind, Origin, Protocol, ServiceFlags, Settings, V4, V6,
    maps::{DRAINED, generation},
};

use self::maps::FamilyMaps;
use super::{Flow, Reader};
use crate::{error::DatapathError, maps::family::Family};
pub use service::ServiceAddress;

/// The question to explain: a packet that begins a connection or belongs to one, or a process that
/// connects a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    pub protocol: Protocol,
    pub client: IpAddr,
    /// The client's source port. 0 means any: then no existing connection is looked up.
    pub client_port: u16,
    pub to: SocketAddr,
    pub by: By,
}

/// Where the programs see the packet or the connecting socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// A packet that comes in on the interface with this index.
    Interface(u32),
    /// A process of this node connects a socket.
    NodeSocket,
    /// A process of a pod connects a socket.
    PodSocket,
}

/// The answer: what the programs would do with the packet or socket, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Explained {
    /// The outcome, as the programs count it.
    pub counter: Counter,
    /// Why no service is involved, or why the tc programs must handle a socket's packets; `None` if
    /// the counter alone tells it.
    pub because: Option<&'static str>,
    pub settings: Settings,
    /// Where the client is, as the policy sees it; `None` if no service is involved.
    pub origin: Option<Origin>,
    pub frontend: Option<MatchedFrontend>,
    /// Every serving endpoint of the service port, in the order of addresses.
    pub endpoints: Vec<ServingEndpoint>,
    /// The endpoints that the packet or connection may go to. Empty if it is not forwarded.
    pub to: Vec<SocketAddr>,
    /// True if the policy allows only endpoints on this node.
    pub local_only: bool,
    /// True if the policy replaces the client's address (masquerades). Does not consider a client
    /// that is itself the endpoint.
    pub masquerades: bool,
    /// Those of the endpoints in `to` that see the client's address although the policy replaces it
    /// (clientAddress: keep).
    pub keeps: Vec<SocketAddr>,
    pub affinity: Option<AffineEndpoint>,
    /// The known connection that the packet belongs to.
    pub flow: Option<Flow>,
}

/// The frontend that a destination address and port belong to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MatchedFrontend {
    /// The service's namespace and name.
    pub service: String,
    pub port_name: String,
    pub kind: FrontendKind,
    /// `None` for a node port.
    pub address: Option<IpAddr>,
    /// The port. 0 for all those ports of a cluster IP that the service does not serve.
    pub port: u16,
    pub flags: ServiceFlags,
    pub service_id: u32,
    pub affinity_timeout: u32,
    /// The address ranges of the clients that may use the frontend; empty if all may.
    pub source_ranges: Vec<IpNet>,
}

/// A serving endpoint of the service port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ServingEndpoint {
    pub address: SocketAddr,
    /// How many slots of the block for this client are the endpoint's; 0 if the policy does not
    /// choose it.
    pub slots: u32,
    /// True if a policy that chooses from all endpoints of the cluster may choose this one. `local`
    /// is the same for a policy that chooses from this node's endpoints.
    pub cluster: bool,
    pub local: bool,
}

/// The endpoint that the client has affinity to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AffineEndpoint {
    pub endpoint: SocketAddr,
    pub seconds_left: u64,
}

impl Explained {
    /// Returns an explanation without service, endpoints and connection; the caller may add them.
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
            keeps: Vec::new(),
            affinity: None,
            flow: None,
        }
    }
}

impl Reader {
    /// Explains what the programs would do. Returns `None` if client and destination are of
    /// different address families.
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
            By::Interface(interface) => packet::explain(self, &maps, asked, interface, client, to),
            By::NodeSocket | By::PodSocket => packet::explain_socket(self, &maps, asked, to),
        }
    }

    /// Returns the source address that a masqueraded packet gets when it leaves this interface to
    /// this next hop and destination; `None` if the maps do not know it.
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

    /// Returns the word of the interface with this index: flags, explained in
    /// [`proxy_common::maps::interface`]. `None` if the interface has no programs of ours.
    pub fn interface_word(&self, index: u32) -> Result<Option<u64>, DatapathError> {
        use proxy_common::maps::INTERFACES;
        let table = self.table::<u32, u64>(INTERFACES)?;
        table.lookup(&index).map_err(super::failed(INTERFACES))
    }

    /// Returns why the programs with these maps leave new connections to others; `None` if they
    /// serve them.
    pub fn leaves_new(&self) -> Result<Option<&'static str>, DatapathError> {
        Ok(if self.drained()? & generation::DRAINED != 0 {
            Some("these maps are drained: other maps, or another proxy, serve what is new")
        } else if self.is_abandoned()? {
            Some("no agent has run for `portolan.abandonedAfter`: what is new is left to others")
        } else {
            None
        })
    }

    /// Whether no agent has run for as long as the programs serve without one.
    fn is_abandoned(&self) -> Result<bool, DatapathError> {
        Ok(generation::is_abandoned(self.drained()?, linux::now))
    }

    /// Returns the word that [`generation`] explains.
    fn drained(&self) -> Result<u32, DatapathError> {
        let table = self.table::<u32, u32>(DRAINED)?;
        let word = table.lookup(&0).map_err(super::failed(DRAINED))?;
        Ok(word.unwrap_or_default())
    }
}

/// Returns all endpoints of a service port, sorted. Those in `block` have slots.
fn endpoints<A: Family>(all: Vec<Backend<A>>, block: &[(Backend<A>, u32)]) -> Vec<ServingEndpoint> {
    use proxy_common::EndpointSet;
    let slots: HashMap<_, _> = block
        .iter()
        .map(|(backend, slots)| ((backend.address, backend.port), *slots))
        .collect();
    let slots = |backend: &Backend<A>| slots.get(&(backend.address, backend.port)).copied();
    let describe = |backend: Backend<A>| ServingEndpoint {
        address: super::socket(backend.address, backend.port),
        slots: slots(&backend).unwrap_or(0),
        cluster: backend.sets.intersects(EndpointSet::CLUSTER),
        local: backend.sets.intersects(EndpointSet::LOCAL),
    };
    let mut found: Vec<_> = all.into_iter().map(describe).collect();
    found.sort_unstable();
    found.dedup();
    found
}
