// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Explains a process that connects a socket. Makes the same decisions as `proxy-ebpf/src/socket`,
//! in the same order.

use std::net::{IpAddr, Ipv4Addr};

use proxy_common::{Counter, Port, Protocol, Settings, Verdict, decide, origin_of_socket};

use super::{Asked, By, Explained, maps::FamilyMaps, packet::matched};
use crate::{error::DatapathError, maps::family::Family, read::Reader};

pub(super) fn explain<A: Family>(
    reader: &mut Reader,
    maps: &FamilyMaps<A>,
    asked: &Asked,
    mut to: A,
) -> Result<Explained, DatapathError> {
    let settings = maps.settings;
    let is_node = asked.by == By::NodeSocket;
    let left = |because| Explained::unmatched(settings, Counter::SocketUntouched, Some(because));
    if asked.protocol == Protocol::SCTP {
        return Ok(left("socket hooks do not reach SCTP sockets"));
    }
    if reader.is_drained()? {
        return Ok(left(
            "these maps are drained: other maps, or another proxy, serve what is new",
        ));
    }
    if !is_node && !settings.has(Settings::POD_SOCKETS) {
        return Ok(left(
            "pods' sockets are left to the packet path (socketBalancing: host)",
        ));
    }
    if asked.to.ip().is_loopback() {
        if !is_node {
            return Ok(left("it is the pod's own loopback"));
        }
        // KUBE: node ports are served on all of 127.0.0.0/8 if on 127.0.0.1.
        if A::VERSION == 4 {
            to = A::of_ip(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap_or(to);
        }
    }
    let Some(record) = maps.find(to, Port::from_host(asked.to.port()), asked.protocol)? else {
        let counter = if is_node && maps.is_unallocated(to) {
            Counter::DroppedUnallocated
        } else {
            Counter::SocketUntouched
        };
        return Ok(Explained::unmatched(settings, counter, None));
    };
    let Some(origin) = origin_of_socket::<A>(&settings, record.flags, is_node) else {
        return Ok(left(
            "source ranges ask for the pod's address, which a connecting socket has not got yet",
        ));
    };
    let source = maps.internal_address();
    let verdict = decide(
        record.flags,
        origin,
        settings.policy::<A>(),
        record.internal.count() != 0,
        record.external.count() != 0,
        maps.allows(&record, source)?,
    );
    if !is_node && matches!(verdict, Verdict::DropSource | Verdict::DropNoLocalEndpoint) {
        return Ok(left(
            "what policy drops of a pod is dropped packet by packet",
        ));
    }
    let mut explained = matched(reader, maps, &record, verdict)?;
    explained.origin = Some(origin);
    if let Verdict::Forward { external, .. } = verdict {
        explained.counter = Counter::SocketTranslated;
        // The socket gets its source address from the route to the endpoint.
        explained.masquerades = false;
        if is_node {
            let set = record.flags.set_of_block(external);
            explained.affinity = maps.held(&record, source, set)?;
        }
        if let Some(held) = explained.affinity {
            explained.to = vec![held.endpoint];
        }
    }
    Ok(explained)
}
