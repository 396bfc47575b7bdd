// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long a flow may be idle, and what the agent hands to the programs that remove idle flows.

use super::{FlowState, Phase};
use crate::Protocol;

const SECOND: u64 = 1_000_000_000;
/// nf_conntrack's time-out in FIN_WAIT, in seconds: no answer to the FIN has been seen.
const FIN_WAIT: u32 = 120;

/// nf_conntrack's time-out for data that has not been acknowledged, in seconds.
const UNACKNOWLEDGED: u32 = 300;

/// Idle times by protocol and state, in seconds. They are never shorter than conntrack's, so that
/// no flow that netfilter still tracks is removed. kube-proxy's `conntrack` settings replace those
/// marked KUBE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct IdleTimes {
    /// KUBE: `conntrack.tcpEstablishedTimeout`.
    pub tcp_established: u32,
    /// KUBE: `conntrack.tcpCloseWaitTimeout`; for a flow that one side has closed while
    /// the other side is still there.
    pub tcp_close_wait: u32,
    /// nf_conntrack's time-out in TIME_WAIT; for a flow that both sides have closed.
    pub tcp_closed: u32,
    /// KUBE: `conntrack.udpTimeout`.
    pub udp: u32,
    /// KUBE: `conntrack.udpStreamTimeout`.
    pub udp_stream: u32,
    pub sctp_established: u32,
}

impl IdleTimes {
    pub const DEFAULT: Self = Self {
        tcp_established: 86_400,
        tcp_close_wait: 3_600,
        tcp_closed: 120,
        udp: 30,
        udp_stream: 120,
        sctp_established: 86_400,
    };

    /// Idle times while another proxy takes over. Flows that have ended are removed at once: the
    /// other proxy masquerades with the same ports, and the answers to it would be taken for ours.
    /// A UDP flow moves to the other proxy in its next pause: after two seconds if it had only one
    /// request and answer, else after half a minute.
    pub const DRAINING: Self = Self {
        tcp_closed: 1,
        udp: 2,
        udp_stream: 30,
        ..Self::DEFAULT
    };

    /// No idle time for TCP: for connections that are to end, whatever they do.
    pub const AT_ONCE: Self = Self {
        tcp_established: 0,
        tcp_close_wait: 0,
        tcp_closed: 0,
        ..Self::DEFAULT
    };

    /// How long a flow in this state may be idle, in nanoseconds.
    #[inline(always)]
    pub const fn limit(&self, protocol: Protocol, state: FlowState) -> u64 {
        let seconds = match (protocol, state.phase()) {
            (Protocol::UDP, Phase::Established) => self.udp_stream,
            (Protocol::UDP, _) => self.udp,
            (Protocol::TCP, Phase::Established)
                if state.has(FlowState::DATA_SENT) && self.tcp_established > UNACKNOWLEDGED =>
            {
                UNACKNOWLEDGED
            }
            (Protocol::TCP, Phase::Established) => self.tcp_established,
            (Protocol::TCP, Phase::ClosingByClient | Phase::ClosingByBackend) => {
                if state.awaits_answer_to_fin() && self.tcp_close_wait > FIN_WAIT {
                    FIN_WAIT
                } else {
                    self.tcp_close_wait
                }
            }
            (Protocol::SCTP, Phase::Established) => self.sctp_established,
            (Protocol::TCP, Phase::Closed) => self.tcp_closed,
            // nf_conntrack: SYN_SENT 120, SYN_RECV 60, SCTP's handshake 3 to 60.
            _ => 120,
        };
        seconds as u64 * SECOND
    }

    /// Whether a flow has idled out by `now`. A flow that was last seen in the future has not.
    #[inline(always)]
    pub const fn is_expired(
        &self,
        protocol: Protocol,
        state: FlowState,
        last_seen: u64,
        now: u64,
    ) -> bool {
        now > last_seen && now - last_seen > self.limit(protocol, state)
    }
}

/// Shortest time, in nanoseconds, between two stores of a flow's `last_seen`.
pub const REFRESH_INTERVAL: u64 = SECOND;

/// Maximum number of keys that one run of an `expire` program checks.
pub const EXPIRY_BATCH: usize = 64;

/// The packet data that the agent passes to an `expire` program: this header, then `count` flow
/// keys of the program's family. The program checks each entry again, and removes an idle one with
/// the entries that belong to it. It returns how many original entries it removed, and entries
/// whose original entry was missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct ExpiryRequest {
    pub now: u64,
    pub idle_times: IdleTimes,
    pub count: u32,
    pub _pad: u32,
}
/// Converts a time of the kernel's monotonic clock, in nanoseconds, to the 32 bits that an entry
/// keeps: units of 2^20 ns.
#[inline(always)]
pub const fn coarse(now: u64) -> u32 {
    (now >> 20) as u32
}

/// Whether a second has passed since a flow's frontend was last verified to belong to its service
/// (`checked`, see [`coarse`]). A frontend rarely moves to another service, so a flow's datagrams
/// check this once a second.
#[inline(always)]
pub const fn frontend_is_due(checked: u32, now: u64) -> bool {
    coarse(now).wrapping_sub(checked) >= coarse(REFRESH_INTERVAL)
}
