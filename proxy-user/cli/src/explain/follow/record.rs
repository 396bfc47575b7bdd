// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Collects what the kernel, portolan's programs and nf_tables report of the followed packet, and
//! turns it into stations.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use datapath::{
    follow::{Follower, What},
    trace::{Trace, TraceReport, Wanted},
};
use linux::{KernelFunctions, NftTrace, NftTraced, TracedTuple};
use proxy_common::{
    Addr, Counter, Port, Protocol, V6,
    trace::{
        Filter, Tuple,
        follow::{Direction, End, Followed, SOURCES, Seen, Sighting},
    },
};

use super::{
    rules::NftsWords,
    stations::{Did, Host, Rule, Station, Timed, in_order},
};
use crate::{
    explain::ExplainArgs,
    freed::{InterfaceNames, reasons::is_harmless, widened},
    rights::{SYSLOG, lacks},
    trace::{line::Line, names::Known, verdict::Verdict},
};

/// The function that frees the packet of a test run, whose copy was put into an interface.
const TEST_RUN: &str = "bpf_prog_test_run_skb";

/// Whose packet is followed.
#[derive(Clone, Debug)]
pub(super) struct Client {
    /// None for the address that the kernel chooses for a process of this node.
    pub(super) address: Option<IpAddr>,
    /// 0 for any.
    pub(super) port: u16,
    pub(super) v6: bool,
    pub(super) protocol: Protocol,
}

/// Everything that reports while it lives. Dropping it leaves nothing behind.
pub(super) struct Recorder {
    follower: Follower,
    functions: KernelFunctions,
    trace: Option<Trace>,
    nft: Option<NftTrace>,
    pub(super) known: Known,
    pub(super) sightings: Vec<Sighting>,
    events: Vec<TraceReport>,
    rules: Vec<NftTraced>,
    client_port: u16,
    /// Which parts are missing, and why.
    pub(super) missing: Vec<String>,
}

impl Recorder {
    /// Begins to record. `ends`: the destinations that the packet may have. `interfaces`: names of
    /// those at which chains of their own may see it.
    pub(super) fn begin(
        args: &ExplainArgs,
        client: &Client,
        ends: &[SocketAddr],
        interfaces: &[&str],
    ) -> Result<Self> {
        let end_of = |at: &SocketAddr| {
            End::new(
                widened(at.ip()),
                Port::from_host(at.port()),
                client.protocol,
            )
        };
        let mut sources = [End::NONE; SOURCES];
        sources[0] = End::new(
            client.address.map_or(V6::UNSPECIFIED, widened),
            Port::from_host(client.port),
            client.protocol,
        );
        let ends: Vec<_> = ends.iter().map(end_of).collect();
        let follower = Follower::attach(What::Packet(Followed { sources, token: 0 }, &ends))?;
        let functions = KernelFunctions::read();
        let mut missing = Vec::new();
        if functions.is_empty()
            && let Some(lacks) = lacks(SYSLOG, "explain … --follow")
        {
            missing.push(format!("the kernel's functions by name: {lacks}"));
        }
        let known = Known::read(&args.pins.pin_dir, super::Names::new(&args.names))?;
        let trace = trace(args, client).map_err(|error| {
            missing.push(format!("portolan's own programs: {error:#}"));
        });
        let tuple = TracedTuple {
            client: client.address,
            v6: client.v6,
            client_port: client.port,
            protocol: client.protocol.0,
        };
        let nft = NftTrace::begin(tuple, interfaces).unwrap_or_else(|error| {
            missing.push(format!("nf_tables: {error}"));
            None
        });
        Ok(Self {
            follower,
            functions,
            trace: trace.ok(),
            nft,
            known,
            sightings: Vec::new(),
            events: Vec::new(),
            rules: Vec::new(),
            client_port: client.port,
            missing,
        })
    }

    /// Takes what has been reported since the last call.
    pub(super) fn poll(&mut self) {
        while let Some(sighting) = self.follower.take() {
            // Without a name and a reason, it may be that of the test run as well.
            let is_unknown =
                self.functions.is_empty() && self.follower.reason(&sighting) == "NOT_SPECIFIED";
            let is_freed = sighting.seen == Seen::Freed as u8 && sighting.location != 0;
            if is_freed && (is_unknown || self.functions.at(sighting.location) == TEST_RUN) {
                continue;
            }
            if self.client_port == 0 && sighting.direction == Direction::Request as u8 {
                self.client_port = sighting.tuple.src_port.host();
            }
            self.sightings.push(sighting);
        }
        if let Some(trace) = &mut self.trace {
            while let Some(event) = trace.take() {
                self.events.push(event);
            }
        }
        if let Some(nft) = &mut self.nft {
            match nft.take() {
                Ok(rules) => self.rules.extend(rules),
                Err(error) => {
                    self.missing.push(format!("nf_tables: {error}"));
                    self.nft = None;
                }
            }
        }
    }

    pub(super) fn inject(&mut self, interface: u32, frame: &[u8]) -> Result<()> {
        Ok(self.follower.inject(interface, frame)?)
    }

    /// Whether an answer has left for the client. `own`: inode number of this namespace.
    pub(super) fn has_answer(&self, own: u32) -> bool {
        self.sightings.iter().any(|sighting| {
            sighting.direction == Direction::Answer as u8
                && sighting.seen == Seen::Sent as u8
                && sighting.namespace == own
        })
    }

    /// Whether the kernel has freed the packet or an answer.
    pub(super) fn has_lost(&self) -> bool {
        self.sightings.iter().any(|sighting| {
            sighting.seen == Seen::Freed as u8 && !is_harmless(&self.follower.reason(sighting))
        })
    }

    /// Ends the recording and returns the stations. `client`: the namespace of the client's pod.
    pub(super) fn stations(&mut self, own: u32, client: Option<u32>) -> Vec<Station> {
        // Its programs at the cgroup are detached before others' are looked for there.
        self.trace = None;
        let lost = self.follower.lost();
        if lost > 0 {
            self.missing
                .push(format!("{lost} reports were not read fast enough"));
        }
        let mut names = InterfaceNames::new(own);
        let mut seen: Vec<Timed> = Vec::new();
        for sighting in &self.sightings {
            let host = match sighting.namespace {
                inode if inode == own => Host::Node,
                inode if Some(inode) == client => Host::Client,
                inode => Host::Other(inode),
            };
            let interface = names.of(sighting.namespace, sighting.interface);
            let kind = Seen::ALL
                .into_iter()
                .find(|one| *one as u8 == sighting.seen);
            let did = match kind {
                Some(Seen::Received) => Did::Received { interface },
                Some(Seen::Sent) => Did::Sent {
                    interface,
                    receiver: sighting.receiver,
                },
                _ => Did::Freed {
                    interface,
                    reason: self.follower.reason(sighting),
                    place: self.functions.at(sighting.location),
                },
            };
            let direction = direction_of(sighting.direction);
            seen.push((
                sighting.time,
                Station {
                    host,
                    direction,
                    did,
                },
            ));
        }
        let events = std::mem::take(&mut self.events);
        for mut report in events {
            let event = &mut report.event;
            if event.result < 0 && !event.before.leads_as(&event.after) {
                // Portolan's hook translated the call, and another program refused it.
                event.outcome = Counter::SocketTranslated as u32;
            } else if let Some(reason) = self.known.refusal(event) {
                event.outcome = reason as u32;
            }
            let Some(direction) = self.direction(&event.before, &event.after) else {
                continue;
            };
            let line = Line::new(event, event.time, &mut self.known);
            let did = Did::Ours {
                hook: line.hook,
                verdict: Verdict::of(event.counter()),
                outcome: line.outcome,
                meaning: line.reason,
                page: line.page,
                ends: line.ends(),
                error: line.error,
                interface: line.interface,
            };
            let host = Host::Node;
            seen.push((
                event.time,
                Station {
                    host,
                    direction,
                    did,
                },
            ));
        }
        in_order(seen, self.rules_met())
    }

    fn direction(&self, before: &Tuple, after: &Tuple) -> Option<Direction> {
        let port = Port::from_host(self.client_port);
        let is_any = |from: bool| {
            [before, after].iter().any(|tuple| {
                let own = if from { tuple.src_port } else { tuple.dst_port };
                own == port
            })
        };
        // A socket call names the other end only.
        if before.src_port == Port::ANY || is_any(true) {
            Some(Direction::Request)
        } else if is_any(false) {
            Some(Direction::Answer)
        } else {
            None
        }
    }

    /// The rules that the first packet of each direction met.
    fn rules_met(&self) -> Vec<(Direction, Rule)> {
        let mut packets: Vec<(u32, Direction)> = Vec::new();
        let (mut met, mut words) = (Vec::new(), NftsWords::default());
        for traced in &self.rules {
            let known = packets.iter().find(|(packet, _)| *packet == traced.packet);
            let direction = match (known, traced.ports) {
                (Some((_, direction)), _) => *direction,
                (None, Some([source, _])) => {
                    let direction = if source == self.client_port {
                        Direction::Request
                    } else {
                        Direction::Answer
                    };
                    if packets.iter().any(|(_, known)| *known == direction) {
                        continue;
                    }
                    packets.push((traced.packet, direction));
                    direction
                }
                (None, None) => continue,
            };
            let chain = [traced.family, &traced.table, &traced.chain];
            let rule = Rule {
                chain: chain.join(" "),
                handle: traced.handle,
                verdict: traced.verdict.clone(),
                words: traced.handle.and_then(|number| words.rule(chain, number)),
            };
            met.push((direction, rule));
        }
        met
    }
}

/// Asks portolan's programs for everything with the client's address and port.
fn trace(args: &ExplainArgs, client: &Client) -> Result<Trace> {
    let all = Filter::all(u64::MAX);
    let mut filter = Filter {
        port: Port::from_host(client.port),
        protocol: client.protocol,
        ..all
    };
    filter.clients[0] = client.address.map_or(V6::UNSPECIFIED, widened);
    let wanted = Wanted {
        filter,
        // A socket call has the other end only.
        calls: Filter {
            process: std::process::id(),
            ..all
        },
        rate: 0,
    };
    Ok(Trace::open(&args.pins.pin_dir, wanted)?)
}

fn direction_of(number: u8) -> Direction {
    let found = Direction::ALL.into_iter().find(|one| *one as u8 == number);
    found.unwrap_or(Direction::Request)
}
