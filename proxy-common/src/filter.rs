// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The first filter: decides by destination and ports, before any hash look-up, whether a packet
//! can concern a service at all. It reads the `ports` map, see [`crate::ports`].

use crate::{Addr, Port, Protocol, ports, ranges::Ranges};

/// The first filter's verdict on a packet: whether it can concern a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum FilterVerdict {
    /// The packet concerns no service and passes unchanged.
    Pass,
    /// A bit of the destination port is set in the `ports` map: the packet may go to a service, or
    /// be a reply.
    KnownPort,
    /// The packet goes to no service, but its source port has the bit [`ports::REPLY`]: it may be a
    /// reply.
    Reply,
    /// The destination lies in the ranges of cluster IPs.
    ServiceRange,
    /// The destination lies in the ranges of external and load balancer IPs, and some frontend has
    /// the destination port.
    ExternalRange,
    /// The packet is an ICMP echo request to an address in the ranges of cluster, external or load
    /// balancer IPs, and the node answers such requests.
    Echo,
    /// The packet has options or is fragmented: parse it in full, then classify it again.
    NotPlain,
    /// The packet concerns no service, but one of its ports is the port of some backend. Returned
    /// only where packets are redirected past the stack.
    Backends,
    /// The destination lies in the ranges of cluster IPs, and no service can have the packet's
    /// protocol, or the packet is an ICMP echo request that the node does not answer.
    OtherProtocol,
}

/// How a packet must be examined, judged by its IP header and the byte that follows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Not at all: the packet is an ICMP message about no flow.
    None,
    /// By its destination: no service has this protocol.
    Other,
    /// By its ports, which follow the IP header directly.
    Ports,
    /// As an ICMP echo request.
    Echo,
    /// By a full parse: for options, a fragment, extension headers or an ICMP error.
    Parse,
}

/// Returns how a packet must be examined. `protocol` is the protocol number in the IP header;
/// `icmp_type` is the byte that follows this header, and `icmp` is the family's ICMP. `is_plain`:
/// there are no options, and the packet is no fragment. `is_extension`: an extension header
/// follows, so the transport protocol is not known yet.
#[inline(always)]
pub const fn work_of(
    protocol: Protocol,
    is_plain: bool,
    is_extension: bool,
    icmp: Protocol,
    icmp_type: u8,
) -> Work {
    if is_transport(protocol) {
        return if is_plain { Work::Ports } else { Work::Parse };
    }
    if is_extension {
        return Work::Parse;
    }
    if protocol.0 != icmp.0 {
        return Work::Other;
    }
    if !is_plain || is_icmp_error(icmp, icmp_type) {
        Work::Parse
    } else if is_echo_request(icmp, icmp_type) {
        Work::Echo
    } else {
        Work::None
    }
}

/// Whether a service port can have this protocol: TCP, UDP or SCTP.
#[inline(always)]
pub const fn is_transport(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::TCP | Protocol::UDP | Protocol::SCTP)
}

/// Type of an ICMP redirect.
pub const REDIRECT_V4: u8 = 5;
/// Type of an ICMPv6 redirect.
pub const REDIRECT_V6: u8 = 137;

/// Whether an ICMP message of this type is an error, which quotes the packet that it is about.
/// `icmp` is the family's ICMP.
#[inline(always)]
pub const fn is_icmp_error(icmp: Protocol, icmp_type: u8) -> bool {
    if icmp.0 == Protocol::ICMP.0 {
        matches!(icmp_type, 3 | 4 | REDIRECT_V4 | 11 | 12)
    } else {
        matches!(icmp_type, 1..=4 | REDIRECT_V6)
    }
}

#[inline(always)]
const fn is_echo_request(icmp: Protocol, icmp_type: u8) -> bool {
    icmp_type == if icmp.0 == Protocol::ICMP.0 { 8 } else { 128 }
}

/// The ranges that contain the services' addresses.
pub struct ServiceRanges<'a, A> {
    pub cluster_ips: &'a Ranges<A>,
    /// Ranges that contain the external and load balancer IPs.
    pub external_ips: &'a Ranges<A>,
}

/// Classifies a packet at ingress by its destination and ports. `bits` returns a port's bits in the
/// `ports` map. `redirects`: whether replies that ingress need not translate are redirected past
/// the stack as well. `begins` returns whether the packet may begin a connection or, if called with
/// `true`, also a datagram conversation. It is called for packets to a backend's port, because a
/// direct connection to a backend may have the same tuple as a connection through a service.
#[inline(always)]
pub fn classify_ingress<A: Addr>(
    ranges: &ServiceRanges<'_, A>,
    address: A,
    src: Port,
    dst: Port,
    redirects: bool,
    bits: impl Fn(Port) -> u64,
    begins: impl FnOnce(bool) -> bool,
) -> FilterVerdict {
    // The address first: port bits are loaded by a call, and the programs can keep few values
    // across a call.
    if ranges.cluster_ips.contains(address) {
        return FilterVerdict::ServiceRange;
    }
    const ORIGINAL: u64 = ports::NODE_PORT | ports::DIRECT;
    let known = bits(dst);
    // Backends often have a frontend's port number as well (80, 443). Only the address tells
    // whether a packet to that port is for the service.
    if known & ports::FRONTEND != 0 && ranges.external_ips.contains(address) {
        return FilterVerdict::ExternalRange;
    }
    // Only egress translates a reply to a client's own port, so such a reply passes here unless it
    // is to be redirected.
    let may_be_reply = redirects || known & ports::MASQUERADE != 0;
    if known & ORIGINAL != 0 {
        return FilterVerdict::KnownPort;
    }
    let from = if may_be_reply { bits(src) } else { 0 };
    if from & ports::REPLY != 0 {
        FilterVerdict::Reply
    } else if is_backends(known) && begins(known & ports::REPLY != 0) {
        FilterVerdict::KnownPort
    } else if redirects && (known | from) & ports::BACKEND != 0 {
        FilterVerdict::Backends
    } else {
        FilterVerdict::Pass
    }
}

/// Whether the maps may have an entry for a packet that leaves the node without a mark; `bits` are
/// its source port's bits in the `ports` map.
#[inline(always)]
pub const fn may_concern_egress(bits: u64) -> bool {
    bits & (ports::REPLY | ports::NODE_PORT) != 0
}

/// Whether a masqueraded flow may have the 5-tuple of a foreign packet that leaves with the node's
/// address; `from` and `to` are the bits of the source and destination port in the `ports` map.
#[inline(always)]
pub const fn may_be_shared(from: u64, to: u64) -> bool {
    from & ports::MASQUERADE != 0 && to & ports::REPLY != 0
}

/// Whether a port with these bits is a backend's, or that of some flow's backend. A connection to
/// it may have the tuple of a flow that begins later.
#[inline(always)]
pub const fn is_backends(bits: u64) -> bool {
    bits & (ports::BACKEND | ports::REPLY) != 0
}

/// Whether our ingress program may have set the masquerade mark of a packet that leaves (other
/// programs use this mark, too). If so, the destination port is a backend's; `bits` are that port's
/// bits.
#[inline(always)]
pub const fn may_be_masqueraded(bits: u64) -> bool {
    bits & ports::REPLY != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Prefix, V4};

    const CLIENT: Port = Port::from_host(40_000);
    const SERVED: Port = Port::from_host(80);
    const CLUSTER_IP: V4 = V4 {
        octets: [10, 96, 0, 1],
    };
    const EXTERNAL_IP: V4 = V4 {
        octets: [198, 51, 100, 1],
    };
    const ELSEWHERE: V4 = V4 {
        octets: [10, 40, 0, 9],
    };

    /// Classifies a packet to this address, by the bits of its ports; see [`classify_ingress`].
    fn classify(
        address: V4,
        (client, served): (u64, u64),
        redirects: bool,
        begins: fn(bool) -> bool,
    ) -> FilterVerdict {
        let [cluster_ips, external_ips] = [CLUSTER_IP, EXTERNAL_IP].map(|address| {
            let only = Prefix {
                address,
                ..Prefix::NONE
            };
            Ranges::NONE.with(&[only])
        });
        let ranges = ServiceRanges {
            cluster_ips: &cluster_ips,
            external_ips: &external_ips,
        };
        let bits = |port| if port == SERVED { served } else { client };
        classify_ingress(&ranges, address, CLIENT, SERVED, redirects, bits, begins)
    }

    #[test]
    fn the_bits_of_both_ports_decide_what_a_packet_may_concern() {
        use FilterVerdict::{Backends, ExternalRange, KnownPort, Pass, Reply, ServiceRange};
        use ports::{BACKEND, FRONTEND, MASQUERADE, NODE_PORT, REPLY};
        for (address, client, served, redirects, expected) in [
            (ELSEWHERE, 0, 0, false, Pass),
            (ELSEWHERE, 0, FRONTEND, false, Pass),
            (ELSEWHERE, 0, FRONTEND | BACKEND, false, Pass),
            (ELSEWHERE, 0, NODE_PORT, false, KnownPort),
            // Of a backend only where packets leave past the stack.
            (ELSEWHERE, 0, BACKEND, false, Pass),
            (ELSEWHERE, BACKEND, 0, false, Pass),
            (ELSEWHERE, 0, BACKEND, true, Backends),
            (ELSEWHERE, BACKEND, 0, true, Backends),
            (ELSEWHERE, 0, FRONTEND, true, Pass),
            // A reply to the node's address, or one that may leave past the stack.
            (ELSEWHERE, REPLY, 0, false, Pass),
            (ELSEWHERE, REPLY, MASQUERADE, false, Reply),
            (ELSEWHERE, REPLY | FRONTEND, MASQUERADE, false, Reply),
            (ELSEWHERE, REPLY, 0, true, Reply),
            (ELSEWHERE, REPLY, FRONTEND, true, Reply),
            (ELSEWHERE, 0, 0, true, Pass),
            (EXTERNAL_IP, 0, FRONTEND, false, ExternalRange),
            (EXTERNAL_IP, 0, NODE_PORT, false, KnownPort),
            (EXTERNAL_IP, 0, BACKEND, false, Pass),
            (CLUSTER_IP, 0, 0, false, ServiceRange),
        ] {
            let found = classify(address, (client, served), redirects, |_| false);
            let packet = format!("{address:?} {client:#x} {served:#x} {redirects}");
            assert_eq!(found, expected, "{packet}");
        }
    }

    #[test]
    fn a_packet_that_may_begin_a_flow_to_a_backend_is_not_passed() {
        use FilterVerdict::{KnownPort, Pass};
        for (served, syn, datagram, data) in [
            (ports::BACKEND, KnownPort, Pass, Pass),
            (ports::REPLY, KnownPort, KnownPort, Pass),
            (ports::DIRECT, KnownPort, KnownPort, KnownPort),
            (0, Pass, Pass, Pass),
        ] {
            let begins: [fn(bool) -> bool; 3] = [|_| true, |datagrams| datagrams, |_| false];
            let found = begins.map(|begins| classify(ELSEWHERE, (0, served), false, begins));
            assert_eq!(found, [syn, datagram, data], "{served:#x}");
        }
    }

    #[test]
    fn a_mark_or_a_tuple_of_no_flows_ports_is_foreign() {
        assert!(may_be_masqueraded(ports::REPLY) && !may_be_masqueraded(!ports::REPLY));
        assert!(may_be_shared(ports::MASQUERADE, ports::REPLY));
        assert!(!may_be_shared(ports::FRONTEND, ports::REPLY));
        assert!(!may_be_shared(ports::MASQUERADE, ports::FRONTEND));
    }

    #[test]
    fn protocol_and_icmp_type_decide_how_a_packet_is_examined() {
        let families = [
            (Protocol::ICMP, vec![3, 4, 5, 11, 12], 8),
            (Protocol::ICMPV6, vec![1, 2, 3, 4, 137], 128),
        ];
        for (icmp, errors, echo) in families {
            let work = |protocol, is_plain, kind| work_of(protocol, is_plain, false, icmp, kind);
            for protocol in (0..=255).map(Protocol) {
                let expected = match protocol.0 {
                    6 | 17 | 132 => (Work::Ports, Work::Parse),
                    number if number == icmp.0 => (Work::None, Work::Parse),
                    // IPIP, GRE, ESP, AH, OSPF, VRRP.
                    _ => (Work::Other, Work::Other),
                };
                let found = (work(protocol, true, 0), work(protocol, false, 0));
                assert_eq!(found, expected, "{}", protocol.0);
            }
            let types = |wanted| -> Vec<u8> {
                let types = (0..=255).filter(|kind| work(icmp, true, *kind) == wanted);
                types.collect()
            };
            assert_eq!(types(Work::Parse), errors);
            assert_eq!(types(Work::Echo), [echo]);
            assert_eq!(work(icmp, false, echo), Work::Parse, "a fragment");
        }
        let extended = work_of(Protocol(44), true, true, Protocol::ICMPV6, 0);
        assert_eq!(extended, Work::Parse);
    }
}
