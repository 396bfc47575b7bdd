// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! `forwarding: auto`: once the stack has let packets of its direction pass (`offload`), a packet
//! of a known flow leaves at once, past the node's stack and its netfilter rules: into a pod of
//! this node whose link the agent knows, else by the kernel's routes and neighbours. First the
//! packet gets its new source and destination, so that no later program looks it up again:
//! [`send`].
//!
//! The stack handles all other packets: those whose hop limit ends, that are too large, that are
//! for the node itself, or that are not for this node; fragments, IPv4 options and IPv6 extension
//! headers; addresses that the stack drops or that are the node's own; and interfaces without a
//! link layer or without the agent's permission.

use aya_ebpf::bindings::{TC_ACT_SHOT, bpf_fib_lookup};
use proxy_common::{
    Addr, Counter, FlowEntry, FlowKind, LocalPod,
    flow::{Offload, Signals},
    maps::interface,
};

use super::{
    offload::{self, Path},
    step::{Next, Step},
    translate,
};
use crate::{
    count::Outcome,
    family::Family,
    maps::{
        flow, node,
        traffic::{self, Direction},
        workspace::{EntryBuffer, Scratch},
    },
    packet::{
        Shape, Skb,
        access::{Addressee, Tag},
        fib::{self, FibResult},
        headers::{ETHERNET_LEN, ETHERTYPE},
    },
};

/// Returns the index of the interface that, for the stack, the packet comes in by; None if the
/// packet may not be redirected past the stack.
#[inline(always)]
pub fn incoming<F: Family>(skb: Skb) -> Option<u32> {
    let known = node::interface_word(skb.interface());
    let bits = interface::bits(known);
    // A redirected packet would keep its VLAN tag, in or out of band, and the tag means something
    // else at another interface.
    let may_receive = || match skb.addressee() {
        Addressee::Host => true,
        Addressee::Other => bits & interface::VETH_PORT != 0,
        Addressee::Many => false,
    };
    if bits & interface::REDIRECTS == 0
        || skb.read(ETHERTYPE) != Some(F::ETHERTYPE)
        || skb.is_tagged()
        || !may_receive()
    {
        return None;
    }
    Some(node::through(known, skb.interface()))
}

/// Looks up the route whose parameters are filled in; `true` if the packet can leave by this route.
#[inline(always)]
fn is_routed(skb: Skb, route: &mut bpf_fib_lookup) -> bool {
    // An interface without a link layer needs the route itself, which only the stack has.
    match fib::look_up(skb, route) {
        FibResult::Found => fib::has_address(route),
        FibResult::NoNeighbour => node::interface(route.ifindex) & interface::NO_LINK_LAYER == 0,
        FibResult::NotForwarded => false,
    }
}

/// Sends the packet in the workspace on, see [`Next::Send`]: past the stack with both its source
/// and destination translated, else through the stack.
#[inline(always)]
pub fn send<F: Family>(skb: Skb, first: bool, counter: u32) -> Outcome {
    let first = first as u32;
    match Step::from_word(past_the_stack::<F>(skb, first, counter)).next() {
        Next::Done(outcome) => outcome,
        _ => Outcome::from_word(translate::<F>(skb, first, counter)),
    }
}

// Called by the entry points only, because there is enough stack below them.

by_family! {
    /// Sends the packet past the stack; if `first` is not 0, by the entry of the flow that it
    /// begins, else by the entry that was found. Returns an outcome as a word, or [`Step::send`] if
    /// the packet cannot be redirected.
    fn past_the_stack(skb, first, counter) = portolan_send_v4 portolan_send_v6 of send_past
}

by_family! {
    /// Makes ingress's part of the packet's translation; egress does the rest. Returns the outcome
    /// as a word.
    fn translate(skb, first, counter) = portolan_translate_v4 portolan_translate_v6 of translate_by
}

/// Returns the entry that says where the packet goes: if `first` is not 0, the entry of the flow
/// that begins, else the entry that was found.
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
    let Some((packet, _, scratch)) = flow::filled_workspace::<F>() else {
        return Outcome::drop(Counter::DroppedRewrite).word();
    };
    let entry = entry_of(&scratch.found, &scratch.entry, first);
    let outcome = match entry.kind {
        FlowKind::REPLY => Outcome::pass(Counter::ReplyPassed),
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
    let left = Step::send(first != 0, Counter::Untouched).word();
    let Some((packet, clock, scratch)) = flow::filled_workspace::<F>() else {
        return left;
    };
    let Scratch {
        found,
        entry: begun,
        holder: ends,
        route,
        pod,
        bound,
        ..
    } = scratch;
    let entry = entry_of(found, begun, first);
    let is_plain = packet.l3 == ETHERNET_LEN && packet.l4 == ETHERNET_LEN + F::HEADER_LEN;
    if !is_plain || packet.shape != Shape::Whole || entry.needs_stack() {
        return left;
    }
    let now = clock.now();
    let path = offload::path(packet, entry, now);
    if path == Path::Stack {
        return left;
    }
    let Some(interface) = incoming::<F>(skb) else {
        return left;
    };
    if path == Path::Recorded {
        // A flow that begins is being entered yet, and a handshake's packets are few.
        if first == 0 && (entry.offload != Offload::NONE || !packet.signals.has(Signals::SYN)) {
            flow::note_asked::<F>(&packet.key, now);
        }
        skb.set_tag(offload::tag(entry));
        return left;
    }
    let is_reply = entry.kind != FlowKind::ORIGINAL;
    // Past the stack no reverse path filter sees the source, and a reply's key has no interface.
    if is_reply && *bound == 0 {
        skb.set_tag(offload::tag(entry));
        return left;
    }
    if !entry.both_ends_into(&packet.key, ends) {
        return left;
    }
    fib::clear(route);
    let Some(counted_down) = F::fib_parameters(skb, ETHERNET_LEN, route) else {
        return left;
    };
    // SAFETY: the length was written.
    let length = unsafe { route.__bindgen_anon_1.tot_len } as u32;
    let is_pods = local_pod::<F>(skb, &ends.dst, pod);
    let leaves_by = if is_pods {
        // The packet is too large: the stack reports that to the sender.
        if length > pod.mtu {
            return left;
        }
        pod.interface
    } else {
        route.ifindex = interface;
        F::set_fib_destination(route, ends.dst);
        // Looked up as the stack would do it: with the source that the packet has between ingress
        // and egress.
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
    if !entry.offload.is_by(leaves_by) {
        // The route has changed, or the stack follows another one, as for a port of a bridge and
        // the bridge. The next time unit asks again.
        flow::note_asked::<F>(&packet.key, now);
        return left;
    }
    // A reply leaves only by the interface that its client's packets come in by.
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
        skb.set_tag(Tag::TRANSLATED);
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

/// Fills in `pod`, how packets reach a pod of this node; `true` if the agent knows a pod with this
/// address that may be handed packets, and its link exists.
#[inline(always)]
pub fn local_pod<F: Family>(skb: Skb, address: &F::Addr, pod: &mut LocalPod) -> bool {
    node::local_pod::<F>(address, pod) && pod.is_open() && fib::is_there(skb, pod.interface)
}

/// Hands the packet to the pod's end of its link; returns tc's action.
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
