// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operations of a sequence and their text, one a line, so that a file can store a sequence.

use std::{fmt, net::SocketAddr, str::FromStr};

use proxy_common::Counter;

use crate::{
    errors::{About, Complaint, Error},
    kept::parsed,
    model::wire::{ICMP, ICMPV6, SCTP, TCP, Tuple, UDP},
    packets::{Kind, Packet, Shape},
    services::{Interface, NodeSettings, Service},
};

/// One operation of a sequence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    /// Only as the first operation: runs the sequence on a node with small tables.
    Tight,
    /// Only as the first operation: runs the sequence on a node that redirects packets past the
    /// stack; `true`: with XDP too.
    Past(bool),
    /// Adds or replaces a service.
    Apply(Service),
    Remove(String),
    Settings(NodeSettings),
    /// A client's packet arrives at this interface and is forwarded by the node's routes.
    Send(Interface, Packet),
    /// Whoever got the last packet of a client's conversation sends one back. The packet's tuple is
    /// that of the client's packets.
    Answer(Interface, Packet),
    /// A packet leaves the node; `true`: its process sends it, `false`: it came from the uplink.
    Out(bool, Packet),
    /// An ICMP error about the last packet or answer of a conversation arrives.
    Complain(Interface, Complaint),
    /// Time passes: so many times nine seconds.
    Wait(u64),
    /// The agent removes idle flows.
    Sweep,
    /// The agent ends and starts again.
    Restart,
    /// The packets of the operation before have moved these counters, one at each program.
    Counted(Vec<Counter>),
}

pub(crate) const PROTOCOLS: [(u8, &str); 5] = [
    (TCP, "tcp"),
    (UDP, "udp"),
    (SCTP, "sctp"),
    (ICMP, "icmp"),
    (ICMPV6, "icmpv6"),
];

pub(crate) fn name_of<T: PartialEq + Copy>(names: &[(T, &'static str)], value: T) -> &'static str {
    let found = names.iter().find(|(one, _)| *one == value);
    found.map_or("?", |(_, name)| name)
}

pub(crate) fn named<T: Copy>(names: &[(T, &'static str)], text: &str) -> Result<T, String> {
    let found = names.iter().find(|(_, name)| *name == text);
    found
        .map(|(one, _)| *one)
        .ok_or_else(|| format!("unknown word {text}"))
}

fn interface(text: &str) -> Result<Interface, String> {
    let found = Interface::ALL.into_iter().find(|one| one.name() == text);
    found.ok_or_else(|| format!("unknown interface {text}"))
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Apply(service) => write!(f, "service {service}"),
            Self::Remove(name) => write!(f, "remove {name}"),
            Self::Settings(settings) => write!(f, "settings{settings}"),
            Self::Send(interface, packet) => write!(f, "send {} {packet}", interface.name()),
            Self::Answer(interface, packet) => write!(f, "answer {} {packet}", interface.name()),
            Self::Complain(
                interface,
                Complaint {
                    error,
                    about,
                    quote,
                    tuple,
                },
            ) => {
                let (error, about) = (name_of(&Error::ALL, *error), name_of(&About::ALL, *about));
                let (protocol, Tuple { src, dst, .. }) =
                    (name_of(&PROTOCOLS, tuple.protocol), tuple);
                let name = interface.name();
                write!(
                    f,
                    "complain {name} {error} {about} {quote} {protocol} {src} > {dst}"
                )
            }
            Self::Out(true, packet) => write!(f, "out own {packet}"),
            Self::Out(false, packet) => write!(f, "out forwarded {packet}"),
            Self::Wait(steps) => write!(f, "wait {steps}"),
            Self::Sweep => f.write_str("sweep"),
            Self::Tight => f.write_str("tight"),
            Self::Past(false) => f.write_str("past"),
            Self::Past(true) => f.write_str("past xdp"),
            Self::Restart => f.write_str("restart"),
            Self::Counted(counters) => {
                f.write_str("=")?;
                let mut names = counters.iter().map(|counter| counter.name());
                names.try_for_each(|name| write!(f, " {name}"))
            }
        }
    }
}

fn counter(name: &str) -> Result<Counter, String> {
    let found = Counter::ALL.iter().find(|one| one.name() == name);
    found
        .copied()
        .ok_or_else(|| format!("unknown counter {name}"))
}

impl FromStr for Operation {
    type Err = String;
    fn from_str(line: &str) -> Result<Self, String> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let by_interface = || -> Result<_, String> {
            let (name, rest) = rest.split_once(' ').ok_or("too short")?;
            Ok((interface(name)?, rest.parse()?))
        };
        Ok(match verb {
            "service" => Self::Apply(rest.parse()?),
            "remove" => Self::Remove(rest.into()),
            "settings" => Self::Settings(rest.parse()?),
            "send" => {
                let (interface, packet) = by_interface()?;
                Self::Send(interface, packet)
            }
            "answer" => {
                let (interface, packet) = by_interface()?;
                Self::Answer(interface, packet)
            }
            "complain" => {
                let words: Vec<&str> = rest.split_whitespace().collect();
                let [at, error, about, quote, protocol, src, ">", dst] = words[..] else {
                    return Err(
                        "it is: INTERFACE ERROR ABOUT BYTES PROTOCOL CLIENT > SERVICE".into(),
                    );
                };
                let tuple = Tuple {
                    protocol: named(&PROTOCOLS, protocol)?,
                    src: parsed(src)?,
                    dst: parsed(dst)?,
                };
                let complaint = Complaint {
                    error: named(&Error::ALL, error)?,
                    about: named(&About::ALL, about)?,
                    quote: parsed(quote)?,
                    tuple,
                };
                Self::Complain(interface(at)?, complaint)
            }
            "out" => match rest.split_once(' ') {
                Some(("own", packet)) => Self::Out(true, packet.parse()?),
                Some((_, packet)) => Self::Out(false, packet.parse()?),
                None => return Err("too short".into()),
            },
            "wait" => Self::Wait(parsed(rest)?),
            "sweep" => Self::Sweep,
            "tight" => Self::Tight,
            "past" => Self::Past(rest == "xdp"),
            "restart" => Self::Restart,
            "=" => Self::Counted(
                rest.split_whitespace()
                    .map(counter)
                    .collect::<Result<_, _>>()?,
            ),
            _ => return Err(format!("unknown verb {verb}")),
        })
    }
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tuple { protocol, src, dst } = self.tuple;
        let (protocol, kind) = (
            name_of(&PROTOCOLS, protocol),
            name_of(&Kind::ALL, self.kind),
        );
        write!(f, "{protocol} {src} > {dst} {kind}")?;
        let Shape {
            payload,
            options,
            vlan,
            unsummed,
            bad_sum,
            other_mac,
            fragment,
            cut,
            ahead,
            acked,
            timestamp,
        } = self.shape;
        if timestamp != 0 {
            write!(f, " timestamp={timestamp}")?;
        }
        for (name, n) in [("payload", payload), ("options", options), ("cut", cut)] {
            if n > 0 {
                write!(f, " {name}={n}")?;
            }
        }
        for (name, n) in [("ahead", ahead), ("acked", acked)] {
            if n != 0 {
                write!(f, " {name}={n}")?;
            }
        }
        for (name, is) in [
            ("vlan", vlan),
            ("unsummed", unsummed),
            ("bad-sum", bad_sum),
            ("other-mac", other_mac),
        ] {
            if is {
                write!(f, " {name}")?;
            }
        }
        match fragment {
            Some((id, true)) => write!(f, " first={id}"),
            Some((id, false)) => write!(f, " later={id}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Packet {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [protocol, src, ">", dst, kind, ref rest @ ..] = words[..] else {
            return Err("a packet is: PROTOCOL FROM > TO KIND [SHAPE ...]".into());
        };
        let mut shape = Shape::default();
        for word in rest {
            match word.split_once('=').unwrap_or((word, "")) {
                ("payload", n) => shape.payload = parsed(n)?,
                ("options", n) => shape.options = parsed(n)?,
                ("cut", n) => shape.cut = parsed(n)?,
                ("ahead", n) => shape.ahead = parsed(n)?,
                ("acked", n) => shape.acked = parsed(n)?,
                ("timestamp", n) => shape.timestamp = parsed(n)?,
                ("vlan", _) => shape.vlan = true,
                ("unsummed", _) => shape.unsummed = true,
                ("bad-sum", _) => shape.bad_sum = true,
                ("other-mac", _) => shape.other_mac = true,
                ("first", id) => shape.fragment = Some((parsed(id)?, true)),
                ("later", id) => shape.fragment = Some((parsed(id)?, false)),
                _ => return Err(format!("unknown shape {word}")),
            }
        }
        let (src, dst): (SocketAddr, SocketAddr) = (parsed(src)?, parsed(dst)?);
        let protocol = named(&PROTOCOLS, protocol)?;
        Ok(Self {
            tuple: Tuple { protocol, src, dst },
            kind: named(&Kind::ALL, kind)?,
            shape,
        })
    }
}
