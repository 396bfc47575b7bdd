// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! In front of everything: a plain packet's ports and destination, in registers, against the port bits. Most packets pass
//! here without a look-up in a hash. The decision is `proxy_common::filter`'s.

use proxy_common::{
    FilterVerdict, Protocol, Settings,
    filter::{classify_ingress, may_concern_egress},
    flow::{Signals, may_begin},
};

use crate::{
    family::Family,
    globals,
    maps::{node, ports},
    packet::{Skb, headers::Ports, parse},
};

/// Classifies a packet at ingress.
#[inline(always)]
pub fn at_ingress<F: Family>(skb: Skb, l3: u32) -> FilterVerdict {
    let Some(settings) = node::settings() else {
        return FilterVerdict::Pass;
    };
    match F::plain(skb, l3) {
        None => FilterVerdict::NotPlain,
        Some((dst, ports)) => {
            of_tuple::<F>(settings, dst, ports, || parse::plain_start::<F>(skb, l3))
        }
    }
}

/// Classifies a packet at ingress by its destination and ports. `start` reads protocol and signals.
#[inline(always)]
pub fn of_tuple<F: Family>(
    settings: &Settings,
    dst: F::Addr,
    ports: Ports,
    start: impl FnOnce() -> Option<(Protocol, Signals)>,
) -> FilterVerdict {
    classify_ingress(
        || F::services(settings).contains(dst),
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

/// Classifies a packet at egress; one with a mark of ours is parsed in full.
#[inline(always)]
pub fn at_egress<F: Family>(skb: Skb, l3: u32) -> FilterVerdict {
    if skb.mark() & (globals::masquerade_mark() | globals::drop_mark()) != 0 {
        return FilterVerdict::NotPlain;
    }
    match F::plain(skb, l3) {
        None => FilterVerdict::NotPlain,
        Some((_, ports)) if is_known_at_egress(ports) => FilterVerdict::KnownPort,
        Some(_) => FilterVerdict::Pass,
    }
}

/// Whether the maps may know a packet that leaves without a mark.
#[inline(always)]
pub fn is_known_at_egress(ports: Ports) -> bool {
    may_concern_egress(ports::bits(ports.src))
}
