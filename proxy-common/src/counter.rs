// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The counters: one for each outcome that a packet or a socket call can have. A tc program counts
//! exactly one outcome for each packet, a socket hook one for each call that may concern a service.

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)*) => {
        /// Index into the per-CPU `counters` array.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u32)]
        pub enum Counter {
            $($(#[doc = $doc])+ $name,)*
        }

        impl Counter {
            /// In the order of the array.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name in metrics and tables.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
            /// The meaning, in a sentence for the operator.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc,)+),)* }
            }
        }
    };
}

counters! {
    /// No service is concerned: not IP, or an address and ports that no service has.
    Untouched = "untouched",
    /// A packet of a known flow from client to backend, translated.
    ForwardedHit = "forwarded_hit",
    /// The first packet of a new flow, translated.
    ForwardedNew = "forwarded_new",
    /// The second repetition of a SYN that its backend did not answer, sent to another backend.
    ForwardedElsewhere = "forwarded_elsewhere",
    /// A reply that passes ingress; egress translates it.
    ReplyPassed = "reply_passed",
    /// A reply to a masqueraded source, sent on to its client.
    ReplyUnmasqueraded = "reply_unmasqueraded",
    /// A reply that got the service's address as its source again.
    ReplyTranslated = "reply_translated",
    /// A packet that left with the node's address as its source (masqueraded).
    Masqueraded = "masqueraded",
    /// An answer to a datagram that a node process sent from a served node port; not translated.
    UntouchedFlow = "untouched_flow",
    /// An ICMP error about a flow, translated outside and inside.
    IcmpTranslated = "icmp_translated",
    /// An ICMP redirect about a translated flow, dropped.
    IcmpRedirectDropped = "icmp_redirect_dropped",
    /// Rejected: the service has no endpoint.
    RejectedNoEndpoint = "rejected_no_endpoint",
    /// Rejected: the cluster IP serves no such port.
    RejectedUnserved = "rejected_unserved_port",
    /// A TCP segment to a service's address that belongs to no flow, answered with RST.
    RejectedUnknownFlow = "rejected_unknown_flow",
    /// Rejected without an answer, because answers are rate limited.
    RejectedSilently = "rejected_rate_limited",
    /// Dropped: the traffic policy is Local and no local endpoint serves.
    DroppedNoLocalEndpoint = "dropped_no_local_endpoint",
    /// Dropped: the source is outside loadBalancerSourceRanges.
    DroppedSource = "dropped_source_range",
    /// Dropped: a cluster IP that no service has (unallocatedClusterIPs: drop).
    DroppedUnallocated = "dropped_unallocated_cluster_ip",
    /// Dropped: a fragment to a service address came before its first fragment.
    DroppedFragment = "dropped_fragment",
    /// Dropped: the flow table is full.
    DroppedFlowTableFull = "dropped_flow_table_full",
    /// Dropped: no free tuple towards any backend, source ports included.
    DroppedNoTuple = "dropped_no_free_tuple",
    /// Dropped: no free masquerade port, or no address to masquerade with.
    DroppedNoMasqueradePort = "dropped_no_masquerade_port",
    /// Dropped: a record, slot or backend was not where the maps say. This is a bug; please report
    /// it.
    DroppedInconsistent = "dropped_inconsistent_maps",
    /// Dropped: the packet could not be rewritten (out of memory); its sender will retransmit.
    DroppedRewrite = "dropped_rewrite_failed",
    /// Dropped by mark: a connection of a node process that the policy drops.
    DroppedByMark = "dropped_by_mark",
    /// A connection or datagram translated at its socket.
    SocketTranslated = "socket_translated",
    /// Not translated at the socket: no service's address, or left to the packet path.
    SocketUntouched = "socket_untouched",
    /// An answer or peer name in which the socket hooks put the service's address back.
    SocketRestored = "socket_restored",
    /// Translated at the socket without an entry, because the sockets map is full: getpeername
    /// shows the backend.
    SocketTableFull = "socket_table_full",
    /// A flow that was not established gave way to another one less than 30 s after its last
    /// packet. Counted beside the packet that needed the room.
    FlowEvictedEarly = "flow_evicted_early",
    /// An ICMP echo request to a service's address, answered from here (answerPing).
    EchoAnswered = "echo_answered",
    /// A packet between two pods of this node, to or from an endpoint's port, that needs no
    /// translation and leaves past the stack (forwarding: auto).
    PastTheStack = "untouched_past_the_stack",
    /// A TCP segment to a service's address that belongs to no flow, sent to the backend that every
    /// node chooses (selection: maglev).
    ForwardedMidStream = "forwarded_mid_stream",
    /// A packet of a known flow, translated and sent to its backend on another node by XDP (xdp);
    /// no other counter counts it.
    ForwardedByXdp = "forwarded_by_xdp",
    /// A reply of such a flow, translated and sent to its client by XDP (xdp); no other counter
    /// counts it.
    ReplyByXdp = "reply_by_xdp",
    /// A first packet of a flow that left with an outer header, so that the endpoint's node puts
    /// the client's address back (clientAddress: keep).
    Carried = "carried",
    /// A packet from another node whose outer header was taken off (clientAddress: keep).
    HeaderTakenOff = "header_taken_off",
    /// An answer that is too large for the way to the node that the client met; the endpoint was
    /// told the size that fits (clientAddress: keep).
    TooLarge = "too_large",
    /// Dropped: an outer header that no agent of this cluster has made with a key that is still
    /// known (clientAddress: keep).
    DroppedHeader = "dropped_header",
}

impl Counter {
    /// Number of elements of the array `counters`: more than there are counters, so that a new
    /// counter needs no new map.
    pub const CAPACITY: u32 = 64;

    /// Whether this counter is for packets or calls that were not served.
    #[inline(always)]
    pub const fn refuses(self) -> bool {
        Self::is_refusal(self as u32)
    }
    /// Like [`Self::refuses`], for the counter with this index in the array `counters`.
    #[inline(always)]
    pub const fn is_refusal(counter: u32) -> bool {
        let first = Self::IcmpRedirectDropped as u32;
        counter.wrapping_sub(first) <= Self::DroppedByMark as u32 - first
            || counter == Self::DroppedHeader as u32
    }
}

const _: () = assert!(Counter::ALL.len() <= Counter::CAPACITY as usize);
