// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every outcome that can happen to a packet. Each exit of a kernel program counts exactly one.

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

            /// The reason as metrics and tables spell it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
            /// What it means, in a sentence for the operator.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc,)+),)* }
            }
        }
    };
}

counters! {
    /// Not IP, or nothing that a service could be about.
    Untouched = "untouched",
    /// A packet of a known flow, client to backend, translated.
    ForwardedHit = "forwarded_hit",
    /// The first packet of a new flow, translated.
    ForwardedNew = "forwarded_new",
    /// A reply that passes ingress on its way to be translated at egress.
    ReplyPassed = "reply_passed",
    /// A reply to a masqueraded source, sent on to its client.
    ReplyUnmasqueraded = "reply_unmasqueraded",
    /// A reply whose source became the service's address again.
    ReplyTranslated = "reply_translated",
    /// A packet that left with the node's address as its source.
    Masqueraded = "masqueraded",
    /// An answer to what a node process sent from a served node port.
    UntouchedFlow = "untouched_flow",
    /// An ICMP error about a flow, translated outside and inside.
    IcmpTranslated = "icmp_translated",
    /// An ICMP redirect about a translated flow, dropped.
    IcmpRedirectDropped = "icmp_redirect_dropped",
    /// Rejected: the service has no endpoint.
    RejectedNoEndpoint = "rejected_no_endpoint",
    /// Rejected: the cluster IP serves no such port.
    RejectedUnserved = "rejected_unserved_port",
    /// A TCP segment to a cluster IP that belongs to no flow, answered with RST.
    RejectedUnknownFlow = "rejected_unknown_flow",
    /// A rejection that was not answered because answers are rate limited.
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
    /// Dropped: unanswered flows hold their whole share of a crowded flow table.
    DroppedPressure = "dropped_flow_table_pressure",
    /// Dropped: no free tuple towards any backend, source ports included.
    DroppedNoTuple = "dropped_no_free_tuple",
    /// Dropped: no free masquerade port, or no address to masquerade with.
    DroppedNoMasqueradePort = "dropped_no_masquerade_port",
    /// Dropped: a record, slot or backend was not where the maps say; a fault worth a report.
    DroppedInconsistent = "dropped_inconsistent_maps",
    /// Dropped: the packet could not be rewritten (out of memory); the sender will try again.
    DroppedRewrite = "dropped_rewrite_failed",
    /// Dropped by mark: a node process's connection that the policy drops.
    DroppedByMark = "dropped_by_mark",
    /// A connection or datagram translated at its socket.
    SocketTranslated = "socket_translated",
    /// Left alone at the socket: what it asks for is no service's, or the packet path's to serve.
    SocketUntouched = "socket_untouched",
    /// An answer or peer name that became the service's address again at the socket.
    SocketRestored = "socket_restored",
    /// Translated at the socket without a trace because the sockets map is full: the peer's name is the backend's.
    SocketTableFull = "socket_table_full",
    /// A bind to a served node port, refused.
    BindRefused = "bind_refused_node_port",
    /// A pod's connected UDP socket whose backend has gone, sent to another one.
    SocketRepointed = "socket_repointed",
    /// Left alone: headers longer or stranger than the programs follow.
    UntouchedMalformed = "untouched_malformed",
}

impl Counter {
    /// Length of the `counters` array.
    pub const COUNT: u32 = Self::ALL.len() as u32;
}
