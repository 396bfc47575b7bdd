// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Netkit pairs, which join pods to a node.

use anyhow::{Context, Result, bail};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rtnetlink::{LinkNetkit, packet_route::link::NetkitMode};

/// Makes a netkit pair in the calling thread's network namespace. iproute2 can do this only since
/// 6.7.
pub(super) fn netkit(interface: &str, peer: &str, mode: &str) -> Result<()> {
    let mode = match mode {
        "L2" => NetkitMode::L2,
        _ => NetkitMode::L3,
    };
    let link = LinkNetkit::new(interface, peer, mode).build();
    let payload = NetlinkPayload::from(RouteNetlinkMessage::NewLink(link));
    let mut request = NetlinkMessage::new(NetlinkHeader::default(), payload);
    request.header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&bytes, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer)?;
    match answer.payload {
        NetlinkPayload::Error(error) if error.code.is_none() => Ok(()),
        NetlinkPayload::Error(error) => Err(error.to_io()).context("make a netkit pair"),
        other => bail!("the kernel answers {other:?}"),
    }
}
