// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! TCP and UDP conversations between two pods of this node, to the port of a backend, that need no
//! translation. Most of them are to a service and were translated at their socket. With
//! `forwarding: auto` they leave past the stack as flows do, see `offload`: only after packets of
//! both directions have come out of the stack unchanged, by the pods' own interfaces.
//!
//! Every packet must come in by its pod's own interface, with that pod's address: past the stack
//! nothing else checks the source.

use aya_ebpf::bindings::bpf_fib_lookup;
use proxy_common::{
    Addr, Counter, LocalPod, Protocol,
    flow::{
        Signals,
        between_pods::{Direction, End, Record},
        offload::{Consent, consent},
    },
    maps::interface,
    ports as port_bits,
};

use super::redirect::{enter_pod, incoming};
use crate::{
    count::Outcome,
    family::Family,
    globals, helpers,
    maps::{BETWEEN_PODS, node, ports},
    packet::{
        Skb,
        access::{Addressee, Tag},
        fib,
        headers::{ETHERNET_LEN, Ports},
        parse,
    },
};

/// Redirects a packet of a conversation between two pods past the stack, or tags it for [`record`].
/// Any other packet, and every packet if redirection is off, passes untouched.
#[inline(always)]
pub fn send<F: Family>(skb: Skb, link_layer: bool) -> Outcome {
    if !link_layer || !globals::redirects() {
        return Outcome::pass(Counter::Untouched);
    }
    send_on::<F>(skb)
}

/// Egress: records that a packet which [`send`] has tagged leaves the stack by the receiving pod's
/// interface.
#[inline(always)]
pub fn record<F: Family>(skb: Skb) {
    _ = leaves_stack::<F>(skb);
}

by_family! {
    /// See [`send`].
    send_on portolan_between_pods_v4 portolan_between_pods_v6 = decide_on -> Outcome
}

by_family! {
    /// See [`record`]; the packet always passes.
    leaves_stack portolan_leaves_stack_v4 portolan_leaves_stack_v6 = note_of -> Outcome
}

#[inline(always)]
fn decide_on<F: Family>(skb: Skb) -> Outcome {
    past::<F>(skb).unwrap_or(Outcome::pass(Counter::Untouched))
}

#[inline(always)]
fn note_of<F: Family>(skb: Skb) -> Outcome {
    note::<F>(skb);
    Outcome::pass(Counter::Untouched)
}

/// A TCP segment or a UDP datagram, of which one port is a backend's.
struct Segment<A> {
    src: A,
    dst: A,
    ports: Ports,
    protocol: Protocol,
    /// [`Signals::NONE`] for a datagram.
    signals: Signals,
}

impl<A: Addr> Segment<A> {
    #[inline(always)]
    fn read<F: Family<Addr = A>>(skb: Skb) -> Option<Self> {
        let (dst, ports) = F::plain(skb, ETHERNET_LEN)?;
        let is_backends = |port| ports::bits(port) & port_bits::BACKEND != 0;
        if !is_backends(ports.dst) && !is_backends(ports.src) {
            return None;
        }
        let (protocol, signals) = parse::plain_start::<F>(skb, ETHERNET_LEN)?;
        if protocol != Protocol::TCP && protocol != Protocol::UDP {
            return None;
        }
        Some(Self {
            src: skb.read(ETHERNET_LEN + F::SOURCE)?,
            dst,
            ports,
            protocol,
            signals,
        })
    }
    #[inline(always)]
    fn direction(&self) -> Direction {
        let end = |address, port| End { address, port };
        Direction::new(
            &end(self.src, self.ports.src),
            &end(self.dst, self.ports.dst),
            self.protocol,
            globals::HASH_KEY.load(),
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

/// Returns the outcome of a packet that is redirected past the stack; `None` for any other packet.
#[inline(always)]
fn past<F: Family>(skb: Skb) -> Option<Outcome> {
    let own = skb.interface();
    // Behind an interface with many clients is no pod's own link.
    if node::client_interface(own).is_shared() {
        return None;
    }
    let segment = Segment::read::<F>(skb)?;
    let (mut sender, mut pod) = (NOWHERE, NOWHERE);
    if !node::local_pod::<F>(&segment.dst, &mut pod) || !pod.is_open() || pod.interface == own {
        return None;
    }
    let consent = consent(node::settings()?.flags, segment.protocol, segment.signals);
    if consent == Consent::Stack {
        return None;
    }
    // The programs over other maps may serve the packets that these programs pass, or may have
    // translated this one.
    if node::is_drained() || node::is_behind() {
        return None;
    }
    let is_allowed = match consent {
        Consent::ByRecord => {
            let direction = segment.direction();
            let noted = BETWEEN_PODS.get_ptr_mut(direction.slot)?;
            let now = helpers::now();
            // SAFETY: an aligned word of a live element; a single load.
            let record = Record(unsafe { noted.read_volatile() });
            let before = record.before_stack(direction, now);
            if before != record {
                // SAFETY: as above; a single store.
                unsafe { noted.write_volatile(before.0) };
            }
            record.allows(direction, now)
        }
        Consent::Asks | Consent::Stack => false,
    };
    let bridge = incoming::<F>(skb)?;
    if !node::local_pod::<F>(&segment.src, &mut sender)
        || !sender.is_open()
        || sender.interface != own
        || !segment.src.may_be_forwarded()
    {
        return None;
    }
    if !is_allowed {
        skb.set_tag(Tag::BETWEEN_PODS);
        return None;
    }
    if !fib::is_there(skb, pod.interface) {
        return None;
    }
    // The packet's interface permits redirection: see `incoming`. The agent must permit the other
    // one, too.
    let there = node::interface_word(pod.interface);
    if interface::bits(there) & interface::REDIRECTS == 0 {
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
    if is_bridged && !hands_on(node::interface(own), bridge, there) {
        return None;
    }
    if is_bridged {
        if skb.address_to_host().is_err() {
            return None;
        }
        let action = fib::redirect_to_peer(pod.interface);
        return Some(Outcome::sent(action, Counter::PastTheStack));
    }
    if F::store_hop(skb, ETHERNET_LEN, counted_down).is_err() {
        return Some(Outcome::drop(Counter::DroppedRewrite));
    }
    Some(Outcome::sent(enter_pod(skb, &pod), Counter::PastTheStack))
}

/// Whether the bridge with the index `bridge` forwards frames between two of its ports: from one
/// with the bits `from` to the one with the complete data `to`, see [`interface`].
#[inline(always)]
fn hands_on(from: u32, bridge: u32, to: u64) -> bool {
    interface::bridge(to) == bridge && (from | interface::bits(to)) & interface::ISOLATED == 0
}

#[inline(always)]
fn note<F: Family>(skb: Skb) -> Option<()> {
    let segment = Segment::read::<F>(skb)?;
    let mut pod = NOWHERE;
    let is_pods = node::local_pod::<F>(&segment.dst, &mut pod) && pod.is_open();
    if !is_pods || pod.interface != skb.interface() {
        return None;
    }
    let direction = segment.direction();
    let noted = BETWEEN_PODS.get_ptr_mut(direction.slot)?;
    let begins = segment.signals.begins();
    let completes = !segment.signals.has(Signals::SYN);
    // SAFETY: an aligned word of a live element; a single load and a single store. If another CPU
    // stores a record between them, one of the two is lost, and is made again.
    unsafe {
        let record = Record(noted.read_volatile());
        let after = record.after(direction, begins, completes, helpers::now());
        noted.write_volatile(after.0);
    }
    Some(())
}
