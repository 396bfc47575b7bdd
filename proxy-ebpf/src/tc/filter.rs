// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The first filter: checks a packet's protocol, destination and ports, in registers, against the
//! ranges of service addresses and the bits of ports. Most packets pass here without a hash
//! look-up. The decisions are in `proxy_common::filter`.

use proxy_common::{
    FilterVerdict, Protocol, Settings,
    filter::{
        ServiceRanges, Work, classify_ingress, is_backends, may_be_masqueraded, may_be_shared,
        may_concern_egress,
    },
    flow::{Signals, may_begin},
    ports as port_bits,
};

use crate::{
    family::Family,
    globals,
    maps::{node, ports},
    packet::{Packet, Skb, headers::Ports, parse},
};

/// Classifies a packet at ingress by its first bytes.
#[inline(always)]
pub fn at_ingress<F: Family>(skb: Skb, l3: u32) -> FilterVerdict {
    let Some(settings) = node::settings() else {
        return FilterVerdict::Pass;
    };
    match F::plain(skb, l3) {
        Some((dst, ports)) => {
            of_tuple::<F>(settings, dst, ports, || parse::plain_start::<F>(skb, l3))
        }
        None => of_other::<F>(skb, l3),
    }
}

/// Classifies a packet at ingress that is not plain or has no ports.
// VERIFIER: a subprogram. Inlined, its paths would multiply those of the programs behind it.
#[inline(never)]
fn of_other<F: Family>(skb: Skb, l3: u32) -> FilterVerdict {
    match F::work(skb, l3) {
        Some((Work::None, _)) => FilterVerdict::Pass,
        Some((Work::Other, dst)) => of_address::<F>(dst, false),
        Some((Work::Echo, dst)) => of_address::<F>(dst, true),
        Some((Work::Ports | Work::Parse, _)) | None => FilterVerdict::NotPlain,
    }
}

/// Classifies a packet at ingress by its destination and ports. Where these do not decide, as for a
/// packet to a backend's port, calls `start`, which reads the protocol and the signals (TCP flags
/// or SCTP chunk type).
#[inline(always)]
pub fn of_tuple<F: Family>(
    settings: &Settings,
    dst: F::Addr,
    ports: Ports,
    start: impl FnOnce() -> Option<(Protocol, Signals)>,
) -> FilterVerdict {
    classify_ingress(
        &ServiceRanges {
            cluster_ips: F::services(settings),
            external_ips: F::external(settings),
        },
        dst,
        ports.src,
        ports.dst,
        globals::redirects(),
        ports::bits,
        |datagrams| {
            start().is_some_and(|(protocol, signals)| {
                (protocol != Protocol::UDP || datagrams) && may_begin(protocol, signals)
            })
        },
    )
}

/// Classifies a packet at ingress that has been parsed in full.
// VERIFIER: a subprogram, because its copy of the destination would fill the caller's stack.
#[inline(never)]
pub fn of_parsed<F: Family>(packet: &Packet<F::Addr>) -> FilterVerdict {
    match node::settings() {
        Some(settings) => {
            let start = || Some((packet.key.protocol, packet.signals));
            of_tuple::<F>(settings, packet.key.dst, packet.ports(), start)
        }
        None => FilterVerdict::Pass,
    }
}

/// Classifies an ICMP echo request, or a packet of a protocol that no service has, by its
/// destination.
#[inline(always)]
fn of_address<F: Family>(dst: F::Addr, is_echo: bool) -> FilterVerdict {
    let Some(settings) = node::settings() else {
        return FilterVerdict::Pass;
    };
    let is_answered = is_echo && settings.has(Settings::ANSWER_PING);
    if F::services(settings).contains(dst) {
        if is_answered {
            FilterVerdict::Echo
        } else {
            FilterVerdict::OtherProtocol
        }
    } else if is_answered && F::external(settings).contains(dst) {
        FilterVerdict::Echo
    } else {
        FilterVerdict::Pass
    }
}

/// Classifies a packet at egress by its first bytes.
#[inline(always)]
pub fn at_egress<F: Family>(skb: Skb, l3: u32) -> FilterVerdict {
    match F::plain(skb, l3) {
        Some((_, ports)) => {
            let by_rules = |shared| leaves_by_rules::<F>(skb, l3, shared as u32);
            if is_known_at_egress::<F>(skb, ports, by_rules, || skb.read(l3 + F::SOURCE)) {
                FilterVerdict::KnownPort
            } else {
                FilterVerdict::Pass
            }
        }
        None => match F::work(skb, l3) {
            Some((Work::None | Work::Other | Work::Echo, _)) => FilterVerdict::Pass,
            Some((Work::Ports | Work::Parse, _)) | None => FilterVerdict::NotPlain,
        },
    }
}

/// Whether the node's rules have masqueraded a forwarded TCP segment, see [`is_by_rules`].
// VERIFIER: a subprogram, for its copy of the address.
#[inline(never)]
fn leaves_by_rules<F: Family>(skb: Skb, l3: u32, shared: u32) -> bool {
    let Some((protocol, signals)) = parse::plain_start::<F>(skb, l3) else {
        return false;
    };
    is_by_rules::<F>(protocol, signals, shared != 0, || {
        skb.read(l3 + F::SOURCE)
            .is_some_and(|src| node::is_node_address::<F>(&src))
    })
}

/// Whether the node's rules, as a CNI's, may have masqueraded a forwarded segment so that it
/// concerns a masqueraded flow: it has the ports of one (`shared`), or begins a connection whose
/// ports a later flow must avoid.
#[inline(always)]
pub fn is_by_rules<F: Family>(
    protocol: Protocol,
    signals: Signals,
    shared: bool,
    is_from_node: impl FnOnce() -> bool,
) -> bool {
    protocol == Protocol::TCP && (shared || signals.begins()) && is_from_node()
}

/// Whether the maps may have an entry for a packet that leaves, or the policy may drop the packet.
/// `by_rules` calls [`is_by_rules`] for a forwarded packet to a backend's port, `src` reads the
/// packet's source address.
#[inline(always)]
pub fn is_known_at_egress<F: Family>(
    skb: Skb,
    ports: Ports,
    by_rules: impl FnOnce(bool) -> bool,
    src: impl FnOnce() -> Option<F::Addr>,
) -> bool {
    let mark = skb.mark();
    let (from, to) = (ports::bits(ports.src), ports::bits(ports.dst));
    let is_marked = mark & globals::masquerade_marks() != 0;
    may_concern_egress(from)
        || may_be_masqueraded(to) && (skb.is_own() || is_marked)
        || is_backends(to) && !skb.is_own() && by_rules(may_be_shared(from, to))
        || mark & globals::DROP_MARK.load() != 0
        || may_come_from_frontend::<F>(from, src)
}

/// Whether a packet's source may be a frontend's address and port: a node port, or another frontend
/// at an address of the node. `bits` are its source port's bits in the `ports` map. Needs no hash
/// look-up.
#[inline(always)]
pub fn may_come_from_frontend<F: Family>(bits: u64, src: impl FnOnce() -> Option<F::Addr>) -> bool {
    bits & port_bits::NODE_PORT != 0
        || bits & port_bits::FRONTEND != 0
            && src()
                .zip(node::settings())
                .is_some_and(|(src, settings)| F::external(settings).contains(src))
}
