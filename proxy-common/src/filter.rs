// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The filter in front of everything: which packets can concern a service at all, decided by destination and ports
//! before any look-up in a hash. The `ports` map behind it is described in [`crate::ports`].

use crate::{Port, ports};

/// What the filter says of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum FilterVerdict {
    /// No service's.
    Pass,
    /// Its destination port has a bit: it may go to a service, or be a reply.
    KnownPort,
    /// It goes to no service, but both of its ports have bits: it may be a reply.
    Reply,
    /// Its destination lies in the ranges of cluster IPs.
    ServiceRange,
    /// It has options or is fragmented: parse it in full, then ask again.
    NotPlain,
}

/// Classifies a packet at ingress. `bits` returns a port's bits in the `ports` map; `redirects` says whether replies
/// that need no translation here leave past the stack as well. `begins` says whether the packet may begin a conversation: a
/// connection, or with `true` one of datagrams as well; it is asked for packets to a backend's port, because a connection past
/// every service may have the tuple of one through a service.
#[inline(always)]
pub fn classify_ingress(
    in_service_range: impl FnOnce() -> bool,
    src: Port,
    dst: Port,
    redirects: bool,
    bits: impl Fn(Port) -> u64,
    begins: impl FnOnce(bool) -> bool,
) -> FilterVerdict {
    // The address first: port bits are loaded by a call, across which the programs can keep few values.
    if in_service_range() {
        return FilterVerdict::ServiceRange;
    }
    // STALE: a pod's socket may still be connected to a UDP backend that has gone.
    const ORIGINAL: u64 = ports::FRONTEND | ports::NODE_PORT | ports::STALE | ports::DIRECT;
    let known = bits(dst);
    // A reply to a client's own port is changed at egress only, so it can pass here unless it is to be redirected.
    let may_be_reply = redirects || known & ports::MASQUERADE != 0;
    if known & ORIGINAL != 0 {
        FilterVerdict::KnownPort
    } else if may_be_reply && bits(src) & ports::REPLY != 0 {
        FilterVerdict::Reply
    } else if known & (ports::BACKEND | ports::REPLY) != 0 && begins(known & ports::REPLY != 0) {
        FilterVerdict::KnownPort
    } else {
        FilterVerdict::Pass
    }
}

/// Whether the maps may know a packet that leaves without a mark; `bits` are those of its source port.
#[inline(always)]
pub const fn may_concern_egress(bits: u64) -> bool {
    bits & (ports::REPLY | ports::NODE_PORT) != 0
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const CLIENT: Port = Port::from_host(40_000);
    const SERVED: Port = Port::from_host(80);

    /// A packet from the client's port to the served one, with these bits at the two.
    fn classify(client: u64, served: u64, redirects: bool) -> FilterVerdict {
        let bits = |port| if port == SERVED { served } else { client };
        classify_ingress(|| false, CLIENT, SERVED, redirects, bits, |_| false)
    }

    #[rstest]
    #[case::nothing_known(0, FilterVerdict::Pass)]
    #[case::frontend(ports::FRONTEND, FilterVerdict::KnownPort)]
    #[case::node_port(ports::NODE_PORT, FilterVerdict::KnownPort)]
    #[case::stale_backend(ports::STALE, FilterVerdict::KnownPort)]
    #[case::backend_of_sockets(ports::BACKEND, FilterVerdict::Pass)]
    fn the_destination_port_decides_about_requests(
        #[case] served: u64,
        #[case] expected: FilterVerdict,
    ) {
        assert_eq!(classify(0, served, false), expected);
    }

    #[test]
    fn a_reply_concerns_ingress_when_it_was_masqueraded_or_is_to_be_redirected() {
        assert_eq!(classify(ports::REPLY, 0, false), FilterVerdict::Pass);
        let masqueraded = classify(ports::REPLY, ports::MASQUERADE, false);
        assert_eq!(masqueraded, FilterVerdict::Reply);
        assert_eq!(classify(ports::REPLY, 0, true), FilterVerdict::Reply);
        assert_eq!(classify(0, 0, true), FilterVerdict::Pass);
    }

    #[test]
    fn what_may_begin_a_conversation_with_a_backend_is_looked_at() {
        let classify = |bits, begins: fn(bool) -> bool| {
            let bits = |port| if port == SERVED { bits } else { 0 };
            classify_ingress(|| false, CLIENT, SERVED, false, bits, begins)
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
    fn the_range_of_cluster_ips_is_asked_before_any_port() {
        let verdict = classify_ingress(
            || true,
            CLIENT,
            SERVED,
            false,
            |_| panic!("no port is asked"),
            |_| panic!("nor the flags"),
        );
        assert_eq!(verdict, FilterVerdict::ServiceRange);
    }

    #[test]
    fn egress_concerns_replies_and_what_node_ports_send() {
        assert!(may_concern_egress(ports::REPLY));
        assert!(may_concern_egress(ports::NODE_PORT));
        assert!(!may_concern_egress(ports::FRONTEND | ports::MASQUERADE));
    }
}
