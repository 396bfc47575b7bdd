// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Resolves the arguments to addresses and interfaces: a service's address by the pinned maps, the
//! client's interface by the node's routes.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context, Result, bail};
use datapath::read::{By, Reader, ServiceAddress};
use linux::Routed;
use proxy_common::{FrontendKind, Protocol, Settings, maps::interface, settings::any_contains};

use super::{
    ExplainArgs,
    interfaces::{ClientRoute, HookedInterfaces},
    names::Names,
    question::{From, To},
};

/// Returns the address and port of the destination. `is_outside`: whether the client is outside the
/// cluster.
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
    let (namespace, name, port) = match to {
        To::Address(address) => return Ok(*address),
        To::Service {
            namespace,
            name,
            port,
        } => (namespace, name, port),
    };
    let namespace = &match namespace {
        Some(namespace) => namespace.clone(),
        None => only(name, reader.namespaces_of(name)?)?,
    };
    let all = reader.addresses_of(namespace, name)?;
    if all.is_empty() {
        bail!(
            "the maps have no address of Service {namespace}/{name}: see `portolan services`; ExternalName and headless services have none"
        );
    }
    let is_port = |one: &&ServiceAddress| match port {
        None => true,
        Some(port) => one.port.to_string() == *port || one.port_name == *port,
    };
    let mut fitting: Vec<_> = all
        .iter()
        .filter(|one| one.protocol == protocol && is_possible(one.address))
        .filter(is_port)
        .collect();
    fitting.sort_by_key(|one| preference(one.kind, is_outside));
    if let Some(one) = fitting.first() {
        return Ok(SocketAddr::new(one.address, one.port));
    }
    // A port that the Service does not have is allowed: its cluster IP answers for it.
    let number = port.as_ref().and_then(|port| port.parse().ok());
    let cluster_ip = all
        .iter()
        .find(|one| one.kind == FrontendKind::ClusterIp && is_possible(one.address));
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
    let all: Vec<_> = namespaces
        .iter()
        .map(|one| format!("{one}/{name}"))
        .collect();
    match (namespaces.pop_first(), all.as_slice()) {
        (Some(one), [_]) => Ok(one),
        (None, _) => bail!(
            "the maps have no Service {name:?} in any namespace: see `portolan services`; ExternalName and headless services have none"
        ),
        _ => bail!(
            "--to {name}: there are {}; write one of them",
            all.join(", ")
        ),
    }
}

/// Ranks the kinds of a service's addresses by how likely a client uses them; the lowest rank comes
/// first. From outside the cluster, a cluster IP is not reachable unless somebody has made a route
/// to it.
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

/// Returns whether a client is outside the cluster: neither a pod nor a process of this node,
/// judged by addresses, routes and interfaces.
pub(super) fn is_outside(
    reader: &Reader,
    places: &HookedInterfaces,
    from: &From,
    settings: &Settings,
) -> bool {
    let From::Address(client, _) = from else {
        return false;
    };
    let is_pods = match *client {
        IpAddr::V4(v4) => any_contains(&settings.pods_v4, v4.into()),
        IpAddr::V6(v6) => any_contains(&settings.pods_v6, v6.into()),
    };
    let by_pod = |index| {
        let word = reader.interface_word(index).ok().flatten();
        word.is_some_and(|word| interface::bits(word) & interface::PODS != 0)
    };
    match places.to(reader, *client) {
        _ if is_pods => false,
        Ok((Some(Routed::Here), _)) => false,
        Ok((_, Some(place))) => !by_pod(place.index),
        _ => true,
    }
}

/// Returns the client's address in the IP family of the destination; for a process of this node,
/// the node's address.
pub(super) fn client(
    args: &ExplainArgs,
    from: &From,
    clients: &[IpAddr],
    settings: &Settings,
    to: SocketAddr,
) -> Result<IpAddr> {
    let mut fitting = clients
        .iter()
        .filter(|client| client.is_ipv4() == to.is_ipv4());
    match (from, fitting.next()) {
        (From::Node, _) if to.is_ipv4() => Ok(settings.internal_v4.into()),
        (From::Node, _) => Ok(settings.internal_v6.into()),
        (_, Some(client)) => Ok(*client),
        (_, None) => bail!(
            "--from {} and --to {to} are of different IP families",
            args.from
        ),
    }
}

/// Returns the node's route to the client, the interface of the client's packets, and the hook that
/// sees the client first.
pub(super) fn enter(
    args: &ExplainArgs,
    reader: &Reader,
    places: &HookedInterfaces,
    from: &From,
    client: IpAddr,
) -> Result<(ClientRoute, By)> {
    if *from == From::Node {
        return Ok(((None, None), By::NodeSocket));
    }
    let (routed, mut place) = places.to(reader, client)?;
    if let Some(name) = &args.interface {
        let index = nix::net::if_::if_nametoindex(name.as_str())
            .with_context(|| format!("--interface {name}"))?;
        place = Some(places.at(reader, index, None)?);
    } else if routed == Some(Routed::Here) {
        return Ok(((None, None), By::NodeSocket));
    }
    let by = if args.socket {
        By::PodSocket
    } else {
        By::Interface(place.as_ref().map_or(0, |place| place.index))
    };
    Ok(((routed, place), by))
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
