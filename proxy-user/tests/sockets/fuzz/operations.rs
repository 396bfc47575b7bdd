// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operations of a sequence and their text, one a line, as in a file of a stored sequence.

use std::{fmt, net::SocketAddr, str::FromStr};

use clap::ValueEnum;

use crate::{
    kept::{parsed, word},
    service::{Endpoint, Service},
    world::From,
};

/// The numbers that services can have.
pub(crate) const NUMBERS: [u8; 5] = [1, 2, 3, 4, 5];

/// Returns true if services with this number are served over UDP, false for TCP.
pub(crate) fn is_udp(number: u8) -> bool {
    number <= 3
}

/// Returns the service with this number, without endpoints.
pub(crate) fn numbered(number: u8) -> Service {
    Service::new(number, if is_udp(number) { "UDP" } else { "TCP" }, &[])
}

/// What kind of socket an operation opens: protocol, address family, and where its process runs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Kind {
    pub(crate) udp: bool,
    pub(crate) family: Family,
    pub(crate) place: From,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
pub(crate) enum Family {
    #[default]
    V4,
    V6,
    /// An IPv6 socket that can also use IPv4, by mapped addresses.
    Dual,
}

/// An operation of a sequence. The number of a socket or service names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    /// Adds or replaces a service.
    Apply(Service),
    Remove(u8),
    /// Restarts the agent.
    Restart,
    Open(u8, Kind),
    Connect(u8, SocketAddr),
    /// Disconnects a UDP socket, by a connect to AF_UNSPEC.
    Disconnect(u8),
    /// Sends a text to an address (None: to the peer), and waits for an answer.
    Ask(u8, Option<SocketAddr>),
    Close(u8),
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Apply(service) => {
                write!(f, "service {}", service.number)?;
                for Endpoint { pod, weight } in &service.endpoints {
                    match weight {
                        1 => write!(f, " {pod}")?,
                        _ => write!(f, " {pod}*{weight}")?,
                    }
                }
                for (name, is) in [
                    ("affinity", service.affinity),
                    ("local", service.local),
                    ("far", service.far),
                ] {
                    if is {
                        write!(f, " {name}")?;
                    }
                }
                Ok(())
            }
            Self::Remove(number) => write!(f, "remove {number}"),
            Self::Restart => f.write_str("restart"),
            Self::Open(socket, kind) => {
                let protocol = if kind.udp { "udp" } else { "tcp" };
                let (family, place) = (word(kind.family), word(kind.place));
                write!(f, "open {socket} {protocol} {family} {place}")
            }
            Self::Connect(socket, to) => write!(f, "connect {socket} {to}"),
            Self::Disconnect(socket) => write!(f, "disconnect {socket}"),
            Self::Ask(socket, None) => write!(f, "ask {socket}"),
            Self::Ask(socket, Some(to)) => write!(f, "ask {socket} {to}"),
            Self::Close(socket) => write!(f, "close {socket}"),
        }
    }
}

impl FromStr for Operation {
    type Err = String;
    fn from_str(line: &str) -> Result<Self, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        Ok(match words[..] {
            ["service", number, ref rest @ ..] => Self::Apply(service(parsed(number)?, rest)?),
            ["remove", number] => Self::Remove(parsed(number)?),
            ["restart"] => Self::Restart,
            ["open", socket, protocol, family, place] => {
                let kind = Kind {
                    udp: protocol == "udp",
                    family: Family::from_str(family, false)?,
                    place: From::from_str(place, false)?,
                };
                Self::Open(parsed(socket)?, kind)
            }
            ["connect", socket, to] => Self::Connect(parsed(socket)?, parsed(to)?),
            ["disconnect", socket] => Self::Disconnect(parsed(socket)?),
            ["ask", socket] => Self::Ask(parsed(socket)?, None),
            ["ask", socket, to] => Self::Ask(parsed(socket)?, Some(parsed(to)?)),
            ["close", socket] => Self::Close(parsed(socket)?),
            _ => return Err("unknown operation".into()),
        })
    }
}

fn service(number: u8, words: &[&str]) -> Result<Service, String> {
    let mut service = numbered(number);
    for word in words {
        match *word {
            "affinity" => service.affinity = true,
            "local" => service.local = true,
            "far" => service.far = true,
            endpoint => {
                let (pod, weight) = endpoint.split_once('*').unwrap_or((endpoint, "1"));
                let (pod, weight) = (parsed(pod)?, parsed(weight)?);
                service.endpoints.push(Endpoint { pod, weight });
            }
        }
    }
    Ok(service)
}
