// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Settings of the agent that tests and benchmarks vary.

/// Where connections are translated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum SocketBalancing {
    /// At the sockets of pods and node processes.
    All,
    /// At the sockets of node processes; pods' connections per packet.
    Host,
}

impl SocketBalancing {
    pub const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Host => "host",
        }
    }
}

/// Whether XDP takes packets of known flows at the uplink.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Xdp {
    Off,
    Native,
    Generic,
}

impl Xdp {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }
}

/// How translated packets leave the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Forwarding {
    /// By its stack.
    Stack,
    /// Past it.
    Redirect,
    /// Past it where nothing needs it.
    Auto,
}

impl Forwarding {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stack => "stack",
            Self::Redirect => "redirect",
            Self::Auto => "auto",
        }
    }
}
