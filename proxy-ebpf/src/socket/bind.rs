// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! bind: where the operator wants it, no process of the node takes a served node port.

use proxy_common::{Addr, Counter, FrontendKey, Port, Protocol, Settings, ports, settings};

use super::{Caller, PROCEED, SockAddr, context::Place, fail_with};
use crate::{
    count,
    family::{Family, Ipv4, Ipv6},
    filter, service,
};

const EADDRINUSE: i32 = 98;

/// A socket is to be bound. `everywhere` of an IPv6 socket means the node's IPv4 addresses, too.
#[inline(never)]
pub fn bind<P: Place>(ctx: SockAddr) -> i32 {
    let port = ctx.port();
    let Some(settings) = service::settings() else {
        return PROCEED;
    };
    if !settings.has(Settings::RESERVE_NODE_PORTS)
        || filter::bits(port) & ports::NODE_PORT == 0
        || ctx.mark() & settings::OWN_SOCKET != 0
        || !Caller::of(ctx, settings).is_node()
    {
        return PROCEED;
    }
    let (address, protocol) = (P::address(ctx), ctx.protocol());
    let served = if address == <P::Family as Family>::Addr::UNSPECIFIED {
        is_node_port::<Ipv4>(port, protocol)
            || P::Family::VERSION == 6 && is_node_port::<Ipv6>(port, protocol)
    } else {
        service::serves_node_ports::<P::Family>(address)
            && is_node_port::<P::Family>(port, protocol)
    };
    if !served {
        return PROCEED;
    }
    count::add(Counter::BindRefused);
    fail_with(EADDRINUSE)
}

#[inline(always)]
fn is_node_port<F: Family>(port: Port, protocol: Protocol) -> bool {
    F::frontends()
        .get_ptr(&FrontendKey::node_port(port, protocol))
        .is_some()
}
