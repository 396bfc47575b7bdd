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
    use rstest::rstest;

    use super::*;
    use crate::V4;

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
    const RANGES: ServiceRanges<'static, V4> = ServiceRanges {
        cluster_ips: &Ranges::only(CLUSTER_IP),
        external_ips: &Ranges::only(EXTERNAL_IP),
    };

    /// Classifies a packet by the bits of its source and destination port. With `external` the
    /// destination lies in the ranges of external IPs, else it is an address of no service.
    fn classify_in(external: bool, client: u64, served: u64, redirects: bool) -> FilterVerdict {
        let bits = |port| if port == SERVED { served } else { client };
        let address = if external { EXTERNAL_IP } else { ELSEWHERE };
        classify_ingress(&RANGES, address, CLIENT, SERVED, redirects, bits, |_| false)
    }

    #[test]
    fn the_bits_of_both_ports_decide_what_a_packet_may_concern() {
        use FilterVerdict::{Backends, ExternalRange, KnownPort, Pass, Reply};
        use ports::{BACKEND, FRONTEND, MASQUERADE, NODE_PORT, REPLY};
        for (client, served, redirects, expected) in [
            (0, 0, false, Pass),
            (0, FRONTEND, false, Pass),
            (0, FRONTEND | BACKEND, false, Pass),
            (0, NODE_PORT, false, KnownPort),
            // Of a backend only where packets leave past the stack.
            (0, BACKEND, false, Pass),
            (BACKEND, 0, false, Pass),
            (0, BACKEND, true, Backends),
            (BACKEND, 0, true, Backends),
            (0, FRONTEND, true, Pass),
            // A reply to the node's address, or one that may leave past the stack.
            (REPLY, 0, false, Pass),
            (REPLY, MASQUERADE, false, Reply),
            (REPLY | FRONTEND, MASQUERADE, false, Reply),
            (REPLY, 0, true, Reply),
            (REPLY, FRONTEND, true, Reply),
            (0, 0, true, Pass),
        ] {
            let found = classify_in(false, client, served, redirects);
            assert_eq!(found, expected, "{client:#x} {served:#x} {redirects}");
        }
        let verdict = |served| classify_in(true, 0, served, false);
        assert_eq!(verdict(FRONTEND), ExternalRange);
        assert_eq!(verdict(NODE_PORT), KnownPort);
        assert_eq!(verdict(BACKEND), Pass);
    }

    #[test]
    fn a_packet_that_may_begin_a_flow_to_a_backend_is_not_passed() {
        let classify = |bits, begins: fn(bool) -> bool| {
            let bits = |port| if port == SERVED { bits } else { 0 };
            classify_ingress(&RANGES, ELSEWHERE, CLIENT, SERVED, false, bits, begins)
        };
        let (syn, datagram, data) = (|_| true, |datagrams| datagrams, |_| false);
        for bits in [ports::BACKEND, ports::REPLY] {
            assert_eq!(classify(bits, syn), FilterVerdict::KnownPort);
            assert_eq!(classify(bits, data), FilterVerdict::Pass);
        }
        assert_eq!(classify(ports::BACKEND, datagram), FilterVerdict::Pass);
        assert_eq!(classify(ports::REPLY, datagram), FilterVerdict::KnownPort);
        assert_eq!(classify(0, syn), FilterVerdict::Pass);
        assert_eq!(classify(ports::DIRECT, data), FilterVerdict::KnownPort);
    }

    #[test]
    fn the_cluster_ip_ranges_are_checked_before_any_port_bits() {
        let verdict = classify_ingress(
            &RANGES,
            CLUSTER_IP,
            CLIENT,
            SERVED,
            false,
            |_| panic!("no port is asked"),
            |_| panic!("nor the flags"),
        );
        assert_eq!(verdict, FilterVerdict::ServiceRange);
    }

    #[test]
    fn egress_handles_packets_from_reply_ports_and_node_ports() {
        assert!(may_concern_egress(ports::REPLY));
        assert!(may_concern_egress(ports::NODE_PORT));
        assert!(!may_concern_egress(ports::FRONTEND | ports::MASQUERADE));
        assert!(may_be_shared(ports::MASQUERADE, ports::REPLY));
        assert!(!may_be_shared(ports::FRONTEND, ports::REPLY));
        assert!(!may_be_shared(ports::MASQUERADE, ports::FRONTEND));
    }

    #[test]
    fn a_mark_on_a_packet_to_no_backend_port_is_foreign() {
        assert!(may_be_masqueraded(ports::REPLY));
        assert!(!may_be_masqueraded(!ports::REPLY));
    }

    /// Returns the work for a packet of this protocol, and of this ICMP type if it has one.
    fn work(v6: bool, protocol: u8, is_plain: bool, icmp_type: u8) -> Work {
        let icmp = if v6 { Protocol::ICMPV6 } else { Protocol::ICMP };
        work_of(Protocol(protocol), is_plain, false, icmp, icmp_type)
    }

    #[rstest]
    fn packets_of_protocols_without_services_are_not_parsed(
        #[values(false, true)] v6: bool,
        #[values(true, false)] is_plain: bool,
    ) {
        for protocol in 0..=255 {
            let expected = match protocol {
                6 | 17 | 132 if is_plain => Work::Ports,
                6 | 17 | 132 => Work::Parse,
                1 if !v6 && !is_plain => Work::Parse,
                58 if v6 && !is_plain => Work::Parse,
                1 if !v6 => Work::None,
                58 if v6 => Work::None,
                // IPIP, GRE, ESP, AH, OSPF, VRRP.
                _ => Work::Other,
            };
            assert_eq!(work(v6, protocol, is_plain, 0), expected, "{protocol}");
        }
    }

    #[test]
    fn icmp_errors_are_parsed_and_other_messages_are_not() {
        let parsed = |v6, protocol| -> Vec<u8> {
            let types = 0..=255_u8;
            types
                .filter(|kind| work(v6, protocol, true, *kind) == Work::Parse)
                .collect()
        };
        assert_eq!(parsed(false, 1), [3, 4, 5, 11, 12]);
        assert_eq!(parsed(true, 58), [1, 2, 3, 4, 137]);
        assert_eq!(work(false, 1, true, 8), Work::Echo);
        assert_eq!(work(true, 58, true, 128), Work::Echo);
        assert_eq!(work(false, 1, true, 128), Work::None);
        assert_eq!(work(false, 1, false, 8), Work::Parse, "a fragment");
    }

    #[test]
    fn packets_with_extension_headers_are_parsed() {
        let work = work_of(Protocol(44), true, true, Protocol::ICMPV6, 0);
        assert_eq!(work, Work::Parse);
    }
}
