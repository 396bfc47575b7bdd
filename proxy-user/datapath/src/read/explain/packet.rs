// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Explains a packet that comes in on an interface, and a process that connects a socket. Makes the
//! same decisions as `proxy-ebpf/src/tc` and `proxy-ebpf/src/socket`, in the same order.

use std::net::{IpAddr, Ipv4Addr};

use linux::now;
use proxy_common::{
    Counter, EndpointSet, FlowKey, FlowKind, FrontendKind, Origin, Port, Protocol, Record,
    ServiceFlags, ServiceId, Settings, Verdict, decide, origin_of_packet, origin_of_socket,
};

use super::{Asked, By, Explained, MatchedFrontend, endpoints, maps::FamilyMaps};
use crate::{
    error::DatapathError,
    maps::family::Family,
    read::{
        Flow, Reader, failed,
        flows::{flow_of, masquerade},
        socket,
    },
};

/// Explains a packet that comes in on an interface.
pub(super) fn explain<A: Family>(
    reader: &mut Reader,
    maps: &FamilyMaps<A>,
    asked: &Asked,
    interface: u32,
    client: A,
    to: A,
) -> Result<Explained, DatapathError> {
    let (protocol, port) = (asked.protocol, Port::from_host(asked.to.port()));
    let unmatched = |counter, because| Explained::unmatched(maps.settings, counter, because);
    if asked.client_port != 0
        && let Some(known) = known(reader, maps, asked, interface, client, to)?
    {
        return Ok(known);
    }
    if let Some(because) = reader.leaves_new()? {
        return Ok(unmatched(Counter::Untouched, Some(because)));
    }
    if asked.to.ip().is_loopback() || asked.client.is_loopback() {
        let because =
            "no loopback address is served from the wire, and none reaches a service from a pod";
        return Ok(unmatched(Counter::Untouched, Some(because)));
    }
    let Some(record) = maps.find(to, port, protocol)? else {
        let counter = if maps.is_unallocated(to) {
            Counter::DroppedUnallocated
        } else {
            Counter::Untouched
        };
        return Ok(unmatched(counter, None));
    };
    let origin = origin_of_packet::<A>(
        &maps.settings,
        record.flags,
        || maps.has_pods(interface),
        || maps.is_in_pod_ranges(client),
        || maps.is_node_address(client),
    );
    let verdict = judge(maps, &record, origin, client)?;
    matched(reader, maps, &record, origin, verdict, Some(client))
}

fn judge<A: Family>(
    maps: &FamilyMaps<A>,
    record: &Record<A>,
    origin: Origin,
    client: A,
) -> Result<Verdict, DatapathError> {
    Ok(decide(
        record.flags,
        origin,
        maps.settings.policy::<A>(),
        record.internal.count() != 0,
        record.external.count() != 0,
        maps.allows(record, client)?,
    ))
}

/// Explains a packet or socket for whose destination there is a record: its service, the endpoints,
/// and what the verdict means for them. `client`: who may have affinity to an endpoint.
fn matched<A: Family>(
    reader: &mut Reader,
    maps: &FamilyMaps<A>,
    record: &Record<A>,
    origin: Origin,
    verdict: Verdict,
    client: Option<A>,
) -> Result<Explained, DatapathError> {
    let counter = match verdict {
        Verdict::Forward { .. } => Counter::ForwardedNew,
        Verdict::Reject if matches!(record.flags.kind(), FrontendKind::Unserved) => {
            Counter::RejectedUnserved
        }
        Verdict::Reject => Counter::RejectedNoEndpoint,
        Verdict::DropNoLocalEndpoint => Counter::DroppedNoLocalEndpoint,
        Verdict::DropSource => Counter::DroppedSource,
    };
    let mut explained = Explained::unmatched(maps.settings, counter, None);
    explained.origin = Some(origin);
    explained.frontend = Some(frontend(reader, maps, record)?);
    let (block, local_only, masquerades) = match verdict {
        Verdict::Forward {
            external,
            masquerade,
        } => {
            let block = if external {
                record.external
            } else {
                record.internal
            };
            let set = record.flags.set_of_block(external);
            (maps.block(block)?, set == EndpointSet::LOCAL, masquerade)
        }
        verdict => (Vec::new(), verdict == Verdict::DropNoLocalEndpoint, false),
    };
    (explained.local_only, explained.masquerades) = (local_only, masquerades);
    // The endpoints of another port say nothing about a port that is not served.
    if !matches!(record.flags.kind(), FrontendKind::Unserved) {
        let all = maps.backends_of(reader, record.service)?;
        explained.endpoints = endpoints(all, &block);
    }
    explained.to = block
        .iter()
        .map(|(backend, _)| socket(backend.address, backend.port))
        .collect();
    explained.to.sort_unstable();
    if masquerades && record.flags.has(ServiceFlags::KEEP_CLIENT) {
        let own = EndpointSet::HERE.union(EndpointSet::TAKES_HEADERS);
        let kept = block.iter().map(|(backend, _)| backend);
        let kept = kept.filter(|backend| backend.sets.intersects(own));
        explained.keeps = kept.map(|one| socket(one.address, one.port)).collect();
    }
    if let (Verdict::Forward { external, .. }, Some(client)) = (verdict, client) {
        let set = record.flags.set_of_block(external);
        explained.affinity = maps.held(record, client, set)?;
        if let Some(held) = explained.affinity {
            explained.to = vec![held.endpoint];
        }
    }
    Ok(explained)
}

fn frontend<A: Family>(
    reader: &mut Reader,
    maps: &FamilyMaps<A>,
    record: &Record<A>,
) -> Result<MatchedFrontend, DatapathError> {
    let (service, port_name) = reader.learn(record.service)?;
    let key = record.key;
    Ok(MatchedFrontend {
        service,
        port_name,
        kind: record.flags.kind(),
        address: (key.address != A::UNSPECIFIED).then(|| key.address.into()),
        port: key.port.host(),
        flags: record.flags,
        service_id: record.service.0,
        affinity_timeout: record.affinity_timeout,
        source_ranges: if record.flags.has(ServiceFlags::SOURCE_RANGES) {
            maps.source_ranges(record.service)?
        } else {
            Vec::new()
        },
    })
}

/// Explains a packet of a known connection; `None` if the flow table has no entry for it.
fn known<A: Family>(
    reader: &mut Reader,
    maps: &FamilyMaps<A>,
    asked: &Asked,
    interface: u32,
    client: A,
    to: A,
) -> Result<Option<Explained>, DatapathError> {
    let source = Port::from_host(asked.client_port);
    let destination = Port::from_host(asked.to.port());
    let plain = FlowKey::new(client, source, to, destination, asked.protocol);
    let find = |key: &FlowKey<A>| maps.flows.lookup(key).map_err(failed(A::FLOW_SLOTS));
    let own = plain.behind(maps.client_interface(interface));
    let (key, entry) = match find(&own)? {
        Some(entry) => (own, entry),
        // The entry is for a reply, or for a client on an interface that many clients share.
        None => match find(&plain)? {
            Some(entry) if entry.kind != FlowKind::ORIGINAL || plain == own => (plain, entry),
            _ => return Ok(None),
        },
    };
    let is_of_service = entry.kind == FlowKind::ORIGINAL && entry.service != ServiceId::NONE;
    if is_of_service && asked.protocol == Protocol::UDP && reader.is_abandoned()? {
        // The datagram ends the flow.
        return Ok(None);
    }
    let counter = match entry.kind {
        FlowKind::ORIGINAL => Counter::ForwardedHit,
        FlowKind::REPLY => Counter::ReplyPassed,
        FlowKind::MASQUERADED_REPLY => Counter::ReplyUnmasqueraded,
        _ => Counter::UntouchedFlow,
    };
    let mut explained = Explained::unmatched(maps.settings, counter, None);
    explained.to = vec![socket(entry.address, entry.port)];
    explained.masquerades = entry.is_masqueraded();
    if entry.service != ServiceId::NONE {
        reader.learn(entry.service)?;
    }
    if entry.kind == FlowKind::ORIGINAL {
        let mut reply_key = key;
        entry.reply_key_into(&key, &mut reply_key);
        let reply = find(&reply_key)?;
        let service = reader.service_port(entry.service.0);
        explained.flow = Some(Flow {
            masquerade: reply.as_ref().and_then(masquerade),
            ..flow_of(&service, &key, &entry, now())
        });
        let record = maps.find(to, destination, asked.protocol)?;
        if let Some(record) = record.filter(|record| record.service == entry.service) {
            explained.frontend = Some(frontend(reader, maps, &record)?);
        }
    }
    Ok(Some(explained))
}

/// Explains a process that connects a socket.
pub(super) fn explain_socket<A: Family>(
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
    if let Some(because) = reader.leaves_new()? {
        return Ok(left(because));
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
    let verdict = judge(maps, &record, origin, source)?;
    if !is_node && matches!(verdict, Verdict::DropSource | Verdict::DropNoLocalEndpoint) {
        return Ok(left(
            "what policy drops of a pod is dropped packet by packet",
        ));
    }
    let client = is_node.then_some(source);
    let mut explained = matched(reader, maps, &record, origin, verdict, client)?;
    if let Verdict::Forward { .. } = verdict {
        explained.counter = Counter::SocketTranslated;
        // The socket gets its source address from the route to the endpoint.
        explained.masquerades = false;
    }
    Ok(explained)
}
