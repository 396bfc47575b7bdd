// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the facts that `host` judges: interfaces, hooks, routes, neighbours, sysctls. Changes
//! nothing. Has the kernel ask next hops for their link-layer addresses; sends other packets only
//! with --probe.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr, TcpStream},
    path::Path,
    time::Duration,
};

use datapath::{
    DatapathError, ForeignVerdict,
    read::{Asked, By, Explained, Packet, Reader},
};
use linux::{Neighbour, Routed};
use proxy_common::{Protocol, maps::interface, masquerade::Marks};

use super::{
    host::{self, Endpoint, HookedInterface, Host},
    interfaces::{ClientRoute, HookedInterfaces},
    listeners, netfilter,
    path::PathFacts,
};
use crate::check::finding::Finding;

/// The timeout of a probe, which connects to an endpoint.
const PROBE: Duration = Duration::from_secs(1);
/// How many endpoints' routes are read at most; a service may have thousands.
const ENDPOINTS: usize = 32;

/// Runs the foreign programs that come before portolan's at ingress on the client's packet, and
/// returns their verdicts.
fn ask_foreign(place: &HookedInterface, asked: &Asked) -> io::Result<Vec<ForeignVerdict>> {
    let packet = Packet::first(asked).encode(place.link.mac);
    let before = place.hooks[0].before.iter();
    let asked = before.filter_map(|one| one.program);
    asked
        .map(|id| datapath::ask_foreign(id, place.index, &packet))
        .collect()
}

/// Reads the facts about the host. `probe`: connect to the endpoints and run foreign programs, too.
pub(super) fn read(
    reader: &Reader,
    places: &HookedInterfaces,
    pin_dir: &Path,
    asked: &Asked,
    explained: &Explained,
    (to_client, incoming): ClientRoute,
    probe: bool,
) -> anyhow::Result<Host> {
    let mut host = Host {
        v6: asked.client.is_ipv6(),
        by_socket: !matches!(asked.by, By::Interface(_)),
        incoming,
        to_client,
        ..Host::default()
    };
    if host.by_socket {
        let wanted = wanted_hooks(asked);
        host.missing_socket_hooks = datapath::missing_socket_hooks(pin_dir, wanted)?;
        if let Ok(Some(root)) = datapath::cgroup_root() {
            host.at_sockets = places.at_sockets(&root, wanted);
        }
    }
    if let Some(place) = &mut host.incoming {
        if probe && !host.by_socket {
            match ask_foreign(place, asked) {
                Ok(verdicts) => place.verdicts = verdicts,
                Err(error) => host
                    .unread
                    .push(Finding::unread("foreign tc programs", &error)),
            }
        }
        let word = reader.interface_word(place.index)?.unwrap_or(0);
        if is_sent_on(explained) && !host.by_socket {
            let flow = explained.flow.as_ref();
            let facts = PathFacts {
                permitted: interface::bits(word) & interface::REDIRECTS != 0,
                flags: reader.settings()?.flags,
                protocol: asked.protocol,
                recorded: flow.is_some_and(|flow| flow.past_stack_by.is_some()),
            };
            host.redirected = facts.is_free();
            host.path = facts.describe();
        }
        let stack = linux::link(place.stack_index)?.name;
        host.not_forwarding = not_forwarding(host.v6, &stack);
        host.rp_filter = if host.v6 { 0 } else { rp_filter(&stack) };
    }
    // If no service has the destination, the packet goes to the destination untranslated.
    let untouched = [asked.to];
    let concerns = |to: &SocketAddr| !explained.to.is_empty() || !to.ip().is_loopback();
    let targets = if explained.to.is_empty() {
        &untouched[..]
    } else {
        &explained.to
    };
    if is_sent_on(explained) {
        let targets = targets.iter().filter(|to| concerns(to)).take(ENDPOINTS);
        let targets: Vec<_> = targets.copied().collect();
        ask_next_hops(places, asked, explained, &mut host, &targets, probe)?;
        for to in targets {
            let endpoint = endpoint(reader, places, asked, explained, &host, to, probe)?;
            host.endpoints.push(endpoint);
        }
        netfilter::read(&mut host, asked, explained);
    }
    Ok(host)
}

/// Has the kernel ask for the next hops to the client and the endpoints, all at once.
fn ask_next_hops(
    places: &HookedInterfaces,
    asked: &Asked,
    explained: &Explained,
    host: &mut Host,
    targets: &[SocketAddr],
    probe: bool,
) -> anyhow::Result<()> {
    let mut routes = Vec::new();
    for to in targets {
        let incoming = host::incoming(host, asked.client, mark(asked, explained, host, *to));
        routes.push(linux::route(to.ip(), incoming)?);
    }
    let next_hops = host.to_client.iter().chain(&routes).filter_map(next_hop);
    if let Err(error) = places.ask(&next_hops.collect::<Vec<_>>(), probe) {
        host.unread.push(Finding::unread("neighbours", &error));
    }
    if let Some(client) = host.to_client.as_ref().and_then(next_hop) {
        host.client_silence = places.silence(client)?;
    }
    Ok(())
}

/// Returns the interface and next hop of a route; None if packets do not leave the node.
fn next_hop(routed: &Routed) -> Option<Neighbour> {
    match routed {
        Routed::Leaves {
            interface,
            neighbour,
            ..
        } => Some((*interface, *neighbour)),
        _ => None,
    }
}

/// Returns whether the packet to this endpoint is masqueraded, if it leaves the node.
fn is_masqueraded(asked: &Asked, explained: &Explained, host: &Host, to: SocketAddr) -> bool {
    !host.by_socket && (explained.masquerades || to.ip() == asked.client)
}

/// Returns the mark of the packet to this endpoint.
fn mark(asked: &Asked, explained: &Explained, host: &Host, to: SocketAddr) -> u32 {
    if is_masqueraded(asked, explained, host, to) {
        Marks::DEFAULT.masquerade
    } else {
        0
    }
}

/// Returns whether portolan lets the packet go on, translated or not.
fn is_sent_on(explained: &Explained) -> bool {
    use proxy_common::Counter;
    !explained.to.is_empty()
        || matches!(
            explained.counter,
            Counter::Untouched | Counter::SocketUntouched
        )
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

fn endpoint(
    reader: &Reader,
    places: &HookedInterfaces,
    asked: &Asked,
    explained: &Explained,
    host: &Host,
    to: SocketAddr,
    probe: bool,
) -> anyhow::Result<Endpoint> {
    let masqueraded = is_masqueraded(asked, explained, host, to);
    let incoming = host::incoming(host, asked.client, mark(asked, explained, host, to));
    let routed = linux::route(to.ip(), incoming)?;
    let mut found = Endpoint {
        address: to,
        asked_for: explained.to.is_empty(),
        routed: routed.clone(),
        outgoing: None,
        mtu: None,
        silent: None,
        // A packet to a process of this node does not leave the node, so it is not masqueraded.
        masqueraded: masqueraded && routed != Routed::Here,
        deaf: None,
    };
    if let Routed::Leaves {
        interface,
        neighbour,
        mtu,
    } = &found.routed
    {
        let outgoing = places.at(reader, *interface, Some(*neighbour))?;
        let stack = linux::link(outgoing.stack_index)?;
        found.mtu = Some(
            mtu.unwrap_or(u32::MAX)
                .min(outgoing.link.mtu)
                .min(stack.mtu),
        );
        found.silent = places.silence((*interface, *neighbour))?;
        found.outgoing = Some(outgoing);
    }
    if found.routed == Routed::Here && !listeners::receives(asked.protocol, to) {
        found.deaf = Some("no process of this node receives there".into());
    } else if probe && asked.protocol == Protocol::TCP && !explained.to.is_empty() {
        let answer = TcpStream::connect_timeout(&to, PROBE);
        let is_answer = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        if answer.as_ref().err().is_none_or(is_answer) {
            found.silent = None;
        }
        let failed = answer.err().map(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => "refused: nothing listens on its port".to_owned(),
            io::ErrorKind::TimedOut => format!("no answer in {} s", PROBE.as_secs()),
            _ => error.to_string(),
        });
        found.deaf = failed.map(|reason| format!("a connection from this node failed: {reason}"));
    }
    Ok(found)
}

/// Returns the kernel parameter that prevents forwarding of packets from this interface, if there
/// is one.
fn not_forwarding(v6: bool, interface: &str) -> Option<String> {
    let settings = if v6 {
        vec!["ipv6/conf/all/forwarding".to_owned()]
    } else {
        vec![
            "ipv4/ip_forward".to_owned(),
            format!("ipv4/conf/{interface}/forwarding"),
        ]
    };
    let is_off = |name: &String| number(name) == Some(0);
    let off = settings.into_iter().find(is_off)?;
    Some(format!("net.{}", off.replace('/', ".")))
}

/// Returns rp_filter of an interface. KUBE: the kernel takes the larger of the interface's value
/// and that of `all`.
fn rp_filter(interface: &str) -> u8 {
    let of = |name: &str| number(&format!("ipv4/conf/{name}/rp_filter")).unwrap_or(0);
    u8::try_from(of("all").max(of(interface))).unwrap_or(0)
}

/// Returns the value of a kernel parameter; `name` is its path below /proc/sys/net. None if it
/// cannot be read.
pub(super) fn number(name: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/sys/net/{name}")).ok()?;
    text.trim().parse().ok()
}

/// Returns the source address that masqueraded packets get, towards the first endpoint outside this
/// node; None if no endpoint is outside.
pub(super) fn masquerade_address(
    reader: &Reader,
    host: &Host,
) -> Result<Option<IpAddr>, DatapathError> {
    let first = host.endpoints.iter().find_map(|one| match one.routed {
        Routed::Leaves { neighbour, .. } => one.outgoing.as_ref().map(|out| (one, out, neighbour)),
        _ => None,
    });
    match first {
        Some((one, out, next_hop)) => {
            reader.masquerade_address(out.index, next_hop, one.address.ip())
        }
        None => Ok(None),
    }
}
