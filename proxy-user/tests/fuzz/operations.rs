// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operations of a sequence and their text, one a line, so that a file can store a sequence.

use std::{fmt, str::FromStr};

use clap::ValueEnum;
use proxy_common::Counter;

use crate::{
    errors::{About, Complaint, Error},
    kept::{parsed, word},
    model::wire::Tuple,
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

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Apply(service) => write!(f, "service {service}"),
            Self::Remove(name) => write!(f, "remove {name}"),
            Self::Settings(settings) => write!(f, "settings{settings}"),
            Self::Send(interface, packet) => write!(f, "send {} {packet}", interface.name()),
            Self::Answer(interface, packet) => write!(f, "answer {} {packet}", interface.name()),
            Self::Complain(interface, complaint) => {
                write!(f, "complain {} {complaint}", interface.name())
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
    let mut all = Counter::ALL.iter().copied();
    all.find(|one| one.name() == name)
        .ok_or_else(|| format!("unknown counter {name}"))
}

impl FromStr for Operation {
    type Err = String;
    fn from_str(line: &str) -> Result<Self, String> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (first, more) = rest.split_once(' ').unwrap_or((rest, ""));
        let interface = || Interface::from_str(first, false);
        Ok(match verb {
            "service" => Self::Apply(rest.parse()?),
            "remove" => Self::Remove(rest.into()),
            "settings" => Self::Settings(rest.parse()?),
            "send" => Self::Send(interface()?, more.parse()?),
            "answer" => Self::Answer(interface()?, more.parse()?),
            "complain" => Self::Complain(interface()?, more.parse()?),
            "out" => Self::Out(first == "own", more.parse()?),
            "wait" => Self::Wait(parsed(rest)?),
            "sweep" => Self::Sweep,
            "tight" => Self::Tight,
            "past" => Self::Past(rest == "xdp"),
            "restart" => Self::Restart,
            "=" => {
                let counters = rest.split_whitespace().map(counter);
                Self::Counted(counters.collect::<Result<_, _>>()?)
            }
            _ => return Err(format!("unknown verb {verb}")),
        })
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (error, about) = (word(self.error), word(self.about));
        write!(f, "{error} {about} {} {}", self.quote, self.tuple)
    }
}

impl FromStr for Complaint {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [error, about, quote, protocol, src, ">", dst] = words[..] else {
            fail!("it is: INTERFACE ERROR ABOUT BYTES PROTOCOL CLIENT > SERVICE");
        };
        Ok(Self {
            error: Error::from_str(error, false)?,
            about: About::from_str(about, false)?,
            quote: parsed(quote)?,
            tuple: Tuple::parse(protocol, src, dst)?,
        })
    }
}

/// A field of a packet's shape: a flag is NAME, a number NAME=NUMBER, none if false or 0.
enum Value<'a> {
    Flag(&'a mut bool),
    Number(&'a mut i64),
}

/// A field's word, and how it is reached.
type Field = (&'static str, fn(&mut Shape) -> Value<'_>);

impl Shape {
    const FIELDS: [Field; 10] = [
        ("vlan", |shape| Value::Flag(&mut shape.vlan)),
        ("unsummed", |shape| Value::Flag(&mut shape.unsummed)),
        ("bad-sum", |shape| Value::Flag(&mut shape.bad_sum)),
        ("other-mac", |shape| Value::Flag(&mut shape.other_mac)),
        ("timestamp", |shape| Value::Number(&mut shape.timestamp)),
        ("payload", |shape| Value::Number(&mut shape.payload)),
        ("options", |shape| Value::Number(&mut shape.options)),
        ("cut", |shape| Value::Number(&mut shape.cut)),
        ("ahead", |shape| Value::Number(&mut shape.ahead)),
        ("acked", |shape| Value::Number(&mut shape.acked)),
    ];
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.tuple, word(self.kind))?;
        let mut shape = self.shape;
        for (name, field) in Shape::FIELDS {
            match field(&mut shape) {
                Value::Flag(true) => write!(f, " {name}")?,
                Value::Number(number) if *number != 0 => write!(f, " {name}={number}")?,
                _ => {}
            }
        }
        match shape.fragment {
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
            fail!("a packet is: PROTOCOL FROM > TO KIND [SHAPE ...]");
        };
        let mut shape = Shape::default();
        for word in rest {
            match word.split_once('=') {
                Some(("first", id)) => shape.fragment = Some((parsed(id)?, true)),
                Some(("later", id)) => shape.fragment = Some((parsed(id)?, false)),
                of_field => {
                    let (name, number) = of_field.unwrap_or((*word, ""));
                    let mut fields = Shape::FIELDS.into_iter();
                    let found = fields.find(|(known, _)| *known == name);
                    let (_, field) = found.ok_or_else(|| format!("unknown word {word}"))?;
                    match field(&mut shape) {
                        Value::Flag(flag) => *flag = true,
                        Value::Number(field) => *field = parsed(number)?,
                    }
                }
            }
        }
        Ok(Self {
            tuple: Tuple::parse(protocol, src, dst)?,
            kind: Kind::from_str(kind, false)?,
            shape,
        })
    }
}
