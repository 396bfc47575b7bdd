// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Resolves the arguments to addresses and interfaces: a service's address by the pinned maps, the
//! interfaces that the packet passes by the node's routes.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    path::Path,
};

use anyhow::{Context, Result, bail};
use datapath::{
    DatapathError,
    read::{Asked, By, Explained, Reader, ServiceAddress},
};
use linux::{Incoming, Routed};
use proxy_common::{
    Counter, FrontendKind, Protocol, Settings, masquerade::Marks, settings::any_contains,
};

use super::{
    ExplainArgs,
    interfaces::{HookedInterface, HookedInterfaces},
    question::{From, To},
};
use crate::names::Names;

/// Returns the destination's address and port. `is_outside`: the client is outside the cluster.
pub(super) fn destination(
    reader: &Reader,
    to: &To,
    protocol: Protocol,
    clients: &[IpAddr],
    is_outside: bool,
) -> Result<SocketAddr> {
    let is_possible = |to: IpAddr| {
        let mut clients = clients.iter().map(IpAddr::is_ipv4);
        clients.len() == 0 || clients.any(|v4| v4 == to.is_ipv4())
    };
    let service = match to {
        To::Address(address) => return Ok(*address),
        To::Service(service) => service,
    };
    let name = &service.name;
    let namespace = &match &service.namespace {
        Some(namespace) => namespace.clone(),
        None => only(name, reader.namespaces_of(name)?)?,
    };
    let all = reader.addresses_of(namespace, name)?;
    if all.is_empty() {
        bail!(
            "the maps have no address of Service {namespace}/{name}: see `portolan services`; ExternalName and headless services have none"
        );
    }
    let is_port = |one: &&ServiceAddress| service.means_port(&one.port_name, &[one.port]);
    let fitting = all.iter().filter(is_port);
    let fitting = fitting.filter(|one| one.protocol == protocol && is_possible(one.address));
    if let Some(one) = fitting.min_by_key(|one| preference(one.kind, is_outside)) {
        return Ok(SocketAddr::new(one.address, one.port));
    }
    // A port that the Service does not have is allowed: its cluster IP answers for it.
    let number = service.port.as_ref().and_then(|port| port.parse().ok());
    let mut cluster_ips = all.iter().filter(|one| one.kind == FrontendKind::ClusterIp);
    let cluster_ip = cluster_ips.find(|one| is_possible(one.address));
    match (number, cluster_ip) {
        (Some(number), Some(one)) if number != 0 => Ok(SocketAddr::new(one.address, number)),
        _ => bail!(
            "Service {namespace}/{name} has no such {} port for this client: see `portolan services`",
            protocol.name()
        ),
    }
}

/// Returns the namespace of the only service with this name.
fn only(name: &str, mut namespaces: BTreeSet<String>) -> Result<String> {
    let all = namespaces.iter().map(|one| format!("{one}/{name}"));
    let all = Vec::from_iter(all).join(", ");
    match (namespaces.pop_first(), namespaces.is_empty()) {
        (Some(one), true) => Ok(one),
        (None, _) => bail!(
            "the maps have no Service {name:?} in any namespace: see `portolan services`; ExternalName and headless services have none"
        ),
        _ => bail!("--to {name}: there are {all}; write one of them"),
    }
}

/// Ranks the kinds of a service's addresses by how likely a client uses them; the lowest rank comes
/// first. From outside the cluster, a cluster IP is reachable only if somebody has made a route.
fn preference(kind: FrontendKind, is_outside: bool) -> u8 {
    match kind {
        FrontendKind::LoadBalancer if is_outside => 0,
        FrontendKind::ExternalIp if is_outside => 1,
        FrontendKind::NodePort if is_outside => 2,
        _ => 3,
    }
}

/// Returns the client's IP addresses; an empty list for a process of this node.
pub(super) fn clients(from: &From, names: &Names) -> Result<Vec<IpAddr>> {
    match from {
        From::Node => Ok(Vec::new()),
        From::Address(address, _) => Ok(vec![*address]),
        From::Pod { namespace, name } => names.pod(namespace, name),
    }
}

/// Returns whether a client is outside the cluster, by addresses, routes and interfaces.
pub(super) fn is_outside(places: &HookedInterfaces, from: &From, settings: &Settings) -> bool {
    let From::Address(client, _) = from else {
        return false;
    };
    let is_pods = match *client {
        IpAddr::V4(v4) => any_contains(&settings.pods_v4, v4.into()),
        IpAddr::V6(v6) => any_contains(&settings.pods_v6, v6.into()),
    };
    match places.to(*client) {
        _ if is_pods => false,
        Ok((Routed::Here, _)) => false,
        Ok((_, Some(place))) => !places.leads_to_pods(place.index),
        _ => true,
    }
}

/// Returns the interface of a client's packets, and the hook that sees the client first: a socket's
/// if it has the node's address.
pub(super) fn enter(
    args: &ExplainArgs,
    places: &HookedInterfaces,
    client: IpAddr,
) -> Result<(Option<HookedInterface>, By)> {
    let (routed, mut place) = places.to(client)?;
    if let Some(name) = &args.interface {
        let index = nix::net::if_::if_nametoindex(name.as_str());
        let index = index.with_context(|| format!("--interface {name}"))?;
        place = Some(places.at(index, None)?);
    } else if routed == Routed::Here {
        return Ok((None, By::NodeSocket));
    }
    let by = match args.socket {
        true => By::PodSocket,
        false => By::Interface(place.as_ref().map_or(0, |place| place.index)),
    };
    Ok((place, by))
}

/// How many endpoints' routes are read at most; a service may have thousands.
const ENDPOINTS: usize = 32;

/// Where the packet passes the node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Passage {
    /// The interface that the client's packets come in by; None for a process of this node.
    pub(super) incoming: Option<HookedInterface>,
    pub(super) outgoing: Vec<Outgoing>,
    /// True if every endpoint is at an address of this node itself.
    pub(super) is_own: bool,
    /// The socket hooks that the client needs and that are not attached.
    pub(super) missing_socket_hooks: Vec<&'static str>,
}

/// How the packet leaves the node to an endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Outgoing {
    to: SocketAddr,
    next_hop: IpAddr,
    pub(super) interface: HookedInterface,
    pub(super) masqueraded: bool,
}

impl Passage {
    /// Reads the routes to the endpoints, or to the destination that portolan leaves alone.
    pub(super) fn read(
        places: &HookedInterfaces,
        pin_dir: &Path,
        asked: &Asked,
        explained: &Explained,
        incoming: Option<HookedInterface>,
    ) -> Result<Self> {
        let by_socket = !matches!(asked.by, By::Interface(_));
        let mut passage = Self {
            incoming,
            ..Self::default()
        };
        if by_socket {
            let wanted = wanted_hooks(asked);
            passage.missing_socket_hooks = datapath::missing_socket_hooks(pin_dir, wanted)?;
        }
        let untouched = [asked.to];
        let targets = match explained.counter {
            Counter::Untouched | Counter::SocketUntouched => &untouched[..],
            _ => &explained.to,
        };
        passage.is_own = !targets.is_empty();
        for to in targets.iter().take(ENDPOINTS) {
            let replaced = explained.masquerades && !explained.keeps.contains(to);
            let masqueraded = !by_socket && (replaced || to.ip() == asked.client);
            let mark = match masqueraded {
                true => Marks::DEFAULT.masquerade,
                false => 0,
            };
            let incoming = passage.incoming.as_ref().map(|place| Incoming {
                source: asked.client,
                interface: place.stack_index,
                mark,
            });
            let routed = linux::route(to.ip(), incoming)?;
            passage.is_own &= routed == Routed::Here;
            if let Routed::Leaves {
                interface,
                neighbour,
            } = routed
            {
                passage.outgoing.push(Outgoing {
                    to: *to,
                    next_hop: neighbour,
                    interface: places.at(interface, Some(neighbour))?,
                    masqueraded,
                });
            }
        }
        Ok(passage)
    }

    /// Returns the names of the interfaces that the packet passes, each once.
    pub(super) fn interfaces(&self) -> BTreeSet<&str> {
        let outgoing = self.outgoing.iter().map(|one| &one.interface);
        let all = self.incoming.iter().chain(outgoing);
        all.map(|place| &*place.link.name).collect()
    }

    /// Returns the source address that masqueraded packets get, towards the first endpoint outside
    /// this node; None if no packet is masqueraded.
    pub(super) fn masquerade_address(
        &self,
        reader: &Reader,
    ) -> Result<Option<IpAddr>, DatapathError> {
        match self.outgoing.first() {
            Some(one) if self.outgoing.iter().any(|one| one.masqueraded) => {
                reader.masquerade_address(one.interface.index, one.next_hop, one.to.ip())
            }
            _ => Ok(None),
        }
    }
}

/// Returns the socket hooks that a client of this IP family and protocol needs.
fn wanted_hooks(asked: &Asked) -> &'static [&'static str] {
    match (asked.client.is_ipv6(), asked.protocol) {
        (false, Protocol::TCP) => &["connect_v4", "peer_name_v4", "release"],
        (true, Protocol::TCP) => &["connect_v6", "peer_name_v6", "release"],
        (false, Protocol::UDP) => &["connect_v4", "send_v4", "receive_v4", "release"],
        (true, Protocol::UDP) => &["connect_v6", "send_v6", "receive_v6", "release"],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_without_a_namespace_is_the_only_one_with_its_name() {
        let among = |namespaces: &[&str]| {
            let namespaces = namespaces.iter().map(|one| (*one).to_owned());
            only("cart", namespaces.collect()).map_err(|error| error.to_string())
        };
        assert_eq!(among(&["shop"]), Ok("shop".to_owned()));
        let several = among(&["shop", "other"]).expect_err("two");
        assert!(several.contains("other/cart, shop/cart"), "{several}");
        let none = among(&[]).expect_err("none");
        assert!(none.contains("no Service \"cart\""), "{none}");
    }

    #[test]
    fn a_client_outside_the_cluster_prefers_external_addresses() {
        let mut kinds = [
            FrontendKind::ClusterIp,
            FrontendKind::NodePort,
            FrontendKind::ExternalIp,
            FrontendKind::LoadBalancer,
        ];
        let usual = kinds;
        kinds.sort_by_key(|kind| preference(*kind, false));
        assert_eq!(kinds, usual, "in the order of the maps: cluster IPs first");
        kinds.sort_by_key(|kind| preference(*kind, true));
        kinds.reverse();
        assert_eq!(kinds, usual);
    }
}
