// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The bind hook: with `reserveNodePorts`, no process of the node may bind a served node port.

use proxy_common::{
    Addr, Counter, FrontendKey, Port, Protocol, Settings, ports as port_bits, settings,
};

use super::{Caller, PROCEED, SockAddr, fail_with, sock_addr::AddressForm};
use crate::{
    count,
    family::{Family, Ipv4, Ipv6},
    maps::{node, ports},
    packet::Ip,
};

const EADDRINUSE: i32 = 98;

/// Runs when a process binds a socket. The unspecified address of an IPv6 socket includes the
/// node's IPv4 addresses.
#[inline(never)]
pub fn bind<A: AddressForm>(ctx: SockAddr) -> i32 {
    let port = ctx.port();
    let Some(settings) = node::settings() else {
        return PROCEED;
    };
    if !settings.has(Settings::RESERVE_NODE_PORTS)
        || ports::bits(port) & port_bits::NODE_PORT == 0
        || ctx.mark() & settings::OWN_SOCKET != 0
        || !Caller::of(ctx, settings).is_node()
    {
        return PROCEED;
    }
    let (address, protocol) = (A::address(ctx), ctx.protocol());
    let served = if address == <A::Family as Ip>::Addr::UNSPECIFIED {
        is_node_port::<Ipv4>(port, protocol)
            || A::Family::VERSION == 6 && is_node_port::<Ipv6>(port, protocol)
    } else {
        node::serves_node_ports::<A::Family>(address) && is_node_port::<A::Family>(port, protocol)
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
