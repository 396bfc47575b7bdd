// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan explain --follow`: sends one real packet, or waits for the next one, and says what
//! every station did to it and which one lost it. `send` sends, `record` collects, `stations` puts
//! in order, `judge` decides.

mod endpoint;
mod judge;
mod programs;
mod record;
mod refusals;
mod rules;
mod send;
mod stations;

use std::{
    io,
    net::SocketAddr,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use datapath::read::{Asked, By, Explained};
use linux::{PodNamespace, TracedTuple};
use proxy_common::{Origin, Protocol};
use serde::Serialize;

use self::{
    judge::{Facts, judge},
    record::Recorder,
    rules::LegacyCounters,
    send::{Bound, Ending, WAIT, bind, frame},
    stations::{Station, StationRow},
};
use super::{ExplainArgs, resolve::Passage};
use crate::{
    finding::Finding,
    frame::{SYS_ADMIN, lacks, read_value},
};

/// How long the next packet is waited for.
const NEXT: Duration = Duration::from_secs(60);
/// How long further reports are waited for after the end.
const AFTER: Duration = Duration::from_millis(50);
const IDLE: Duration = Duration::from_millis(1);
/// By when a SYN was repeated: the kernel does so after a second.
const REPEATED: Duration = Duration::from_millis(1300);
/// After the first packet, and before its repetition.
const BETWEEN: Duration = Duration::from_millis(500);

/// What became of the followed packet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FollowedRow {
    /// How the packet came into being.
    pub(super) packet: String,
    pub(super) answered: bool,
    /// The endpoint that it was sent to; None if it was lost before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) endpoint: Option<SocketAddr>,
    /// One sentence: answered, or which station lost it.
    pub(super) sentence: String,
    pub(super) stations: Vec<StationRow>,
    /// Parts that this kernel or node cannot tell, and why.
    pub(super) missing: Vec<String>,
}

/// Who sends the packet.
enum Sender {
    /// A socket of this node, or of a pod.
    Socket(Bound, Option<PodNamespace>),
    /// The interface with this index is made to receive it.
    Interface(u32, [u8; 6]),
    /// The client itself.
    Next,
}

/// What became of a followed packet, and a finding if it was not answered.
type Outcome = (FollowedRow, Option<Finding>);

/// Follows one packet or, with --each, until each endpoint has had one. Returns one outcome of each
/// endpoint, the packets that were not answered first.
pub(super) fn all(
    args: &ExplainArgs,
    asked: &Asked,
    explained: &Explained,
    passage: &Passage,
) -> Result<Vec<Outcome>> {
    let frontend = explained.frontend.as_ref();
    let is_held = frontend.is_some_and(|one| one.affinity_timeout > 0);
    let most = if args.each && !is_held { 64 } else { 1 };
    let mut told: Vec<Outcome> = Vec::new();
    for _ in 0..most {
        let (row, finding) = run(args, asked, explained, passage)?;
        let is_over = row.endpoint.is_none();
        if !told.iter().any(|(known, _)| known.endpoint == row.endpoint) {
            told.push((row, finding));
        }
        if is_over || told.len() == explained.to.len() {
            break;
        }
    }
    told.sort_by_key(|(row, _)| row.answered);
    Ok(told)
}

/// Follows one packet.
fn run(
    args: &ExplainArgs,
    asked: &Asked,
    explained: &Explained,
    passage: &Passage,
) -> Result<Outcome> {
    if !matches!(asked.protocol, Protocol::TCP | Protocol::UDP) {
        bail!("--follow: only TCP and UDP packets can be followed");
    }
    let mut notes = Vec::new();
    let is_pod = explained.origin == Some(Origin::Pod);
    let sender = sender(args, asked, passage, is_pod, &mut notes)?;
    let v6 = asked.to.is_ipv6();
    let port = match &sender {
        Sender::Socket(bound, _) => bound.port,
        // Of the range that Linux lets clients choose from.
        Sender::Interface(..) => 32_768 + (linux::monotonic() >> 10) as u16 % 28_000,
        Sender::Next => asked.client_port,
    };
    let packet = match &sender {
        Sender::Socket(_, None) => "sent from a socket of this node".to_owned(),
        Sender::Socket(..) => "sent from a socket in the client's network namespace".to_owned(),
        Sender::Interface(..) => {
            let client = SocketAddr::new(asked.client, port);
            format!("put into the interface, as if {client} had sent it")
        }
        Sender::Next => "the client's next one".to_owned(),
    };
    let client = TracedTuple {
        client: (!matches!(sender, Sender::Socket(_, None))).then_some(asked.client),
        client_port: port,
        v6,
        protocol: asked.protocol.0,
    };
    let ends: Vec<_> = [asked.to].iter().chain(&explained.to).copied().collect();
    let interfaces: Vec<_> = passage.interfaces().into_iter().collect();
    let legacy = legacy(v6, &mut notes);
    let mut recorder = Recorder::begin(args, client, &ends, &interfaces)?;
    let (ending, pod) = match sender {
        Sender::Socket(bound, pod) => (ask(bound, asked.to, &mut recorder), pod),
        Sender::Interface(index, receiver) => {
            let sequence = linux::monotonic() as u32 >> 1;
            let frame = |reset| frame(asked, port, receiver, sequence, reset);
            recorder.inject(index, &frame(false)?)?;
            wait(&mut recorder);
            if asked.protocol == Protocol::TCP {
                // The reset's own way is of no interest: failing, it leaves a half-open connection
                // that the server gives up itself.
                _ = recorder.inject(index, &frame(true)?);
            }
            (Ending::NoSocket, None)
        }
        Sender::Next => {
            let seconds = NEXT.as_secs();
            eprintln!("portolan explain: waiting up to {seconds} s for the client's next packet");
            let begun = Instant::now();
            while recorder.sightings.is_empty() && begun.elapsed() < NEXT {
                recorder.poll();
                thread::sleep(IDLE);
            }
            if !recorder.sightings.is_empty() {
                wait(&mut recorder);
            }
            (Ending::NoSocket, None)
        }
    };
    let pod = pod.as_ref();
    let inode = pod.map(PodNamespace::inode).transpose()?;
    let stations = recorder.stations(inode);
    let endpoint = recorder.sent_to(&explained.to);
    let facts = Facts {
        ending,
        to: asked.to,
        is_datagram: asked.protocol == Protocol::UDP,
        legacy: legacy.map_or_else(Vec::new, |before| {
            let after = LegacyCounters::read(v6).unwrap_or_default();
            after.refused_since(&before)
        }),
        conntrack_full: conntrack_full(),
        foreign: programs::at_interfaces(args, &recorder, &stations, passage),
        cgroup: programs::at_cgroups(args, pod.and_then(PodNamespace::process), v6),
        endpoint: recorder.endpoint(inode, asked.protocol),
        stations,
    };
    notes.append(&mut recorder.missing);
    drop(recorder);
    let stations = facts.stations.iter();
    let stations = stations.filter(|one| !refusals::is_own_error(&facts, one));
    let stations = stations.map(Station::row).collect();
    let judged = judge(&facts);
    let row = FollowedRow {
        packet,
        answered: judged.is_ok(),
        endpoint,
        sentence: match &judged {
            Ok(sentence) => sentence.clone(),
            Err(loss) => format!("{}: {}", loss.about, loss.found),
        },
        stations,
        missing: notes,
    };
    Ok((row, judged.err()))
}

fn sender(
    args: &ExplainArgs,
    asked: &Asked,
    passage: &Passage,
    is_pod: bool,
    notes: &mut Vec<String>,
) -> Result<Sender> {
    if args.next {
        return Ok(Sender::Next);
    }
    let (protocol, v6) = (asked.protocol, asked.to.is_ipv6());
    if asked.by == By::NodeSocket {
        return Ok(Sender::Socket(bind(None, protocol, None, v6)?, None));
    }
    let place = passage.incoming.as_ref().context(
        "the interface that the client's packets come in by is not known: name it with --interface",
    )?;
    // Whether the calling thread's network namespace has the address.
    let has_address = || Ok(std::net::UdpSocket::bind((asked.client, 0)).is_ok());
    let behind = PodNamespace::behind(place.index).and_then(|pod| match pod {
        Some(pod) => pod.run(has_address).map(|has| Some((pod, has))),
        None => Ok(None),
    });
    match behind {
        Ok(Some((pod, true))) => {
            let bound = bind(Some(&pod), protocol, Some(asked.client), v6)?;
            return Ok(Sender::Socket(bound, Some(pod)));
        }
        Ok(Some(_)) => notes.push(format!("the namespace behind {} does not have the address {}: the packet was put into the interface", place.link.name, asked.client)),
        Ok(None) => {}
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            if is_pod && let Some(lacks) = lacks(SYS_ADMIN, "explain … --follow") {
                notes.push(format!("a socket of the client's own: {lacks}, with the host's processes in sight; the packet was put into the interface"));
            }
        }
        Err(error) => return Err(error).context("find the client's network namespace"),
    }
    let mac = place.link.mac.unwrap_or_default();
    Ok(Sender::Interface(place.index, mac))
}

/// Asks by the socket while all is recorded, until the packet and its repetition were lost.
fn ask(bound: Bound, to: SocketAddr, recorder: &mut Recorder) -> Ending {
    let (sender, ending) = mpsc::channel();
    thread::spawn(move || sender.send(bound.ask(to)));
    let begun = Instant::now();
    let ending = loop {
        recorder.poll();
        recorder.look(begun);
        match ending.recv_timeout(IDLE) {
            Ok(ending) => break ending,
            Err(_) if recorder.has_lost() && begun.elapsed() > REPEATED => break Ending::Silent,
            Err(_) => {}
        }
    };
    settle(recorder);
    ending
}

/// Records until an answer has left for the client, or the only packet was lost.
fn wait(recorder: &mut Recorder) {
    let begun = Instant::now();
    let is_over = |recorder: &Recorder| {
        let is_lost = recorder.has_lost() && begun.elapsed() > BETWEEN;
        is_lost || recorder.has_answer() || begun.elapsed() > WAIT
    };
    while !is_over(recorder) {
        recorder.poll();
        recorder.look(begun);
        thread::sleep(IDLE);
    }
    settle(recorder);
}

/// Records what comes a little later.
fn settle(recorder: &mut Recorder) {
    let begun = Instant::now();
    while begun.elapsed() < AFTER {
        recorder.poll();
        thread::sleep(IDLE);
    }
}

/// Reads the rules of legacy iptables; None if it has no table.
fn legacy(v6: bool, notes: &mut Vec<String>) -> Option<LegacyCounters> {
    if !linux::has_legacy_tables(v6) {
        return None;
    }
    let read = LegacyCounters::read(v6).map_err(|error| format!("legacy iptables: {error}"));
    read.map_err(|error| notes.push(error)).ok()
}

/// Returns how many connections nf_conntrack has, if it can take no more.
fn conntrack_full() -> Option<u64> {
    let count: u64 = read_value("/proc/sys/net/netfilter/nf_conntrack_count")?;
    let most = read_value("/proc/sys/net/netfilter/nf_conntrack_max")?;
    (most > 0 && count >= most).then_some(count)
}
