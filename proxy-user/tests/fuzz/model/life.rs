// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is known about a flow, and what packets prove: "A flow's life" in ARCHITECTURE.md.

use proxy_common::flow::Phase;

use super::wire::{ACK, FIN, Headers, RST, SYN, TCP, UDP};

/// How far a believed number may be ahead of the other side's acknowledgement, and behind it.
pub(crate) const AHEAD: i32 = 28 << 20;
pub(crate) const BEHIND: i32 = 4 << 20;
/// The client's first acknowledgement may cover so many bytes after the backend's SYN.
const FAST_OPEN: u32 = 1 << 16;

/// What the packets of a flow have shown so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Life {
    pub(crate) answered: bool,
    pub(crate) acknowledged: bool,
    pub(crate) repeated: bool,
    pub(crate) renewed: bool,
    pub(crate) client_fin: bool,
    pub(crate) backend_fin: bool,
    pub(crate) backend_first: bool,
    pub(crate) reset: bool,
    /// After one side's FIN the other side has sent a segment.
    pub(crate) fin_answered: bool,
    /// The backend has sent data, and the client nothing since.
    pub(crate) data_sent: bool,
    /// The flow began in the middle of its connection, and neither side has proven a number yet.
    pub(crate) picked_up: bool,
    /// TCP: the last number that the client has acknowledged. Before the client's first
    /// acknowledgement, it is the number after the backend's SYN, and before that the client's
    /// SYN's. SCTP: the tag of the client's packets; before the answer, the tag in the client's
    /// INIT. `backend_number`: the same of the backend.
    pub(crate) client_number: u32,
    pub(crate) backend_number: u32,
    /// TCP: the timestamp of the client's last FIN; 0 without one.
    pub(crate) timestamp: u32,
}

/// Returns true if a number is at most `AHEAD` after `last` or `BEHIND` before it, or `last` is 0.
fn is_near(number: u32, last: u32) -> bool {
    if last == 0 {
        return true;
    }
    let apart = number.wrapping_sub(last).cast_signed();
    (-BEHIND..=AHEAD).contains(&apart)
}

/// Records the number that a TCP segment acknowledges, if it is near the last one.
fn follow(last: &mut u32, headers: &Headers) {
    let acknowledges = headers.flags & (SYN | ACK) == ACK;
    if headers.tuple.protocol == TCP && acknowledges && is_near(headers.acknowledgement, *last) {
        *last = headers.acknowledgement;
    }
}

/// Returns true if a segment is data or only an acknowledgement.
pub(super) fn goes_on(headers: &Headers) -> bool {
    headers.flags & (SYN | ACK | RST | FIN) == ACK
}

/// Returns the number that distinguishes the SYNs or INITs of two connections; 0 for UDP.
pub(crate) fn first_number(headers: &Headers) -> u32 {
    match headers.tuple.protocol {
        TCP => headers.sequence,
        UDP => 0,
        _ => headers.initiate_tag,
    }
}

impl Life {
    /// Returns the state of a flow that begins with this packet.
    pub(crate) fn begun_by(headers: &Headers) -> Self {
        let picked_up = !headers.begins();
        Self {
            picked_up,
            client_number: if picked_up { 0 } else { first_number(headers) },
            ..Self::default()
        }
    }
    /// Returns true if this packet repeats a SYN for the second time without an answer.
    pub(crate) fn is_unanswered_again(&self, headers: &Headers) -> bool {
        self.repeated && !self.answered && self.client_number == first_number(headers)
    }
    pub(crate) fn phase(&self) -> Phase {
        if self.reset || self.client_fin && self.backend_fin {
            Phase::Closed
        } else if self.client_fin {
            Phase::ClosingByClient
        } else if self.backend_fin {
            Phase::ClosingByBackend
        } else if self.acknowledged {
            Phase::Established
        } else if self.answered {
            Phase::Answered
        } else {
            Phase::Unanswered
        }
    }
    pub(crate) fn is_closed(&self) -> bool {
        self.phase() == Phase::Closed
    }
    pub(crate) fn is_closing(&self) -> bool {
        self.reset || self.client_fin || self.backend_fin
    }
    /// Returns true if the flow is established and no packet has cast doubt on it.
    pub(crate) fn is_established(&self) -> bool {
        self.acknowledged
            && self.is_settled(UDP)
            && !self.is_closing()
            && !self.repeated
            && !self.picked_up
            && !self.data_sent
    }
    /// Returns true if another reply would change nothing in the state.
    pub(crate) fn is_settled(&self, protocol: u8) -> bool {
        let is_begun = self.acknowledged || protocol == UDP;
        let is_awaited = self.client_fin && self.awaits_answer_to_fin();
        self.answered && !self.reset && !self.renewed && is_begun && !is_awaited
    }
    pub(crate) fn gives_way(&self) -> bool {
        !self.acknowledged || self.is_closed() || self.awaits_answer_to_fin()
    }
    pub(crate) fn awaits_answer_to_fin(&self) -> bool {
        (self.client_fin || self.backend_fin) && !self.fin_answered
    }

    /// Returns true if a packet that would end an established connection has a number that only its
    /// sender knows; `other` is the last number that the other side has acknowledged.
    fn ends(&self, headers: &Headers, other: u32) -> bool {
        if !self.acknowledged {
            return true;
        }
        match headers.tuple.protocol {
            TCP => is_near(headers.sequence, other),
            // In SCTP, a host without the association sends back the tag of the other side.
            _ => [self.client_number, self.backend_number].contains(&headers.tag),
        }
    }
    /// Records a packet of the client. `is_trusted`: nobody else can have sent it.
    pub(crate) fn client_sends(&mut self, headers: &Headers, is_trusted: bool) {
        let (was_acknowledged, flags) = (self.acknowledged, headers.flags);
        let is_believed = is_trusted || self.ends(headers, self.backend_number);
        if flags & FIN != 0 {
            self.timestamp = headers.timestamp;
        }
        if flags & RST != 0 {
            self.reset |= is_believed;
        } else if flags & FIN != 0 {
            let is_believed = is_believed || self.client_fin;
            self.client_fin |= is_believed;
            if is_believed {
                self.client_proves(headers);
            }
        } else if headers.tuple.protocol != UDP && headers.begins() {
            self.renewed |= self.acknowledged;
            if !self.answered {
                self.repeated = self.client_number == first_number(headers);
                self.client_number = first_number(headers);
            }
        } else {
            self.fin_answered |= self.backend_fin && goes_on(headers);
            self.data_sent &= !goes_on(headers);
            self.go_on(headers);
            self.client_proves(headers);
        }
        if was_acknowledged {
            follow(&mut self.client_number, headers);
        }
    }
    /// Records what a client's packet proves about the backend's answer.
    fn client_proves(&mut self, headers: &Headers) {
        let acknowledges = headers.flags & (SYN | ACK) == ACK;
        let next = self.client_number;
        let proves = match headers.tuple.protocol {
            UDP => true,
            TCP if self.picked_up => acknowledges && is_near(headers.acknowledgement, next),
            TCP => acknowledges && headers.acknowledgement.wrapping_sub(next) < FAST_OPEN,
            _ => acknowledges && headers.tag == next,
        };
        if self.answered && !self.acknowledged && proves {
            self.acknowledged = true;
            self.repeated = false;
            self.picked_up = false;
        }
    }
    /// Data after a reset or SYN shows that these were forged.
    fn go_on(&mut self, headers: &Headers) {
        if goes_on(headers) {
            self.reset = false;
            self.renewed = false;
        }
    }
    /// Records the number that a packet of the backend acknowledges; called for every packet.
    pub(crate) fn backend_acknowledges(&mut self, headers: &Headers) {
        follow(&mut self.backend_number, headers);
    }
    /// Records a packet of the backend in the state.
    pub(crate) fn backend_sends(&mut self, headers: &Headers) {
        let (protocol, flags) = (headers.tuple.protocol, headers.flags);
        let is_believed = self.ends(headers, self.client_number);
        if flags & RST != 0 {
            self.reset |= is_believed;
        } else if flags & FIN != 0 {
            if is_believed || self.backend_fin {
                self.backend_first |= !self.client_fin;
                self.backend_fin = true;
            }
        } else if flags & (SYN | ACK) == SYN | ACK && (!self.acknowledged || self.renewed) {
            (self.backend_number, self.client_number) = match protocol {
                TCP => (headers.acknowledgement, headers.sequence.wrapping_add(1)),
                _ => (headers.tag, headers.initiate_tag),
            };
            self.answered = true;
            self.renewed = false;
        } else if self.picked_up && !self.answered && goes_on(headers) {
            // For a flow that began mid-stream, the backend's next segment is the answer.
            (self.backend_number, self.client_number) = (headers.acknowledgement, headers.sequence);
            self.answered = true;
            self.renewed = false;
        } else {
            self.answered |= protocol == UDP;
            self.data_sent |= self.is_established()
                && protocol == TCP
                && goes_on(headers)
                && headers.carries_data;
            self.fin_answered |= self.client_fin && goes_on(headers);
            self.go_on(headers);
        }
    }
}
