// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! The endpoint's node puts the client's address back into packets that another node has
//! masqueraded (`proxy_common::carried`). Ingress takes the outer header off a flow's first packets
//! and enters the flow; then it replaces the source of packets without a header
//! (`translate::to_backend`). Egress replaces the destination of answers, and sends them to the
//! node that the client met, which may be another way than to the client.

use proxy_common::{
    Addr, Counter, FlowEntry, FlowKey, FlowKind, Protocol, ServiceId,
    flow::{Anew, ClientInterface, begins_anew, coarse},
    maps::{generation, interface},
    ports as port_bits,
};

use super::{
    carry::is_genuine,
    direct,
    step::{Next, Step},
    translate,
};
use crate::{
    count::Outcome,
    family::Family,
    globals,
    maps::{
        flow::{self, Claim},
        node, occupied, ports, room,
        workspace::{self, Clock, Scratch},
    },
    packet::{
        NatTarget, Packet, Shape, Skb,
        access::Tag,
        fib::{self, FibResult},
        headers::{ETHERNET_LEN, Ports},
        outer,
        parse::parse_plain,
    },
};

/// Whether the packet may have an outer header. Some drivers leave all but the packet's first bytes
/// outside the linear part of the buffer.
#[inline(always)]
pub fn has_header<F: Family>(skb: Skb, l3: u32) -> bool {
    let port = globals::header_port();
    if port.is_any() {
        return false;
    }
    let ports = match F::plain(skb, l3) {
        Some((_, ports)) => Some(ports),
        None => skb.load::<Ports>(l3 + F::HEADER_LEN),
    };
    ports.is_some_and(|ports| ports.dst == port)
}

by_family! {
    /// Takes the outer header off the packet, whose outer IP header lies at `l3`; returns the step
    /// as a word. What has no header, or one for another node, is untouched.
    fn take_off(skb, l3) = portolan_take_off_v4 portolan_take_off_v6 of take
}

/// Handles a packet that may have an outer header.
#[inline(always)]
pub fn ingress<F: Family>(skb: Skb, l3: u32) -> Outcome {
    match Step::from_word(take_off::<F>(skb, l3)).next() {
        Next::Restore => note::<F>(skb),
        Next::Done(outcome) => outcome,
        _ => Outcome::pass(Counter::Untouched),
    }
}

#[inline(always)]
fn take<F: Family>(skb: Skb, l3: u32) -> u32 {
    let untouched = Step::untouched().word();
    let refused = Step::from(Outcome::drop(Counter::DroppedHeader)).word();
    // No pod speaks for a node.
    if !node::client_interface(skb.interface()).is_shared() {
        return untouched;
    }
    let inner = l3 + outer::overhead::<F>();
    let Some((packet, _, scratch)) = flow::workspace::<F>(workspace::ATTACHED, inner) else {
        return untouched;
    };
    scratch.service = ServiceId::NONE;
    let Some(header) = F::outer(skb, l3) else {
        return untouched;
    };
    let (ends, port) = (&mut scratch.holder, header.port);
    ends.assign(&header.src, port, &header.dst, port, Protocol::UDP);
    let is_genuine = is_genuine::<F>(header.token, ends);
    // Others may use the port for what passes this node.
    if !is_here::<F>(skb, scratch) {
        return untouched;
    }
    if !is_genuine {
        return refused;
    }
    if F::plain(skb, inner).is_none() || parse_plain::<F>(skb, packet).is_none() {
        skb.pull_headers();
        if !F::parse(skb, packet) || packet.shape != Shape::Whole {
            return refused;
        }
    }
    let (ends, key) = (&scratch.holder, &mut packet.key);
    if key.dst != ends.dst {
        return refused;
    }
    scratch.key.assign_reversed(key);
    key.src.assign(&ends.src);
    key.set_ports(port, key.dst_port);
    Step::RESTORE.word()
}

/// Whether the destination in `scratch.holder` is this node or a pod of it. A node may also lie on
/// the way to another one.
#[inline(always)]
fn is_here<F: Family>(skb: Skb, scratch: &mut Scratch<F::Addr>) -> bool {
    let Scratch {
        holder: ends,
        route,
        pod,
        ..
    } = scratch;
    if node::local_pod::<F>(&ends.dst, pod) || node::is_node_address::<F>(&ends.dst) {
        return true;
    }
    match fib::look_up_ends::<F>(skb, ends, route) {
        FibResult::Found | FibResult::NoNeighbour => {
            !node::client_interface(route.ifindex).is_shared()
        }
        FibResult::NotForwarded => false,
    }
}

by_family! {
    /// Notes the flow of the packet in the workspace, whose key has the masquerade address and port
    /// in place of the client's; `scratch.key` is the key of its answers.
    note portolan_restore_v4 portolan_restore_v6 = note_flow -> Outcome
}

#[inline(always)]
fn note_flow<F: Family>(skb: Skb) -> Outcome {
    let Some((packet, clock, scratch)) = flow::filled_workspace::<F>() else {
        return Outcome::drop(Counter::DroppedHeader);
    };
    let is_noted = match is_known::<F>(skb, packet, clock, scratch) {
        Some(known) => known,
        // The programs that have taken over decide.
        None if node::is_in_succession(generation::DRAINED) => {
            return Outcome::pass(Counter::Untouched);
        }
        None => begin::<F>(skb, packet, clock, scratch),
    };
    let overhead = outer::overhead::<F>();
    if skb.remove_before_ip(overhead).is_err() {
        return Outcome::drop(Counter::DroppedRewrite);
    }
    (packet.l3, packet.l4) = (packet.l3 - overhead, packet.l4 - overhead);
    let (key, reply) = (&mut packet.key, &scratch.key);
    let target = NatTarget {
        address: key.src,
        port: key.src_port,
        other_port: key.dst_port,
    };
    key.src.assign(&reply.dst);
    key.set_ports(reply.dst_port, key.dst_port);
    // What cannot be noted goes on as if it had no header: the endpoint sees the other node.
    if !is_noted && !F::rewrite_source(skb, packet, &target) {
        return Outcome::drop(Counter::DroppedRewrite);
    }
    Outcome::pass(Counter::HeaderTakenOff)
}

/// Accounts the packet if its flow is known. `None` if it begins a flow; `false`: its tuple is
/// another flow's.
#[inline(always)]
fn is_known<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    clock: &mut Clock,
    scratch: &mut Scratch<F::Addr>,
) -> Option<bool> {
    let Scratch {
        found,
        other,
        key: reply,
        holder,
        ..
    } = &mut *scratch;
    let key = &packet.key;
    let found = flow::find::<F>(key, found)?;
    let entry = found.entry;
    if entry.kind != FlowKind::ORIGINAL || entry.is_masqueraded() {
        return Some(false);
    }
    let (protocol, signals) = (key.protocol, packet.signals);
    let repeats = || flow::repeats(skb, packet, entry);
    let anew = begins_anew(protocol, signals, entry.state, repeats, || true, || true);
    if entry.is_restored() && entry.is_replied_by(key, reply) && !matches!(anew, Anew::Ended) {
        flow::account::<F>(skb, packet, &found, clock.now(), holder, other);
        return Some(true);
    }
    // The other node has given the port to another client.
    holder.copy_from(reply);
    flow::remove_all::<F>(key, scratch);
    scratch.key.copy_from(&scratch.holder);
    None
}

/// Whether answers can be sent to the other node. A tunnel without a link layer behind which there
/// are several nodes, as Calico's IPIP, reads the next hop from the route that the stack has found,
/// which is the one to the client.
#[inline(always)]
fn leads_back<F: Family>(skb: Skb, key: &FlowKey<F::Addr>, scratch: &mut Scratch<F::Addr>) -> bool {
    let Scratch {
        holder: ends,
        route,
        ..
    } = scratch;
    ends.assign_reversed(key);
    match fib::look_up_ends::<F>(skb, ends, route) {
        FibResult::Found | FibResult::NoNeighbour => {
            node::interface(route.ifindex) & interface::NO_LINK_LAYER == 0
                || F::fib_destination(route) == ends.dst
        }
        FibResult::NotForwarded => false,
    }
}

#[inline(always)]
fn begin<F: Family>(
    skb: Skb,
    packet: &Packet<F::Addr>,
    clock: &mut Clock,
    scratch: &mut Scratch<F::Addr>,
) -> bool {
    const FLAGS: u8 =
        FlowEntry::<proxy_common::V4>::RESTORED | FlowEntry::<proxy_common::V4>::NEEDS_STACK;
    let key = &packet.key;
    // The stack drops packets from an address of its own that come in by an interface.
    if node::is_node_address::<F>(&scratch.key.dst) || !leads_back::<F>(skb, key, scratch) {
        return false;
    }
    // The client itself talks to the endpoint from this port.
    if key.protocol != Protocol::UDP && direct::is_recalled(&scratch.key) {
        return false;
    }
    // Egress looks for answers from this port, ingress for packets to it without a header.
    ports::announce(key.dst_port, port_bits::REPLY | port_bits::DIRECT);
    let entry = &mut scratch.entry;
    entry.begin(FlowKind::REPLY, ClientInterface::SHARED, clock.now());
    entry.flags = FLAGS;
    entry.address.assign(&key.dst);
    entry.port = key.dst_port;
    entry.client_port = scratch.key.dst_port;
    entry.masquerade.assign(&key.src);
    entry.masquerade_port = key.src_port;
    entry.service = ServiceId::NONE;
    scratch.insists = 0;
    flow::seal::<F>(&mut scratch.entry, &scratch.key);
    let mut claim = occupied::claim_reply::<F>(scratch);
    if matches!(claim, Claim::Full) {
        let reply = &raw const scratch.key;
        room::make::<F>(reply, scratch);
        claim = flow::claim::<F>(&scratch.key, &scratch.entry);
    }
    if !matches!(claim, Claim::Ours) {
        return false;
    }
    let Scratch {
        entry, key: reply, ..
    } = &mut *scratch;
    entry.kind = FlowKind::ORIGINAL;
    entry.masquerade.assign(&reply.dst);
    entry.masquerade_port = reply.dst_port;
    if key.protocol == Protocol::UDP {
        entry.reuse = coarse(entry.last_seen);
    } else {
        entry.sequence = packet.first_number(skb);
    }
    flow::seal::<F>(entry, key);
    if matches!(room::enter::<F>(key, scratch), Claim::Full) {
        flow::remove::<F>(&scratch.key);
        return false;
    }
    // If it is taken, another packet of the flow was faster.
    true
}

by_family! {
    /// Sends the answer, or the ICMP error about the flow, in the workspace to the node that the
    /// client met. The flow's reply entry is in `scratch.found`.
    back portolan_back_v4 portolan_back_v6 = send_back -> Step
}

#[inline(always)]
fn send_back<F: Family>(skb: Skb) -> Step {
    let Some((packet, _, scratch)) = flow::filled_workspace::<F>() else {
        return Outcome::drop(Counter::DroppedRewrite).into();
    };
    let Scratch {
        found,
        holder: ends,
        route,
        ..
    } = scratch;
    // SAFETY: the caller has found it.
    let reply = unsafe { found.assume_init_ref() };
    let target = NatTarget {
        address: reply.masquerade,
        port: reply.masquerade_port,
        other_port: packet.key.src_port,
    };
    ends.src.assign(&reply.address);
    ends.dst.assign(&target.address);
    let mtu = match fib::look_up_ends::<F>(skb, ends, route) {
        FibResult::Found => fib::mtu(route) as u32,
        FibResult::NoNeighbour => fib::mtu_of(skb, route.ifindex),
        FibResult::NotForwarded => return Outcome::drop(Counter::DroppedRewrite).into(),
    };
    if packet.shape != Shape::Icmp {
        if outer::segment_length(skb, packet) > mtu {
            return Step::too_large(mtu);
        }
        translate::remember_fragment::<F>(packet);
        if !F::rewrite_destination(skb, packet, &target) {
            return Outcome::drop(Counter::DroppedRewrite).into();
        }
    }
    if globals::redirects() {
        skb.set_tag(Tag::TRANSLATED);
    }
    // The kernel takes the link-layer header off, and drops what has none.
    if packet.l3 < ETHERNET_LEN && skb.insert_link_layer(ETHERNET_LEN).is_err() {
        return Outcome::drop(Counter::DroppedRewrite).into();
    }
    Outcome::sent(fib::redirect(route), Counter::ReplyTranslated).into()
}
