// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Connections between two pods of this node to the port of a backend that need no translation.
//! Most of them are to a service and were translated at their socket. With `forwarding: redirect`
//! they are redirected past the stack, as connections that are translated here are.
//!
//! Only complete connections are redirected: the SYN notes the connection, and a packet of a
//! connection that is not noted goes through the stack. A reply may belong to a connection that the
//! stack translates, a host port's for instance. Then the connection's SYN has left by egress of
//! the server's interface, and that deletes the note of an earlier connection with the same ports.
//! Every packet must come in by its pod's own interface, with that pod's address: past the stack
//! nothing else checks the source.

use aya_ebpf::bindings::bpf_fib_lookup;
use proxy_common::{
    Addr, Counter, LocalPod, Protocol,
    flow::between_pods::{End, place},
    maps::interface,
    ports as port_bits,
};

use super::redirect::{enter_pod, incoming, local_pod};
use crate::{
    count::Outcome,
    family::Family,
    globals,
    maps::{BETWEEN_PODS, node, ports},
    packet::{
        Skb,
        access::Addressee,
        fib,
        headers::{ETHERNET_LEN, Ports},
        parse,
    },
};

/// Redirects a packet of such a connection. Any other packet, and every packet if redirection is
/// off, passes untouched.
#[inline(always)]
pub fn send<F: Family>(skb: Skb, link_layer: bool) -> Outcome {
    if !link_layer || !globals::redirects() || globals::is_shadow() {
        return Outcome::pass(Counter::Untouched);
    }
    send_on::<F>(skb)
}

/// Notes that a packet leaves the stack by a pod's interface. If it begins a connection, the stack
/// serves that connection from now on.
#[inline(always)]
pub fn forget<F: Family>(skb: Skb, link_layer: bool) {
    if link_layer {
        _ = leave_to_stack::<F>(skb);
    }
}

by_family! {
    /// See [`send`].
    send_on portolan_between_pods_v4 portolan_between_pods_v6 = decide_on -> Outcome
}

by_family! {
    /// See [`forget`]; the packet always passes.
    leave_to_stack portolan_by_the_stack_v4 portolan_by_the_stack_v6 = note_of -> Outcome
}

#[inline(always)]
fn decide_on<F: Family>(skb: Skb) -> Outcome {
    past::<F>(skb).unwrap_or(Outcome::pass(Counter::Untouched))
}

#[inline(always)]
fn note_of<F: Family>(skb: Skb) -> Outcome {
    forget_begun::<F>(skb);
    Outcome::pass(Counter::Untouched)
}

/// A TCP segment from or to a backend's port.
struct Segment<A> {
    src: A,
    dst: A,
    ports: Ports,
    begins: bool,
}

impl<A: Addr> Segment<A> {
    #[inline(always)]
    fn read<F: Family<Addr = A>>(skb: Skb) -> Option<Self> {
        let (dst, ports) = F::plain(skb, ETHERNET_LEN)?;
        let is_backends = |port| ports::bits(port) & port_bits::BACKEND != 0;
        let to_backend = is_backends(ports.dst);
        if !to_backend && !is_backends(ports.src) {
            return None;
        }
        let (protocol, signals) = parse::plain_start::<F>(skb, ETHERNET_LEN)?;
        if protocol != Protocol::TCP {
            return None;
        }
        Some(Self {
            src: skb.read(ETHERNET_LEN + F::SOURCE)?,
            dst,
            ports,
            begins: to_backend && signals.begins(),
        })
    }
    /// Returns the slot and the word of the segment's connection.
    #[inline(always)]
    fn place(&self) -> (u32, u64) {
        let end = |address, port| End { address, port };
        place(
            &end(self.src, self.ports.src),
            &end(self.dst, self.ports.dst),
        )
    }
}

const NOWHERE: LocalPod = LocalPod {
    check: 0,
    interface: 0,
    mtu: 0,
    destination: [0; 6],
    source: [0; 6],
};

/// The outcome of a packet that is redirected past the stack; `None` for any other packet.
#[inline(always)]
fn past<F: Family>(skb: Skb) -> Option<Outcome> {
    let segment = Segment::read::<F>(skb)?;
    let (place, word) = segment.place();
    let noted = BETWEEN_PODS.get_ptr_mut(place)?;
    // SAFETY: an aligned word of a live element; a single load.
    if !segment.begins && unsafe { noted.read_volatile() } != word {
        return None;
    }
    // The programs over other maps may serve the packets that these programs pass, or may have
    // translated this one.
    if node::is_drained() || node::is_behind() {
        return None;
    }
    let own = skb.interface();
    let bridge = incoming::<F>(skb)?;
    let (mut sender, mut pod) = (NOWHERE, NOWHERE);
    let are_pods = node::local_pod::<F>(&segment.src, &mut sender)
        && local_pod::<F>(skb, &segment.dst, &mut pod);
    if !are_pods
        || sender.interface != own
        || pod.interface == own
        || !segment.src.may_be_forwarded()
    {
        return None;
    }
    // SAFETY: numbers and arrays of them.
    let mut route = unsafe { fib::zeroed::<bpf_fib_lookup>() };
    let counted_down = F::fib_parameters(skb, ETHERNET_LEN, &mut route)?;
    // Packets that are too large: the stack reports that to the sender.
    if u32::from(fib::mtu(&route)) > pod.mtu {
        return None;
    }
    let is_bridged = match skb.addressee() {
        Addressee::Host => false,
        // At a bridge's port, the frame may be for the pod, or for the bridge.
        _ => {
            let receiver: [u8; 6] = skb.read(0)?;
            if receiver != pod.destination && receiver != pod.source {
                return None;
            }
            receiver == pod.destination
        }
    };
    if segment.begins {
        // The connection's answers must be allowed past the stack, too.
        let there = node::interface_word(pod.interface);
        if interface::bits(there) & interface::REDIRECTS == 0
            || is_bridged && !hands_on(node::interface(own), bridge, there)
        {
            return None;
        }
        // SAFETY: an aligned word of a live element; a single store.
        unsafe { noted.write_volatile(word) };
    }
    if is_bridged {
        if skb.address_to_host().is_err() {
            return None;
        }
        let action = fib::redirect_to_peer(pod.interface);
        return Some(Outcome::sent(action, Counter::Untouched));
    }
    if F::store_hop(skb, ETHERNET_LEN, counted_down).is_err() {
        return Some(Outcome::drop(Counter::DroppedRewrite));
    }
    Some(Outcome::sent(enter_pod(skb, &pod), Counter::Untouched))
}

/// Whether the bridge forwards frames from a port with these bits to the port with this word.
#[inline(always)]
fn hands_on(from: u32, bridge: u32, to: u64) -> bool {
    interface::bridge(to) == bridge && (from | interface::bits(to)) & interface::ISOLATED == 0
}

#[inline(always)]
fn forget_begun<F: Family>(skb: Skb) -> Option<()> {
    let segment = Segment::read::<F>(skb)?;
    if segment.begins {
        let noted = BETWEEN_PODS.get_ptr_mut(segment.place().0)?;
        // SAFETY: an aligned word of a live element; a single store. If the slot notes another
        // connection, that note is lost as well: the stack serves that connection then.
        unsafe { noted.write_volatile(0) };
    }
    Some(())
}
