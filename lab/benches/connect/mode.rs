// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who translates what pods send, and where.

use lab::node::{
    settings::{Forwarding, SocketBalancing},
    topology::Plumbing,
};

/// Who translates, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Mode {
    /// No agent on either node, every call direct: what the instrument itself shows
    None,
    /// No agent, by way of the node's stack, which bridged pods' packets to each other do not take: what the packet
    /// path can reach at best
    Stack,
    /// At the socket (`socketBalancing: all`)
    Socket,
    /// On the packet path (`socketBalancing: host`)
    Packet,
    /// The same past the node's stack (`forwarding: redirect`)
    Redirect,
}

impl Mode {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Stack => "stack",
            Self::Socket => "socket",
            Self::Packet => "packet",
            Self::Redirect => "redirect",
        }
    }
    /// The agent's settings; none without an agent.
    pub(crate) const fn settings(self) -> Option<(SocketBalancing, Forwarding)> {
        match self {
            Self::None | Self::Stack => None,
            Self::Socket => Some((SocketBalancing::All, Forwarding::Stack)),
            Self::Packet => Some((SocketBalancing::Host, Forwarding::Stack)),
            Self::Redirect => Some((SocketBalancing::Host, Forwarding::Redirect)),
        }
    }
    pub(crate) const fn has_agent(self) -> bool {
        self.settings().is_some()
    }
    /// Routed pods have no other way than the stack.
    pub(crate) fn fits(self, plumbing: Plumbing) -> bool {
        self != Self::Stack || plumbing == Plumbing::Bridge
    }
}
