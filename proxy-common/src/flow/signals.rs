// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a packet says about the state of its connection: TCP flags, or SCTP chunks that mean the
//! same.

/// A packet's signals about the state of its flow: TCP flags, or the SCTP chunk that means the
/// same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct Signals(pub u8);

impl Signals {
    /// The bits are at the positions of TCP's flags.
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const ACK: u8 = 0x10;
    pub const NONE: Self = Self(0);

    #[inline(always)]
    pub const fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }
    /// Whether a connection begins: SYN without ACK or RST.
    #[inline(always)]
    pub const fn begins(self) -> bool {
        self.0 & (Self::SYN | Self::ACK | Self::RST) == Self::SYN
    }
    /// Whether the sender says that it has received the answer to its SYN: ACK without SYN. A
    /// repeated SYN says nothing about that.
    #[inline(always)]
    pub const fn acknowledges(self) -> bool {
        self.0 & (Self::SYN | Self::ACK) == Self::ACK
    }
    /// Whether the packet is the answer to a SYN: SYN+ACK.
    #[inline(always)]
    pub const fn answers(self) -> bool {
        self.0 & (Self::SYN | Self::ACK | Self::RST) == Self::SYN | Self::ACK
    }
    /// Whether the packet is data, or a bare acknowledgement, of an open connection.
    #[inline(always)]
    pub const fn goes_on(self) -> bool {
        self.0 & (Self::SYN | Self::ACK | Self::RST | Self::FIN) == Self::ACK
    }
    /// Returns the signals of an SCTP packet by the type of its first chunk (RFC 9260, 3.2).
    #[inline(always)]
    pub const fn from_sctp_chunk(chunk: u8) -> Self {
        match chunk {
            1 => Self(Self::SYN),
            2 => Self(Self::SYN | Self::ACK),
            6 | 14 => Self(Self::RST),
            _ => Self(Self::ACK),
        }
    }
}
