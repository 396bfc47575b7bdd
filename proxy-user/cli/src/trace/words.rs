// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses the words of a filter into a tree. The words are those of pcap-filter where they fit.
//! `compile` turns the tree into what the kernel evaluates.

use std::net::IpAddr;

use ipnet::IpNet;
use proxy_common::{
    Counter, Protocol,
    trace::{Hook, filter::Term},
};

use crate::{BadInput, args::ServiceArg};

/// The source and the destination, as bits of [`Term`].
const BOTH: u32 = Term::SRC | Term::DST;

/// One condition of a filter. In `Net`, `Ports` and `Pod`, the first number says which ends are
/// meant: source, destination or both, as bits of [`Term`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Word {
    Net(u32, IpNet),
    Ports(u32, u16, u16),
    Protocol(Protocol),
    Family(u8),
    /// Any of these hooks: one bit for each.
    Hooks(u32),
    Interface(String),
    Process(u32),
    Service(ServiceArg),
    /// A pod: which ends are meant, its namespace and its name.
    Pod(u32, String, String),
    /// A set of outcomes (counters): one bit for each.
    Outcomes(u64),
}

/// The filter as the user has written it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Tree {
    Word(Word),
    Not(Box<Tree>),
    And(Box<Tree>, Box<Tree>),
    Or(Box<Tree>, Box<Tree>),
}

/// The words of filters, for --help and for error messages.
pub(crate) const WORDS: &str = "host, net, port, portrange, src, dst, tcp, udp, sctp, icmp, icmp6, ip, ip6, inbound, outbound, interface, service, \
backend, client, pod, verdict, outcome, packets, calls, connect, sendmsg, recvmsg, getpeername, bind, process, and, or, not";

/// Parses a filter, given as arguments of the command line; returns None for an empty one.
pub(crate) fn parse(arguments: &[String]) -> Result<Option<Tree>, BadInput> {
    let text = arguments.join(" ");
    let mut spaced = String::new();
    for c in text.chars() {
        match c {
            '(' | ')' | '!' => spaced.extend([' ', c, ' ']),
            c => spaced.push(c),
        }
    }
    let mut words = Words {
        words: spaced.split_whitespace().collect(),
        at: 0,
    };
    if words.words.is_empty() {
        return Ok(None);
    }
    let tree = words.any(0)?;
    match words.next() {
        None => Ok(Some(tree)),
        Some(word) => Err(bad(format!("{word:?} is not expected there"))),
    }
}

fn bad(what: String) -> BadInput {
    BadInput(format!("filter: {what}"))
}

/// How deep parentheses and negations may be nested: each level is a recursive call.
const DEPTH: u32 = 32;

struct Words<'a> {
    words: Vec<&'a str>,
    at: usize,
}

impl<'a> Words<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).copied()
    }
    fn next(&mut self) -> Option<&'a str> {
        let word = self.peek();
        self.at += 1;
        word
    }
    fn takes(&mut self, words: &[&str]) -> bool {
        let taken = self.peek().is_some_and(|word| words.contains(&word));
        self.at += usize::from(taken);
        taken
    }
    fn value(&mut self, of: &str) -> Result<&'a str, BadInput> {
        self.next()
            .ok_or_else(|| bad(format!("a value is missing after {of:?}")))
    }

    fn any(&mut self, depth: u32) -> Result<Tree, BadInput> {
        if depth > DEPTH {
            return Err(bad("too many parentheses".into()));
        }
        let mut tree = self.all(depth)?;
        while self.takes(&["or", "||"]) {
            tree = Tree::Or(Box::new(tree), Box::new(self.all(depth)?));
        }
        Ok(tree)
    }
    fn all(&mut self, depth: u32) -> Result<Tree, BadInput> {
        let mut tree = self.one(depth)?;
        loop {
            let joined = self.takes(&["and", "&&"]);
            // `and` may be left out, as in "tcp port 80".
            let ends = matches!(self.peek(), None | Some(")" | "or" | "||"));
            if !joined && ends {
                return Ok(tree);
            }
            tree = Tree::And(Box::new(tree), Box::new(self.one(depth)?));
        }
    }
    fn one(&mut self, depth: u32) -> Result<Tree, BadInput> {
        if self.takes(&["not", "!"]) {
            if depth > DEPTH {
                return Err(bad("too many negations".into()));
            }
            return Ok(Tree::Not(Box::new(self.one(depth + 1)?)));
        }
        if self.takes(&["("]) {
            let tree = self.any(depth + 1)?;
            if !self.takes(&[")"]) {
                return Err(bad("a closing parenthesis is missing".into()));
            }
            return Ok(tree);
        }
        self.word()
    }

    fn word(&mut self) -> Result<Tree, BadInput> {
        let word = self
            .next()
            .ok_or_else(|| bad("something is missing at its end".into()))?;
        let sides = match word {
            "src" => Term::SRC,
            "dst" => Term::DST,
            _ => return self.plain(word).map(Tree::Word),
        };
        let kinds = ["host", "net", "port", "portrange", "pod"];
        let kind = match self.peek() {
            Some(kind) if kinds.contains(&kind) => {
                self.at += 1;
                kind
            }
            // `host` may be left out, as in "src 10.0.0.1".
            _ => "host",
        };
        self.sided(kind, sides).map(Tree::Word)
    }

    /// Parses the value of a word that can be limited to the source or the destination. `kind`: the
    /// word; `sides`: which ends are meant, as bits of [`Term`].
    fn sided(&mut self, kind: &str, sides: u32) -> Result<Word, BadInput> {
        let value = self.value(kind)?;
        Ok(match kind {
            "host" => Word::Net(sides, host(value)?),
            "net" => Word::Net(sides, net(value)?),
            "port" => {
                let port = port(value)?;
                Word::Ports(sides, port, port)
            }
            "portrange" => {
                let (low, high) = value
                    .split_once('-')
                    .ok_or_else(|| bad(format!("{value:?} is no range of ports, as 8000-8080")))?;
                let (low, high) = (port(low)?, port(high)?);
                if low > high {
                    return Err(bad(format!("the range {value} is empty")));
                }
                Word::Ports(sides, low, high)
            }
            _ => pod(value, sides)?,
        })
    }

    fn plain(&mut self, word: &str) -> Result<Word, BadInput> {
        let hooks = |hooks: &[Hook]| {
            Word::Hooks(hooks.iter().fold(0, |bits, hook| bits | 1 << *hook as u32))
        };
        let calls: Vec<_> = Hook::ALL
            .into_iter()
            .filter(|one| one.is_socket())
            .collect();
        Ok(match word {
            "host" | "net" | "port" | "portrange" | "pod" => self.sided(word, BOTH)?,
            "service" => {
                let value = self.value(word)?;
                let service = value.parse();
                Word::Service(service.map_err(|error| bad(format!("service {value}: {error}")))?)
            }
            "client" | "backend" => {
                let value = self.value(word)?;
                match value.strip_prefix("pod/") {
                    Some(name) => pod(name, BOTH)?,
                    None => Word::Net(BOTH, net(value)?),
                }
            }
            "tcp" => Word::Protocol(Protocol::TCP),
            "udp" => Word::Protocol(Protocol::UDP),
            "sctp" => Word::Protocol(Protocol::SCTP),
            "icmp" => Word::Protocol(Protocol::ICMP),
            "icmp6" => Word::Protocol(Protocol::ICMPV6),
            "ip" => Word::Family(4),
            "ip6" => Word::Family(6),
            "inbound" => hooks(&[Hook::Ingress]),
            "outbound" => hooks(&[Hook::Egress, Hook::Loopback]),
            "packets" => hooks(&[Hook::Ingress, Hook::Egress, Hook::Loopback]),
            "calls" => hooks(&calls),
            "interface" => Word::Interface(self.value(word)?.to_owned()),
            "process" => {
                let value = self.value(word)?;
                let id = value.parse().ok().filter(|id| *id > 0);
                Word::Process(id.ok_or_else(|| bad(format!("{value:?} is no process id")))?)
            }
            "verdict" => {
                let value = self.value(word)?;
                let verdict = Verdict::ALL.into_iter().find(|one| one.name() == value);
                let verdict = verdict.ok_or_else(|| {
                    let all = Verdict::ALL.map(Verdict::name).join(", ");
                    bad(format!("there is no verdict {value:?}; use one of {all}"))
                })?;
                Word::Outcomes(verdict.outcomes())
            }
            "outcome" => {
                let value = self.value(word)?;
                let mut all = Counter::ALL.iter();
                let counter = all.find(|one| one.name() == value).ok_or_else(|| {
                    bad(format!(
                        "there is no outcome {value:?}; `portolan counters` lists them"
                    ))
                })?;
                Word::Outcomes(1 << *counter as u32)
            }
            word => match calls.iter().find(|hook| hook.name() == word) {
                Some(hook) => hooks(&[*hook]),
                // `host` may be left out, as in "not 10.0.0.1".
                None if word.parse::<IpAddr>().is_ok() => Word::Net(BOTH, host(word)?),
                None => return Err(bad(format!("{word:?} is not known; the words are {WORDS}"))),
            },
        })
    }
}

fn host(text: &str) -> Result<IpNet, BadInput> {
    let address: IpAddr = text.parse().map_err(|_| match text.parse::<IpNet>() {
        Ok(_) => bad(format!("{text:?} is a range: write net {text}")),
        Err(_) => bad(format!(
            "{text:?} is no IP address; names are asked for by service NAMESPACE/NAME or pod NAMESPACE/NAME"
        ))
    })?;
    Ok(address.into())
}

fn net(text: &str) -> Result<IpNet, BadInput> {
    let range = text.parse::<IpAddr>().map(IpNet::from);
    let range = range.or_else(|_| text.parse::<IpNet>());
    range
        .map(|range| range.trunc())
        .map_err(|_| bad(format!("{text:?} is no IP address or range, as 10.0.0.0/8")))
}

fn port(text: &str) -> Result<u16, BadInput> {
    text.parse()
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| bad(format!("{text:?} is no port number from 1 to 65535")))
}

fn pod(text: &str, sides: u32) -> Result<Word, BadInput> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok(Word::Pod(sides, namespace.into(), name.into()))
        }
        _ => Err(bad(format!("pod {text:?}: use NAMESPACE/NAME"))),
    }
}

/// What became of a packet or call, in one word; each outcome has one of these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Forward,
    Reject,
    Drop,
    Untouched,
}

impl Verdict {
    const ALL: [Self; 4] = [Self::Forward, Self::Reject, Self::Drop, Self::Untouched];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Reject => "reject",
            Self::Drop => "drop",
            Self::Untouched => "untouched",
        }
    }
    /// Returns the verdict that an outcome (a counter) belongs to.
    pub(crate) const fn of(counter: Counter) -> Self {
        match counter {
            Counter::Untouched | Counter::SocketUntouched | Counter::UntouchedFlow => {
                Self::Untouched
            }
            Counter::RejectedNoEndpoint
            | Counter::RejectedUnserved
            | Counter::RejectedUnknownFlow
            | Counter::RejectedSilently
            | Counter::BindRefused => Self::Reject,
            Counter::IcmpRedirectDropped
            | Counter::DroppedNoLocalEndpoint
            | Counter::DroppedSource
            | Counter::DroppedUnallocated
            | Counter::DroppedFragment
            | Counter::DroppedFlowTableFull
            | Counter::DroppedNoTuple
            | Counter::DroppedNoMasqueradePort
            | Counter::DroppedInconsistent
            | Counter::DroppedRewrite
            | Counter::DroppedByMark
            | Counter::DroppedHeld => Self::Drop,
            Counter::ForwardedHit
            | Counter::ForwardedNew
            | Counter::ForwardedElsewhere
            | Counter::ForwardedMidStream
            | Counter::ForwardedByXdp
            | Counter::ReplyByXdp
            | Counter::PastTheStack
            | Counter::ReplyPassed
            | Counter::ReplyUnmasqueraded
            | Counter::ReplyTranslated
            | Counter::Masqueraded
            | Counter::IcmpTranslated
            | Counter::SocketTranslated
            | Counter::SocketRestored
            | Counter::SocketTableFull
            | Counter::FlowEvictedEarly
            | Counter::EchoAnswered => Self::Forward,
        }
    }
    /// Returns all outcomes with this verdict, one bit for each.
    pub(crate) fn outcomes(self) -> u64 {
        let all = Counter::ALL.iter();
        let own = all.filter(|counter| Self::of(**counter) == self);
        own.fold(0, |bits, counter| bits | 1 << *counter as u32)
    }
}
