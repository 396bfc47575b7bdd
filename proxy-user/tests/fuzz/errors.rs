// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes frames with ICMP errors, which quote the packet of another frame.

use std::net::IpAddr;

use crate::{
    model::wire::{self, ICMP, ICMPV6, Tuple, sum},
    packets::{SENDER_MAC, octets},
};

/// The type of an ICMP error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Error {
    Unreachable,
    TooBig,
    TimeExceeded,
    Parameter,
    Redirect,
}

impl Error {
    pub(crate) const ALL: [(Self, &'static str); 5] = [
        (Self::Unreachable, "unreachable"),
        (Self::TooBig, "too-big"),
        (Self::TimeExceeded, "time-exceeded"),
        (Self::Parameter, "parameter"),
        (Self::Redirect, "redirect"),
    ];

    const fn type_and_code(self, v6: bool) -> [u8; 2] {
        match (self, v6) {
            (Self::Unreachable, false) => [3, 1],
            (Self::TooBig, false) => [3, 4],
            (Self::TimeExceeded, false) => [11, 0],
            (Self::Parameter, false) => [12, 0],
            (Self::Redirect, false) => [5, 1],
            (Self::Unreachable, true) => [1, 3],
            (Self::TooBig, true) => [2, 0],
            (Self::TimeExceeded, true) => [3, 0],
            (Self::Parameter, true) => [4, 1],
            (Self::Redirect, true) => [137, 0],
        }
    }
}

/// Who sends an ICMP error, and which packet of a conversation the error quotes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum About {
    /// A router behind the node sends the error and quotes the client's packet as it left the node.
    Request,
    /// The client sends the error and quotes the answer as received.
    Answer,
    /// The node sends the error to the client and quotes the packet between ingress and egress.
    Inside,
}

impl About {
    pub(crate) const ALL: [(Self, &'static str); 3] = [
        (Self::Request, "request"),
        (Self::Answer, "answer"),
        (Self::Inside, "inside"),
    ];
}

/// An ICMP error to send about a conversation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Complaint {
    pub(crate) error: Error,
    pub(crate) about: About,
    /// Number of quoted bytes of the transport header and payload, at least eight.
    pub(crate) quote: u8,
    /// The tuple of the client's packets, which identifies the conversation.
    pub(crate) tuple: Tuple,
}

/// Returns the frame of an ICMP error from `src` to `dst` that quotes the packet in the frame
/// `about`; None if `about` is no IP packet.
pub(crate) fn frame(
    error: Error,
    quote: u8,
    (src, dst): (IpAddr, IpAddr),
    mac: [u8; 6],
    about: &[u8],
) -> Option<Vec<u8>> {
    let quoted = wire::read(about)?;
    let end = about.len().min(quoted.l4 + usize::from(quote.max(8)));
    let v6 = src.is_ipv6();
    let mut message = error.type_and_code(v6).to_vec();
    message.extend([0, 0, 0, 0, 5, 120]);
    if v6 && error == Error::Redirect {
        message.extend([0; 32]);
        message.extend([4, 8, 0, 0, 0, 0, 0, 0]);
    }
    message.extend(&about[quoted.l3..end]);
    let protocol = if v6 { ICMPV6 } else { ICMP };
    let (from, to) = (octets(src), octets(dst));
    let length = message.len() as u32;
    let pseudo = [&from[..], &to, &length.to_be_bytes(), &[0, 0, 0, protocol]].concat();
    let covered = if v6 { &pseudo[..] } else { &[] };
    let checksum = (!sum(&[covered, &message])).to_be_bytes();
    message[2..4].copy_from_slice(&checksum);
    let mut frame = [mac, SENDER_MAC].concat();
    if v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend((length as u16).to_be_bytes());
        frame.extend([protocol, 64]);
    } else {
        let total = (20 + length as u16).to_be_bytes();
        let mut header = vec![0x45, 0, total[0], total[1], 0, 9, 0, 0, 64, protocol, 0, 0];
        let checksum = (!sum(&[&header, &from, &to])).to_be_bytes();
        header[10..12].copy_from_slice(&checksum);
        frame.extend([8, 0]);
        frame.extend(header);
    }
    frame.extend(from);
    frame.extend(to);
    frame.extend(message);
    Some(frame)
}
