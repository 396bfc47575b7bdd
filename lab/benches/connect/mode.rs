// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where pods' connections are translated.

use lab::node::{
    settings::{Forwarding, SocketBalancing},
    topology::Plumbing,
};

/// Where pods' connections are translated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Mode {
    /// No agent on either node, every call direct: the measurement error
    None,
    /// No agent, but through the node's stack, which packets between bridged pods do not pass
    /// otherwise: the best result that the packet path can have
    Stack,
    /// At the socket (`socketBalancing: all`)
    Socket,
    /// On the packet path (`socketBalancing: host`)
    Packet,
    /// The same past the node's stack (`forwarding: auto`)
    Auto,
    /// At the socket, and what is translated there leaves past the node's stack as well
    SocketAuto,
}

impl Mode {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Stack => "stack",
            Self::Socket => "socket",
            Self::Packet => "packet",
            Self::Auto => "auto",
            Self::SocketAuto => "both",
        }
    }
    /// Returns the agent's settings; None if there is no agent.
    pub(crate) const fn settings(self) -> Option<(SocketBalancing, Forwarding)> {
        match self {
            Self::None | Self::Stack => None,
            Self::Socket => Some((SocketBalancing::All, Forwarding::Stack)),
            Self::Packet => Some((SocketBalancing::Host, Forwarding::Stack)),
            Self::Auto => Some((SocketBalancing::Host, Forwarding::Auto)),
            Self::SocketAuto => Some((SocketBalancing::All, Forwarding::Auto)),
        }
    }
    pub(crate) const fn has_agent(self) -> bool {
        self.settings().is_some()
    }
    /// Returns whether packets to and from services are redirected past the node's stack.
    pub(crate) const fn is_past(self) -> bool {
        matches!(self.settings(), Some((_, Forwarding::Auto)))
    }
    /// Returns whether this mode can be measured with pods joined like this. Packets of routed pods
    /// pass the stack in any mode, so `Stack` shows nothing new.
    pub(crate) fn fits(self, plumbing: Plumbing) -> bool {
        self != Self::Stack || plumbing == Plumbing::Bridge
    }
}
