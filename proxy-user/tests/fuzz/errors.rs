// SPDX-License-Identifier: Apache-2.0 OR MIT
//! ICMP errors about conversations, from a router, the client or the node, with quoted packets.

use std::net::IpAddr;

use clap::ValueEnum;

use crate::{
    model::wire::{self, ICMP, ICMPV6, Tuple},
    packets::{SENDER_MAC, raw},
    run::Run,
    services::{self, Interface},
};

/// The type of an ICMP error.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub(crate) enum Error {
    Unreachable,
    TooBig,
    TimeExceeded,
    Parameter,
    Redirect,
}

impl Error {
    const fn type_and_code(self, v6: bool) -> [u8; 2] {
        let (of_v4, of_v6) = match self {
            Self::Unreachable => ([3, 1], [1, 3]),
            Self::TooBig => ([3, 4], [2, 0]),
            Self::TimeExceeded => ([11, 0], [3, 0]),
            Self::Parameter => ([12, 0], [4, 1]),
            Self::Redirect => ([5, 1], [137, 0]),
        };
        if v6 { of_v6 } else { of_v4 }
    }
}

/// Who sends an ICMP error, and which packet of a conversation the error quotes.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub(crate) enum About {
    /// A router behind the node sends the error and quotes the client's packet as it left the node.
    Request,
    /// The client sends the error and quotes the answer as received.
    Answer,
    /// The node sends the error to the client and quotes the packet between ingress and egress.
    Inside,
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

impl Complaint {
    /// Returns the frame of such an ICMP error from `src` to `dst` that quotes the packet in the
    /// frame `about`; None if `about` is no IP packet.
    fn frame(&self, (src, dst): (IpAddr, IpAddr), mac: [u8; 6], about: &[u8]) -> Option<Vec<u8>> {
        let quoted = wire::read(about)?;
        let end = about.len().min(quoted.l4 + usize::from(self.quote.max(8)));
        let v6 = src.is_ipv6();
        let mut message = self.error.type_and_code(v6).to_vec();
        message.extend([0, 0, 0, 0, 5, 120]);
        if v6 && self.error == Error::Redirect {
            message.extend([0; 32]);
            message.extend([4, 8, 0, 0, 0, 0, 0, 0]);
        }
        message.extend(&about[quoted.l3..end]);
        let protocol = if v6 { ICMPV6 } else { ICMP };
        Some(raw(mac, (src, dst), protocol, &message))
    }
}

impl Run<'_> {
    /// Sends an ICMP error about a conversation's last packet, if there was a packet.
    pub(crate) fn complain(&mut self, interface: Interface, it: &Complaint) -> Result<(), String> {
        let tuple = it.tuple;
        let Some(left) = self.left.get(&(interface.index(), tuple)).cloned() else {
            return Ok(());
        };
        let v6 = tuple.src.is_ipv6();
        let (client, service) = (tuple.src.ip(), tuple.dst.ip());
        let (by, ends, about) = match it.about {
            About::Request => {
                let by = Interface::towards(left.tuple.dst.ip());
                let ends = (services::outsider(200, v6), left.tuple.src.ip());
                (by, ends, Some(left.frame))
            }
            About::Answer => (interface, (client, service), left.answer),
            About::Inside => {
                let ends = (services::node(v6), client);
                (Interface::towards(client), ends, Some(left.inside))
            }
        };
        let is_inside = it.about == About::Inside;
        let mac = if is_inside { SENDER_MAC } else { by.mac() };
        match about.and_then(|about| it.frame(ends, mac, &about)) {
            Some(frame) if is_inside => self.hook(false, by, &frame, 0, true).map(drop),
            Some(frame) => self.through(by, &frame).map(drop),
            None => Ok(()),
        }
    }
}
