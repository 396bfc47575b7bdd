// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names and fields as text, and what has them: services and settings. For the files of stored
//! sequences, which are of IPv4 and become the same ones of IPv6.

use std::{fmt, mem, net::Ipv4Addr, str::FromStr};

use proxy_common::{EndpointSet, FrontendKind, Settings};

use crate::{
    kept::{Sequence, parsed},
    model::wire::{ICMP, ICMPV6, SCTP, TCP, Tuple, UDP},
    odd::GRE,
    operations::Operation,
    services::{Backend, Frontend, NodeSettings, Service},
};

const PROTOCOLS: [(u8, &str); 8] = [
    (TCP, "tcp"),
    (UDP, "udp"),
    (SCTP, "sctp"),
    (ICMP, "icmp"),
    (ICMPV6, "icmpv6"),
    (GRE, "gre"),
    (4, "ipip"),
    (50, "esp"),
];

const KINDS: [(FrontendKind, &str); 4] = [
    (FrontendKind::ClusterIp, "cluster-ip"),
    (FrontendKind::ExternalIp, "external-ip"),
    (FrontendKind::LoadBalancer, "balancer"),
    (FrontendKind::NodePort, "node-port"),
];

/// The flags of a node's settings. A word says that a flag is not as by default.
const FLAGS: [(u32, &str); 6] = [
    (Settings::MASQUERADE_ALL, "masquerade-all"),
    (Settings::DETECTS_PODS, "no-detection"),
    (Settings::PODS_BY_INTERFACE, "by-interface"),
    (Settings::MARK_ONLY, "mark-only"),
    (Settings::RESET_UNKNOWN, "no-resets"),
    (Settings::ANSWER_PING, "ping"),
];

/// Returns the name of a value, by a table of all names.
fn name_of<T: PartialEq + Copy>(names: &[(T, &'static str)], value: T) -> &'static str {
    let found = names.iter().find(|(one, _)| *one == value);
    found.map_or("?", |(_, name)| name)
}

/// Returns the value with this name.
fn named<T: Copy>(names: &[(T, &'static str)], text: &str) -> Result<T, String> {
    let found = names.iter().find(|(_, name)| *name == text);
    let (one, _) = found.ok_or_else(|| format!("unknown word {text}"))?;
    Ok(*one)
}

impl fmt::Display for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, src, dst } = self;
        write!(f, "{} {src} > {dst}", name_of(&PROTOCOLS, *protocol))
    }
}

impl Tuple {
    pub(crate) fn parse(protocol: &str, src: &str, dst: &str) -> Result<Self, String> {
        let protocol = named(&PROTOCOLS, protocol)?;
        Ok(Self::new(protocol, parsed(src)?, parsed(dst)?))
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, name_of(&PROTOCOLS, self.protocol))?;
        for Frontend { kind, at, local } in &self.frontends {
            let local = if *local { "/local" } else { "" };
            write!(f, " {}={at}{local}", name_of(&KINDS, *kind))?;
        }
        for Backend { at, sets, weight } in &self.backends {
            write!(f, " backend={at}/{}", sets.0)?;
            if *weight != 1 {
                write!(f, "*{weight}")?;
            }
        }
        if self.affinity > 0 {
            write!(f, " affinity={}", self.affinity)?;
        }
        if self.is_maglev {
            write!(f, " selection=maglev")?;
        }
        let mut sources = self.sources.iter();
        sources.try_for_each(|range| write!(f, " source={range}"))
    }
}

impl FromStr for Service {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let (Some(name), Some(protocol)) = (words.next(), words.next()) else {
            fail!("a service is: NAME PROTOCOL [PART ...]");
        };
        let mut service = Self {
            name: name.into(),
            protocol: named(&PROTOCOLS, protocol)?,
            ..Self::default()
        };
        for word in words {
            let (part, value) = word.split_once('=').ok_or("a part is NAME=VALUE")?;
            let (at, more) = value.split_once('/').unwrap_or((value, ""));
            match part {
                "affinity" => service.affinity = parsed(value)?,
                "selection" => service.is_maglev = value == "maglev",
                "source" => service.sources.push(parsed(value)?),
                "backend" => {
                    let (sets, weight) = more.split_once('*').unwrap_or((more, "1"));
                    service.backends.push(Backend {
                        at: parsed(at)?,
                        sets: EndpointSet(parsed(sets)?),
                        weight: parsed(weight)?,
                    });
                }
                kind => service.frontends.push(Frontend {
                    kind: named(&KINDS, kind)?,
                    at: parsed(at)?,
                    local: more == "local",
                }),
            }
        }
        Ok(service)
    }
}

impl fmt::Display for NodeSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let others = self.flags ^ Self::default().flags;
        for (_, name) in FLAGS.iter().filter(|(flag, _)| others & flag != 0) {
            write!(f, " {name}")?;
        }
        let allocated = if self.allocated { " allocated" } else { "" };
        write!(f, "{allocated} ports={}-{}", self.ports.0, self.ports.1)
    }
}

impl FromStr for NodeSettings {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut settings = Self::default();
        for word in text.split_whitespace() {
            match word.split_once('=') {
                Some(("ports", range)) => {
                    let (low, high) = range.split_once('-').ok_or("ports are LOW-HIGH")?;
                    settings.ports = (parsed(low)?, parsed(high)?);
                }
                _ if word == "allocated" => settings.allocated = true,
                _ => settings.flags ^= named(&FLAGS, word)?,
            }
        }
        Ok(settings)
    }
}

/// Returns a sequence of IPv4 with every address in its place of IPv6: see `services`.
pub(crate) fn in_v6(sequence: &Sequence<Operation>) -> Sequence<Operation> {
    let is_other = |one: char| !one.is_ascii_digit() && one != '.';
    let text = sequence.to_string().replace(" icmp ", " icmpv6 ");
    let mut changed = String::new();
    let mut is_range = false;
    for part in text.split_inclusive(is_other) {
        let (word, end) = part.split_at(part.trim_end_matches(is_other).len());
        let is_length = mem::replace(&mut is_range, false);
        if let Ok(v4) = word.parse() {
            is_range = end == "/";
            let v6 = address(v4);
            changed += &if end == ":" { format!("[{v6}]") } else { v6 };
        } else if is_length {
            let length: u8 = word.parse().expect("a length");
            changed += &(96 + length).to_string();
        } else {
            changed += word;
        }
        changed += end;
    }
    changed.parse().expect("a sequence")
}

fn address(v4: Ipv4Addr) -> String {
    match v4.octets() {
        _ if v4 == Ipv4Addr::LOCALHOST => "::1".to_owned(),
        [10, 40, c, d] => format!("fd00:40:0:{c}::{d}"),
        [172, 30, c, d] => format!("fd00:30::{c}{d:02}"),
        [192, 168, c, d] => format!("fd00:c0:{}::{d}", c - 40),
        [198, 51, _, d] => format!("2001:db8:51::{d}"),
        [203, 0, _, d] => format!("2001:db8:113::{d}"),
        _ => "::".to_owned(),
    }
}
