// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel and portolan's programs report of packets: for `trace` and `explain --follow`.

pub(crate) mod line;
pub(crate) mod name_cache;
pub(crate) mod reasons;

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
};

use anyhow::Result;
use datapath::follow::{Follower, What};
use linux::{KernelFunctions, PodNamespace};
use proxy_common::{
    Addr, Counter, Port, Protocol, V4, V6,
    trace::follow::{End, Seen, Sighting},
};
use serde::Serialize;

use self::reasons::is_harmless;
use crate::frame::{SYSLOG, interface_name, lacks};

/// How the kernel freed a packet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Freed {
    /// The interface at which the packet was; empty if at none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) interface: String,
    /// The kernel's name of the reason.
    pub(crate) reason: String,
    /// The function that freed it.
    pub(crate) place: String,
}

/// Records where the kernel sees packets and why it frees them. Dropping it leaves nothing behind.
pub(crate) struct KernelRecorder {
    pub(crate) follower: Follower,
    pub(crate) functions: KernelFunctions,
    /// Inode number of this process's network namespace.
    pub(crate) own: u32,
    /// Names of interfaces. Key: the network namespace's inode number, and the index.
    interfaces: HashMap<(u32, u32), String>,
}

impl KernelRecorder {
    /// Begins to record for a command, as an operator enters it. Returns also what reports lack.
    pub(crate) fn begin(what: What<'_>, command: &str) -> Result<(Self, Option<String>)> {
        let recorder = Self {
            follower: Follower::attach(what)?,
            functions: KernelFunctions::read(),
            own: linux::own_namespace_inode()?,
            interfaces: HashMap::new(),
        };
        let is_nameless = recorder.functions.is_empty();
        let lacks = lacks(SYSLOG, command).filter(|_| is_nameless);
        let lacks = lacks.map(|lacks| format!("the kernel's functions by name: {lacks}"));
        Ok((recorder, lacks))
    }

    /// Whether the packet was lost there.
    pub(crate) fn is_loss(&self, sighting: &Sighting) -> bool {
        sighting.seen == Seen::Freed as u8 && !is_harmless(&self.follower.reason(sighting))
    }

    pub(crate) fn freed(&mut self, sighting: &Sighting) -> Freed {
        Freed {
            interface: self.interface(sighting),
            reason: self.follower.reason(sighting),
            place: self.functions.at(sighting.location),
        }
    }

    /// Returns the name of the interface at which the packet was; empty if at none.
    pub(crate) fn interface(&mut self, sighting: &Sighting) -> String {
        let (namespace, index) = (sighting.namespace, sighting.interface);
        if index == 0 {
            return String::new();
        }
        if namespace == self.own {
            return interface_name(index);
        }
        let known = self.interfaces.entry((namespace, index));
        let name = known.or_insert_with(|| {
            let there = PodNamespace::with_inode(namespace);
            let name = there.and_then(|there| there.run(|| Ok(interface_name(index))).ok());
            name.unwrap_or_else(|| format!("interface {index}"))
        });
        name.clone()
    }
}

/// Returns an address and port as the programs write them.
pub(crate) fn end(at: SocketAddr, protocol: Protocol) -> End {
    End::new(widened(at.ip()), Port::from_host(at.port()), protocol)
}

/// Returns an address as the programs write it: IPv4 as IPv4-mapped.
pub(crate) fn widened(address: IpAddr) -> V6 {
    match address {
        IpAddr::V4(v4) => V4::from(v4).widened(),
        IpAddr::V6(v6) => v6.into(),
    }
}

/// What became of a packet or socket call.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Forward,
    Reject,
    Drop,
    Untouched,
}

impl Verdict {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Reject => "reject",
            Self::Drop => "drop",
            Self::Untouched => "untouched",
        }
    }
    /// Returns the verdict of a counter. Those of what was refused are named by it.
    pub(crate) fn of(counter: Counter) -> Self {
        match counter {
            Counter::Untouched | Counter::SocketUntouched | Counter::UntouchedFlow => {
                Self::Untouched
            }
            one if !one.refuses() => Self::Forward,
            one if one.name().starts_with("rejected") => Self::Reject,
            _ => Self::Drop,
        }
    }
    /// Returns all outcomes with this verdict, one bit for each.
    pub(crate) fn outcomes(self) -> u64 {
        let all = Counter::ALL.iter();
        let own = all.filter(|counter| Self::of(**counter) == self);
        own.fold(0, |bits, counter| bits | 1 << *counter as u32)
    }
}
