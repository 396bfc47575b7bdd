// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! `forwarding: redirect`: a packet that ingress forwards leaves at once, past the node's stack and its netfilter rules: into
//! a pod of this node whose link the agent knows, else by the kernel's routes and neighbours.
//!
//! A packet of a known flow gets both of its new ends first, so nothing looks it up again: [`send`]. Any other is translated at
//! egress of the interface that it leaves by, as ever: [`forward`].
//!
//! The stack handles the rest: packets whose hop limit ends, packets that are too large, packets for the node itself,
//! packets that are not for this node, fragments, IPv4 options and IPv6 extension headers, addresses that the stack drops or
//! that are the node's own, and interfaces without a link layer or without the agent's permission.

use aya_ebpf::bindings::{__sk_buff, TC_ACT_SHOT, bpf_fib_lookup};
use proxy_common::{Addr, Counter, FlowEntry, FlowKind, LocalPod, maps::interface};

use super::{is_receiver, translate};
use crate::{
    count::{Outcome, PASS},
    family::Family,
    globals,
    maps::{
        flow, node, ring,
        traffic::{self, Direction},
        workspace::{EntryBuffer, Scratch, Workspace},
    },
    packet::{
        Ipv4, Ipv6, Shape, Skb,
        access::Addressee,
        fib::{self, FibResult},
        headers::{ETHERNET_LEN, ETHERTYPE},
    },
};

/// Redirects a packet that ingress forwards, where the setting asks for it.
// VERIFIER: does not get the IP header's offset. The programs would be verified once for every value that it can have.
#[inline(always)]
pub fn forward<F: Family>(skb: Skb, outcome: Outcome) -> Outcome {
    if globals::redirects() && outcome.is_forwarded() {
        outcome.with_action(leave::<F>(skb))
    } else {
        outcome
    }
}

/// The action that makes the packet leave, or leaves it to the stack.
#[inline(never)]
fn leave<F: Family>(skb: Skb) -> i32 {
    let l3 = ETHERNET_LEN;
    let Some(interface) = incoming::<F>(skb) else {
        return PASS;
    };
    // SAFETY: numbers and arrays of them.
    let mut route = unsafe { fib::zeroed::<bpf_fib_lookup>() };
    route.ifindex = interface;
    let Some(counted_down) = F::fib_parameters(skb, l3, &mut route) else {
        return PASS;
    };
    if !is_routed(skb, &mut route) {
        return PASS;
    }
    if F::store_hop(skb, l3, counted_down).is_err() {
        return TC_ACT_SHOT;
    }
    // By the next hop's IP address: the kernel resolves it where it does not know it, and again when it is old.
    fib::redirect(&route)
}

/// The interface that the packet comes in by for the stack, if it may leave past the stack.
#[inline(always)]
pub fn incoming<F: Family>(skb: Skb) -> Option<u32> {
    let known = node::interface_word(skb.interface());
    let bits = interface::bits(known);
    // A VLAN tag, in or out of band, would go along to an interface where it means something else.
    if bits & interface::REDIRECTS == 0
        || skb.read(ETHERTYPE) != Some(F::ETHERTYPE)
        || skb.is_tagged()
        || !is_receiver(skb, || bits & interface::VETH_PORT != 0)
    {
        return None;
    }
    // To the stack, a packet that comes in by a bridge's port comes in by the bridge.
    Some(match interface::bridge(known) {
        0 => skb.interface(),
        bridge => bridge,
    })
}

/// Completes a look-up; whether the packet can leave that way.
#[inline(always)]
fn is_routed(skb: Skb, route: &mut bpf_fib_lookup) -> bool {
    // An interface without a link layer needs the route itself, which only the stack has.
    match fib::look_up(skb, route) {
        FibResult::Found => fib::has_address(route),
        FibResult::NoNeighbour => node::interface(route.ifindex) & interface::NO_LINK_LAYER == 0,
        FibResult::NotForwarded => false,
    }
}

/// Sends the packet in the workspace on, if the outcome asks for it: past the stack with both of its new ends, else as ever.
#[inline(always)]
pub fn send<F: Family>(skb: Skb, outcome: Outcome) -> Outcome {
    if !globals::redirects() {
        return outcome;
    }
    let Some(first) = outcome.is_to_send() else {
        return outcome;
    };
    let (first, counter) = (first as u32, outcome.counter());
    let sent = Outcome::from_word(if F::VERSION == 4 {
        portolan_send_v4(skb.raw(), first, counter)
    } else {
        portolan_send_v6(skb.raw(), first, counter)
    });
    let sent = if sent.is_to_send().is_none() {
        sent
    } else if F::VERSION == 4 {
        Outcome::from_word(portolan_translate_v4(skb.raw(), first, counter))
    } else {
        Outcome::from_word(portolan_translate_v6(skb.raw(), first, counter))
    };
    if F::VERSION == 4 {
        portolan_end_v4();
    } else {
        portolan_end_v6();
    }
    sent
}

// VERIFIER: exported, so that each is verified once and not on every path that leads to it; called by the entry points, below
// which the stack is long enough.

/// Sends the packet past the stack by the entry that was found, or by that of a flow which begins: the outcome as a word,
/// [`Outcome::send`] if that cannot be.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn portolan_send_v4(skb: *mut __sk_buff, first: u32, counter: u32) -> u32 {
    send_past::<Ipv4>(Skb::of(skb), first, counter)
}

/// See [`portolan_send_v4`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn portolan_send_v6(skb: *mut __sk_buff, first: u32, counter: u32) -> u32 {
    send_past::<Ipv6>(Skb::of(skb), first, counter)
}

/// Translates the packet as far as ingress does where egress does the rest.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn portolan_translate_v4(skb: *mut __sk_buff, first: u32, counter: u32) -> u32 {
    translate_by::<Ipv4>(Skb::of(skb), first, counter)
}

/// See [`portolan_translate_v4`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn portolan_translate_v6(skb: *mut __sk_buff, first: u32, counter: u32) -> u32 {
    translate_by::<Ipv6>(Skb::of(skb), first, counter)
}

/// Gives the packet's flow another slot in the rings, if it needs one. Always 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn portolan_end_v4() -> u32 {
    end::<Ipv4>()
}

/// See [`portolan_end_v4`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn portolan_end_v6() -> u32 {
    end::<Ipv6>()
}

#[inline(always)]
fn end<F: Family>() -> u32 {
    if let Some(Workspace { scratch, .. }) = flow::filled_workspace::<F>()
        && let Some(ring) = scratch.refiled
    {
        ring::refile::<F>(ring, scratch);
    }
    0
}

/// The entry that says where the packet goes: of the flow that begins, or that was found.
#[inline(always)]
fn entry_of<'a, A: Addr>(
    found: &'a EntryBuffer<A>,
    begun: &'a FlowEntry<A>,
    first: u32,
) -> &'a FlowEntry<A> {
    if first != 0 {
        begun
    } else {
        // SAFETY: the caller has found it.
        unsafe { found.assume_init_ref() }
    }
}

#[inline(always)]
fn translate_by<F: Family>(skb: Skb, first: u32, counter: u32) -> u32 {
    let Some(Workspace {
        packet, scratch, ..
    }) = flow::filled_workspace::<F>()
    else {
        return Outcome::drop(Counter::DroppedRewrite).word();
    };
    let entry = entry_of(&scratch.found, &scratch.entry, first);
    let outcome = match entry.kind {
        FlowKind::REPLY => translate::send_on(entry, Counter::ReplyPassed),
        FlowKind::MASQUERADED_REPLY => translate::to_client::<F>(skb, packet, entry),
        _ => translate::to_backend::<F>(skb, packet, entry, Counter::ForwardedHit),
    };
    if outcome.is_of(Counter::ForwardedHit) {
        return outcome.counted_as(counter).word();
    }
    outcome.word()
}

#[inline(always)]
fn send_past<F: Family>(skb: Skb, first: u32, counter: u32) -> u32 {
    let left = Outcome::send(first != 0, Counter::Untouched).word();
    let Some(Workspace {
        packet, scratch, ..
    }) = flow::filled_workspace::<F>()
    else {
        return left;
    };
    let Scratch {
        found,
        entry: begun,
        holder: ends,
        route,
        pod,
        ..
    } = scratch;
    let entry = entry_of(found, begun, first);
    let is_plain = packet.l3 == ETHERNET_LEN && packet.l4 == ETHERNET_LEN + F::HEADER_LEN;
    if !is_plain || packet.shape != Shape::Whole || entry.needs_stack() {
        return left;
    }
    let Some(interface) = incoming::<F>(skb) else {
        return left;
    };
    if !entry.both_ends_into(&packet.key, ends) {
        return left;
    }
    fib::clear(route);
    let Some(counted_down) = F::fib_parameters(skb, ETHERNET_LEN, route) else {
        return left;
    };
    let is_reply = entry.kind != FlowKind::ORIGINAL;
    // SAFETY: the length was written.
    let length = unsafe { route.__bindgen_anon_1.tot_len } as u32;
    let is_pods = local_pod::<F>(skb, &ends.dst, pod);
    let leaves_by = if is_pods {
        // The stack says so to the sender.
        if length > pod.mtu {
            return left;
        }
        pod.interface
    } else {
        route.ifindex = interface;
        F::set_fib_destination(route, ends.dst);
        // As the stack would look it up: with the source that the packet has between ingress and egress.
        let source_port = if is_reply {
            packet.key.src_port
        } else {
            entry.client_port
        };
        (route.sport, route.dport) = (source_port.0, ends.dst_port.0);
        if !is_routed(skb, route) {
            return left;
        }
        route.ifindex
    };
    // A reply goes where its client's packets come from, and nowhere else.
    if is_reply && node::client_interface(leaves_by) != entry.interface {
        return left;
    }
    if !F::rewrite_both(skb, packet, ends, counted_down) {
        return Outcome::drop(Counter::DroppedRewrite).word();
    }
    let direction = if is_reply {
        Direction::Out
    } else {
        Direction::In
    };
    traffic::count::<F>(skb, packet, entry, direction);
    let action = if is_pods {
        enter_pod(skb, pod)
    } else {
        skb.set_translated(true);
        fib::redirect(route)
    };
    let counter = if is_reply {
        Counter::ReplyTranslated as u32
    } else {
        counter
    };
    Outcome::sent(action, Counter::Untouched)
        .counted_as(counter)
        .word()
}

/// Fills in how packets reach a pod of this node; whether the agent knows it, and its link is there.
#[inline(always)]
pub fn local_pod<F: Family>(skb: Skb, address: &F::Addr, pod: &mut LocalPod) -> bool {
    node::local_pod::<F>(address, pod) && fib::is_there(skb, pod.interface)
}

/// Hands the packet to the pod's end of its link. Returns tc's action.
#[inline(always)]
pub fn enter_pod(skb: Skb, pod: &LocalPod) -> i32 {
    let addresses = [pod.destination, pod.source];
    if skb.store(0, &addresses, false).is_err()
        || skb.addressee() != Addressee::Host && skb.address_to_host().is_err()
    {
        return TC_ACT_SHOT;
    }
    fib::redirect_to_peer(pod.interface)
}
