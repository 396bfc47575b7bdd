// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes stations of what the kernel, portolan's programs and nf_tables report of the packet.

use std::{
    iter,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    time::Instant,
};

use anyhow::Result;
use datapath::{
    follow::What,
    trace::{Trace, Wanted},
};
use linux::{NftTrace, NftTraced, PodNamespace, TracedTuple};
use proxy_common::{
    Addr, Counter, Port, Protocol, V6,
    trace::{
        Event, Filter, Tuple,
        follow::{Direction, End, Followed, SOURCES, Seen, Sighting},
    },
};

use super::{
    BETWEEN,
    endpoint::{self, EndpointFacts},
    rules::NftsWords,
    stations::{Did, Host, Rule, Station, Timed, in_order},
};
use crate::{
    explain::ExplainArgs,
    packets::{KernelRecorder, end, line::Line, name_cache::NameCache, widened},
};

/// The function that frees the packet of a test run, whose copy was put into an interface.
const TEST_RUN: &str = "bpf_prog_test_run_skb";

/// Everything that reports while it lives. Dropping it leaves nothing behind.
pub(super) struct Recorder {
    pub(super) kernel: KernelRecorder,
    trace: Option<Trace>,
    nft: Option<NftTrace>,
    known: NameCache,
    pub(super) sightings: Vec<Sighting>,
    events: Vec<Event>,
    rules: Vec<NftTraced>,
    client_port: u16,
    /// What the receiving namespace had dropped between the first packet and its repetition.
    dropped: Option<u64>,
    /// Which parts are missing, and why.
    pub(super) missing: Vec<String>,
}

impl Recorder {
    /// Begins to record the packets of this client, which has no address if the kernel chooses it.
    /// `ends`: the destinations that the packet may have. `interfaces`: names of those at which
    /// chains of their own may see it.
    pub(super) fn begin(
        args: &ExplainArgs,
        client: TracedTuple,
        ends: &[SocketAddr],
        interfaces: &[&str],
    ) -> Result<Self> {
        let protocol = Protocol(client.protocol);
        let address = client.client.unwrap_or(Ipv6Addr::UNSPECIFIED.into());
        let mut sources = [End::NONE; SOURCES];
        sources[0] = end(SocketAddr::new(address, client.client_port), protocol);
        let ends: Vec<_> = ends.iter().map(|to| end(*to, protocol)).collect();
        let what = What::Packet(Followed { sources, token: 0 }, &ends);
        let (kernel, lacks) = KernelRecorder::begin(what, "explain … --follow")?;
        let mut missing = Vec::from_iter(lacks);
        let known = NameCache::read(&args.pins.pin_dir, &args.names)?;
        let trace = trace(args, client).map_err(|error| {
            missing.push(format!("portolan's own programs: {error:#}"));
        });
        let nft = NftTrace::begin(client, interfaces).unwrap_or_else(|error| {
            missing.push(format!("nf_tables: {error}"));
            None
        });
        Ok(Self {
            kernel,
            trace: trace.ok(),
            nft,
            known,
            sightings: Vec::new(),
            events: Vec::new(),
            rules: Vec::new(),
            client_port: client.client_port,
            dropped: None,
            missing,
        })
    }

    /// Takes what has been reported since the last call.
    pub(super) fn poll(&mut self) {
        while let Some(sighting) = self.kernel.follower.take() {
            if sighting.seen == Seen::Freed as u8 && sighting.location != 0 {
                let freed = self.kernel.freed(&sighting);
                // Without a name and a reason, it may be that of the test run as well.
                let is_nameless = self.kernel.functions.is_empty();
                if freed.place == TEST_RUN || is_nameless && freed.reason == "NOT_SPECIFIED" {
                    continue;
                }
            }
            if self.client_port == 0 && sighting.direction == Direction::Request as u8 {
                self.client_port = sighting.tuple.src_port.host();
            }
            self.sightings.push(sighting);
        }
        let events = iter::from_fn(|| self.trace.as_mut()?.take());
        self.events.extend(events);
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
        Ok(self.kernel.follower.inject(interface, frame)?)
    }

    /// Whether an answer has left for the client.
    pub(super) fn has_answer(&self) -> bool {
        self.sightings.iter().any(|sighting| {
            sighting.direction == Direction::Answer as u8
                && sighting.seen == Seen::Sent as u8
                && sighting.namespace == self.kernel.own
        })
    }

    /// Returns the one of these endpoints that the packet was sent to.
    pub(super) fn sent_to(&self, endpoints: &[SocketAddr]) -> Option<SocketAddr> {
        let requests = self.sightings.iter();
        let requests = requests.filter(|one| one.direction == Direction::Request as u8);
        let mut ends = requests.map(|one| {
            let address = IpAddr::from(one.tuple.dst).to_canonical();
            SocketAddr::new(address, one.tuple.dst_port.host())
        });
        ends.rfind(|end| endpoints.contains(end))
    }

    /// Whether the kernel has freed the packet or an answer.
    pub(super) fn has_lost(&self) -> bool {
        self.sightings.iter().any(|one| self.kernel.is_loss(one))
    }

    /// Asks the receiving namespace, once, how many connections it has dropped so far.
    pub(super) fn look(&mut self, begun: Instant) {
        if self.dropped.is_some() || begun.elapsed() < BETWEEN {
            return;
        }
        // The other namespace in which a request was seen last.
        let reached = self.sightings.iter().rfind(|one| {
            one.direction == Direction::Request as u8
                && one.namespace != self.kernel.own
                && one.seen == Seen::Received as u8
        });
        let there = reached.and_then(|one| PodNamespace::with_inode(one.namespace));
        let dropped = there.and_then(|there| there.run(|| Ok(endpoint::dropped())).ok());
        self.dropped = Some(dropped.unwrap_or_else(endpoint::dropped));
    }

    /// Reads the facts of the namespace in which the packet arrived; None if it left this node, or
    /// the namespace is not visible. `client`: that of the client's pod.
    pub(super) fn endpoint(
        &self,
        client: Option<u32>,
        protocol: Protocol,
    ) -> Option<EndpointFacts> {
        let last = self.sightings.iter().rfind(|one| {
            one.direction == Direction::Request as u8
                && one.seen != Seen::Sent as u8
                && Some(one.namespace) != client
        })?;
        let address = IpAddr::from(last.tuple.dst).to_canonical();
        let at = SocketAddr::new(address, last.tuple.dst_port.host());
        let dropped = self.dropped;
        let look = || endpoint::read(protocol, at, dropped);
        if last.namespace == self.kernel.own {
            return Some(look());
        }
        let there = PodNamespace::with_inode(last.namespace)?;
        there.run(|| Ok(look())).ok()
    }

    /// Ends the recording and returns the stations. `client`: the namespace of the client's pod.
    pub(super) fn stations(&mut self, client: Option<u32>) -> Vec<Station> {
        // Its programs at the cgroup are detached before others' are looked for there.
        self.trace = None;
        let lost = self.kernel.follower.lost();
        let lost = (lost > 0).then(|| format!("{lost} reports were not read fast enough"));
        self.missing.extend(lost);
        let mut seen: Vec<Timed> = Vec::new();
        for sighting in &self.sightings {
            let host = match sighting.namespace {
                inode if inode == self.kernel.own => Host::Node,
                inode if Some(inode) == client => Host::Client,
                inode => Host::Other(inode),
            };
            let did = match sighting.seen {
                seen if seen == Seen::Received as u8 => Did::Received {
                    interface: self.kernel.interface(sighting),
                },
                seen if seen == Seen::Sent as u8 => Did::Sent {
                    interface: self.kernel.interface(sighting),
                    receiver: sighting.receiver,
                },
                _ => Did::Freed(self.kernel.freed(sighting)),
            };
            let mut directions = Direction::ALL.into_iter();
            let direction = directions.find(|one| *one as u8 == sighting.direction);
            let direction = direction.unwrap_or(Direction::Request);
            seen.push((sighting.time, Station::new(host, direction, did)));
        }
        for mut event in std::mem::take(&mut self.events) {
            if event.result < 0 && !event.before.leads_as(&event.after) {
                // Portolan's hook translated the call, and another program refused it.
                event.outcome = Counter::SocketTranslated as u32;
            } else if let Some(reason) = self.known.refusal(&event) {
                event.outcome = reason as u32;
            }
            if let Some(direction) = self.direction(&event.before, &event.after) {
                let line = Line::new(&event, event.time, &mut self.known);
                let did = Did::Ours(Box::new(line));
                seen.push((event.time, Station::new(Host::Node, direction, did)));
            }
        }
        in_order(seen, self.rules_met())
    }

    fn direction(&self, before: &Tuple, after: &Tuple) -> Option<Direction> {
        let port = Port::from_host(self.client_port);
        let is_from = [before, after].iter().any(|tuple| tuple.src_port == port);
        let is_to = [before, after].iter().any(|tuple| tuple.dst_port == port);
        // A socket call names the other end only.
        match before.src_port == Port::ANY || is_from {
            true => Some(Direction::Request),
            false => is_to.then_some(Direction::Answer),
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
                    let direction = match source == self.client_port {
                        true => Direction::Request,
                        false => Direction::Answer,
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
fn trace(args: &ExplainArgs, client: TracedTuple) -> Result<Trace> {
    let all = Filter::all(u64::MAX);
    let mut filter = Filter {
        port: Port::from_host(client.client_port),
        protocol: Protocol(client.protocol),
        ..all
    };
    filter.clients[0] = client.client.map_or(V6::UNSPECIFIED, widened);
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
