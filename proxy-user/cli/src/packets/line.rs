// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Formats an event of the trace as a line of text, and as JSON.

use std::{
    fmt::{self, Write},
    net::{IpAddr, SocketAddr},
};

use config::runbooks;
use k8s_openapi::jiff::Timestamp;
use proxy_common::{
    Protocol,
    trace::{Event, Hook, Tuple},
};
use serde::Serialize;

use super::{Verdict, name_cache::NameCache};
use crate::{frame::interface_name, sockets::Process, table::Tone};

/// The source or destination of a packet or socket call, with names if they are known.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct End {
    pub(crate) address: IpAddr,
    /// None if the packet has no ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<String>,
    /// The service port that this address and port are a frontend of, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) service: Option<String>,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}", SocketAddr::new(self.address, port))?,
            None => write!(f, "{}", self.address)?,
        }
        match (&self.service, &self.pod) {
            (Some(name), _) => write!(f, " (service {name})"),
            (None, Some(name)) => write!(f, " (pod {name})"),
            _ => Ok(()),
        }
    }
}

/// The source and the destination of a packet or socket call.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Ends {
    pub(crate) from: End,
    pub(crate) to: End,
}

/// An event of the trace, with names instead of ids.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Line {
    pub(crate) time: String,
    /// Where the event happened: `ingress`, `egress`, `loopback`, or the name of a socket call.
    pub(crate) hook: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) interface: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) process: Option<Process>,
    pub(crate) protocol: String,
    /// The TCP flags as tcpdump writes them, or the type of an ICMP message; else empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) signals: String,
    /// Source and destination before the program; None if no IP header could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) before: Option<Ends>,
    /// Source and destination after the program; None if they are the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) after: Option<Ends>,
    /// The service port that the event concerns, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) service: Option<String>,
    pub(crate) verdict: &'static str,
    pub(crate) outcome: &'static str,
    /// How a packet goes on: past the stack, or asking it; None for the usual path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<&'static str>,
    pub(crate) reason: &'static str,
    /// The error that the socket call returns; None if it succeeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) page: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) length: Option<u32>,
}

impl Line {
    /// Creates a line from an event, with names for its ids. `time`: nanoseconds since 1970.
    pub(crate) fn new(event: &Event, time: u64, known: &mut NameCache) -> Self {
        let hook = Hook::ALL[usize::from(event.hook) % Hook::ALL.len()];
        let counter = event.counter();
        let protocol = protocol_name(&event.before);
        let verdict = Verdict::of(counter);
        let before = ends(&event.before, known, hook);
        let moved = event.after.family != 0 && !event.before.leads_as(&event.after);
        let after = moved.then(|| ends(&event.after, known, hook)).flatten();
        let service = known.service(event.service).map(str::to_owned);
        let service = service.or_else(|| {
            // The frontend is the destination or the source of packets that were refused before
            // the program knew the service port.
            let before = before.as_ref()?;
            let from = after.as_ref().map_or(&before.from, |after| &after.from);
            before.to.service.clone().or_else(|| from.service.clone())
        });
        Self {
            time: stamp(time),
            hook: hook.name(),
            interface: (!hook.is_socket()).then(|| interface_name(event.interface)),
            process: hook.is_socket().then(|| Process {
                name: command(&event.command),
                pid: event.process,
            }),
            protocol: match protocol {
                "" => format!("protocol {}", event.before.protocol.0),
                name => name.to_owned(),
            },
            signals: match hook.is_socket() {
                true => String::new(),
                false => signals(&event.before),
            },
            before,
            after,
            service,
            verdict: verdict.name(),
            outcome: counter.name(),
            path: match event.result {
                // The answer to a refused packet is sent back.
                _ if hook.is_socket() || matches!(verdict, Verdict::Reject | Verdict::Drop) => None,
                Event::PAST_THE_STACK => Some("past the stack"),
                Event::ASKS_THE_STACK => Some("asks the stack"),
                _ => None,
            },
            reason: counter.help().trim(),
            error: (hook.is_socket() && event.result < 0)
                .then(|| nix::errno::Errno::from_raw(-event.result).desc().to_owned()),
            page: runbooks::of_outcome(counter),
            length: (!hook.is_socket()).then_some(event.length),
        }
    }

    /// Returns the colour of the line, which depends on the verdict.
    pub(crate) fn tone(&self) -> Tone {
        match self.verdict {
            "drop" => Tone::Bad,
            "reject" => Tone::Warn,
            "forward" => Tone::Good,
            _ => Tone::Plain,
        }
    }

    pub(crate) fn outcome(&self) -> String {
        let error = self.error.iter();
        let error: String = error.map(|error| format!(" ({error})")).collect();
        let path = self.path.iter();
        let path: String = path.map(|path| format!(", {path}")).collect();
        let (outcome, reason) = (self.outcome, self.reason);
        format!("{} {outcome}{path}{error}: {reason}", self.verdict)
    }

    /// Returns the event as one line of text. `paint` adds the colour to the outcome.
    pub(crate) fn text(&self, paint: impl Fn(&str) -> String) -> String {
        let at = match (&self.interface, &self.process) {
            (Some(interface), _) => format!(" {interface} {}", self.hook),
            (_, Some(process)) => format!(" {}[{}] {}", process.name, process.pid, self.hook),
            _ => String::new(),
        };
        let what = after_space(&self.signals);
        let (protocol, ends) = (&self.protocol, self.ends());
        let mut line = format!("{}{at} {protocol}{what}  {ends}", clock(&self.time));
        if let Some(service) = &self.service
            && !line.contains(service.as_str())
        {
            line += &format!("  [{service}]");
        }
        line + "  " + &paint(&self.outcome())
    }

    pub(crate) fn hook_label(&self) -> String {
        match &self.interface {
            Some(name) => format!("{} of {name}", self.hook),
            None => self.hook.to_owned(),
        }
    }

    /// Returns the text of source and destination, and of what the translation has changed.
    pub(crate) fn ends(&self) -> String {
        let Some(Ends { from, to }) = &self.before else {
            return "(no IP header could be read)".to_owned();
        };
        let mut text = if from.address.is_unspecified() && self.process.is_some() {
            format!("> {to}")
        } else {
            format!("{from} > {to}")
        };
        if let Some(after) = &self.after {
            let (moved_from, moved_to) = (after.from != *from, after.to != *to);
            _ = match (moved_from, moved_to) {
                (true, true) if self.verdict == Verdict::Reject.name() => {
                    write!(text, "  =>  answered {} > {}", after.from, after.to)
                }
                (true, true) => write!(text, "  =>  {} > {}", after.from, after.to),
                (true, false) => write!(text, "  =>  from {}", after.from),
                _ => write!(text, "  =>  to {}", after.to),
            };
        }
        text
    }
}

/// Formats a time as text. `time`: nanoseconds since 1970.
pub(crate) fn stamp(time: u64) -> String {
    let stamp = Timestamp::from_nanosecond(time.into()).unwrap_or_default();
    format!("{stamp:.6}")
}

/// Returns the time of day of a stamp: who sees packets as they come needs no date.
pub(crate) fn clock(time: &str) -> &str {
    let time = time.split_once('T').map_or("", |(_, time)| time);
    time.trim_end_matches('Z')
}

/// Returns a text behind a space; nothing if it is empty.
pub(crate) fn after_space(text: &str) -> String {
    match text {
        "" => String::new(),
        text => format!(" {text}"),
    }
}

fn command(bytes: &[u8]) -> String {
    let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    // A process can choose any name for itself, so control characters are replaced.
    let name = String::from_utf8_lossy(name);
    let plain = |c: char| if c.is_control() { '?' } else { c };
    name.chars().map(plain).collect()
}

pub(crate) fn protocol_name(tuple: &Tuple) -> &'static str {
    match tuple.protocol {
        Protocol::ICMPV6 => "ICMPv6",
        Protocol::ANY => "",
        protocol => match protocol.name() {
            "?" => "",
            name => name,
        },
    }
}

pub(crate) fn signals(tuple: &Tuple) -> String {
    if tuple.kind & Tuple::LATER_FRAGMENT != 0 {
        return "(later fragment)".to_owned();
    }
    match tuple.protocol {
        Protocol::TCP => {
            let names = [(2, 'S'), (1, 'F'), (4, 'R'), (8, 'P'), (16, '.')].into_iter();
            let set = names.filter(|(bit, _)| tuple.signals & bit != 0);
            format!("[{}]", set.map(|(_, name)| name).collect::<String>())
        }
        Protocol::ICMP | Protocol::ICMPV6 => format!("type {}", tuple.signals),
        _ => String::new(),
    }
}

pub(crate) fn ends(tuple: &Tuple, known: &mut NameCache, hook: Hook) -> Option<Ends> {
    if tuple.family == 0 {
        return None;
    }
    let name = protocol_name(tuple);
    let has_ports = tuple.kind & Tuple::LATER_FRAGMENT == 0
        && [Protocol::TCP, Protocol::UDP, Protocol::SCTP].contains(&tuple.protocol);
    let mut end = |address: IpAddr, port: u16| {
        let address = address.to_canonical();
        let service = known.frontend(SocketAddr::new(address, port), name);
        let service = service.map(str::to_owned);
        let is_plain = !address.is_unspecified() && !address.is_loopback();
        End {
            address,
            port: (has_ports || hook.is_socket()).then_some(port),
            pod: match service.is_none() && is_plain {
                true => known.pod(address),
                false => None,
            },
            service,
        }
    };
    Some(Ends {
        from: end(tuple.src.into(), tuple.src_port.host()),
        to: end(tuple.dst.into(), tuple.dst_port.host()),
    })
}

#[cfg(test)]
#[path = "line_tests.rs"]
mod tests;
