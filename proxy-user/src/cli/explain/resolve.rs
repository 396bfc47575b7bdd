// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the arguments to addresses: a service's by the pinned maps, the client's interface by the node's routes.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, bail};
use proxy_common::{FrontendKind, Protocol, Settings};

use super::{
    ExplainArgs,
    host::Place,
    places::Places,
    question::{From, To},
};
use crate::datapath::{
    read::{By, Reader, ServiceAddress},
    sys::Routed,
};

/// The address and port that are asked for.
pub(super) fn destination(
    reader: &Reader,
    to: &To,
    protocol: Protocol,
    is_possible: impl Fn(IpAddr) -> bool,
) -> Result<SocketAddr> {
    let (namespace, name, port) = match to {
        To::Address(address) => return Ok(*address),
        To::Service {
            namespace,
            name,
            port,
        } => (namespace, name, port),
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
    let mut fitting = all
        .iter()
        .filter(|one| one.protocol == protocol)
        .filter(is_port);
    if let Some(one) = fitting.find(|one| is_possible(one.address)) {
        return Ok(SocketAddr::new(one.address, one.port));
    }
    // A port that the Service has not is a question, too: its cluster IP answers it.
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

/// The node's own address, as a process of it is known by.
pub(super) fn own_address(settings: &Settings, to: IpAddr) -> IpAddr {
    if to.is_ipv4() {
        settings.internal_v4.into()
    } else {
        settings.internal_v6.into()
    }
}

/// Where the programs meet the client: the node's way back to it, its interface, and the hook.
pub(super) fn enter(
    args: &ExplainArgs,
    reader: &Reader,
    places: &Places,
    from: &From,
    client: IpAddr,
) -> Result<((Option<Routed>, Option<Place>), By)> {
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
