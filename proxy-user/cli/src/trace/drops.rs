// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan trace --drops`: shows the packets of services that the kernel frees. A packet is a
//! service's if it comes from, or goes to, one of its addresses or endpoints.

use std::{
    collections::HashMap,
    io::{self, IsTerminal, Write},
    thread,
    time::Instant,
};

use anyhow::Result;
use datapath::{
    follow::{Follower, What},
    read::Reader,
};
use linux::KernelFunctions;
use proxy_common::{
    Port, Protocol,
    trace::{
        Event, Filter, Hook, Tuple,
        follow::{End, Sighting},
    },
};
use serde::Serialize;

use super::{
    Form, IDLE, LOOK, TraceArgs, duration, epoch,
    line::{Ends, ends, protocol_name, signals, stamp},
    names::Known,
};
use crate::{
    explain::names::Names,
    freed::{
        InterfaceNames,
        reasons::{is_harmless, meaning},
        widened,
    },
    list::is_closed,
    rights::{SYSLOG, lacks},
    signals::Stop,
};

/// A packet that the kernel freed, with names instead of numbers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Freed {
    time: String,
    /// The interface at which the packet was; empty if at none.
    #[serde(skip_serializing_if = "String::is_empty")]
    interface: String,
    /// Inode number of the network namespace, unless it is the node's.
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<u32>,
    protocol: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    signals: String,
    #[serde(flatten)]
    ends: Option<Ends>,
    service: String,
    length: u32,
    /// The kernel's name of the reason.
    reason: String,
    /// The function that freed it.
    place: String,
    means: &'static str,
    remedy: &'static str,
}

impl Freed {
    fn text(&self) -> String {
        let time = self.time.split_once('T').map_or("", |(_, time)| time);
        let at = match (self.interface.as_str(), self.namespace) {
            ("", None) => "node".to_owned(),
            (name, None) => name.to_owned(),
            ("", Some(inode)) => format!("namespace {inode}"),
            (name, Some(inode)) => format!("{name} of namespace {inode}"),
        };
        let ends = self.ends.as_ref();
        let ends = ends.map_or_else(String::new, |ends| format!("{} > {}", ends.from, ends.to));
        let signals = match self.signals.as_str() {
            "" => String::new(),
            signals => format!(" {signals}"),
        };
        format!(
            "{} {at} {}{signals}  {ends}  [{}]  {} in {}: {}",
            time.trim_end_matches('Z'),
            self.protocol,
            self.service,
            self.reason,
            self.place,
            self.means
        )
    }
}

/// The ends of services, each with the ids of the service ports that have it.
type Served = HashMap<End, Vec<u32>>;

/// Shows freed packets until a signal comes, or until --limit or --duration is reached.
pub(super) fn run(args: &TraceArgs) -> Result<()> {
    let stop = Stop::on_signals()?;
    let pin_dir = &args.pins.pin_dir;
    let mut known = Known::read(pin_dir, Names::new(&args.names))?;
    let filter = args.filter.filter(&args.names, &known)?;
    let mut served = served(&Reader::open(pin_dir)?)?;
    let ends: Vec<_> = served.keys().copied().collect();
    let mut follower = Follower::attach(What::FreedOf(&ends))?;
    let functions = KernelFunctions::read();
    if functions.is_empty()
        && let Some(lacks) = lacks(SYSLOG, "trace --drops")
    {
        eprintln!("portolan trace: functions are shown by their addresses: {lacks}");
    }
    let own = linux::own_namespace_inode()?;
    let mut interfaces = InterfaceNames::new(own);
    let duration = duration(args, io::stdout().is_terminal());
    let (epoch, start) = (epoch(), Instant::now());
    let (mut look, mut shown) = (start, 0_u64);
    let mut out = io::stdout().lock();
    eprintln!("portolan trace: watching what the kernel frees; interrupt to end");
    let is_over = || stop.is_asked() || duration.is_some_and(|longest| start.elapsed() >= longest);
    loop {
        let last = is_over();
        while let Some(sighting) = follower.take() {
            let reason = follower.reason(&sighting);
            let service = wanted(&filter, &sighting, &served);
            let (Some(service), false) = (service, is_harmless(&reason)) else {
                continue;
            };
            let place = functions.at(sighting.location);
            let meaning = meaning(&reason, &place);
            let tuple = &sighting.tuple;
            let freed = Freed {
                time: stamp(epoch + sighting.time),
                interface: interfaces.of(sighting.namespace, sighting.interface),
                namespace: (sighting.namespace != own).then_some(sighting.namespace),
                protocol: protocol_name(tuple).to_owned(),
                signals: signals(tuple),
                ends: ends_of(tuple, &mut known),
                service: known.service(service).unwrap_or("?").to_owned(),
                length: sighting.length,
                reason,
                place,
                means: meaning.means,
                remedy: meaning.remedy,
            };
            let written = match args.output {
                Form::Json => serde_json::to_string(&freed).map(|line| writeln!(out, "{line}"))?,
                Form::Text => writeln!(out, "{}", freed.text()),
            };
            let written = written.and_then(|()| out.flush());
            match written.map_err(anyhow::Error::from) {
                Err(error) if is_closed(&error) => return Ok(()),
                written => written?,
            }
            shown += 1;
            if args.limit.is_some_and(|limit| shown >= limit) {
                return Ok(());
            }
        }
        if last {
            break;
        }
        if look.elapsed() >= LOOK {
            look = Instant::now();
            known.refresh();
            let now = self::served(&Reader::open(pin_dir)?)?;
            let new = now.keys().filter(|end| !served.contains_key(end));
            let new: Vec<_> = new.copied().collect();
            follower.also(&new)?;
            served = now;
        }
        thread::sleep(IDLE);
    }
    eprintln!(
        "portolan trace: {shown} shown, {} not read fast enough",
        follower.lost()
    );
    Ok(())
}

fn ends_of(tuple: &Tuple, known: &mut Known) -> Option<Ends> {
    ends(tuple, known, Hook::Ingress)
}

/// Returns a service port that the filter wants and that the packet belongs to.
fn wanted(filter: &Filter, sighting: &Sighting, served: &Served) -> Option<u32> {
    let tuple = sighting.tuple;
    let ends = [tuple.dst_end(), tuple.src_end()];
    let services = ends.iter().filter_map(|end| served.get(end)).flatten();
    let wants = |service: &&u32| {
        let event = Event {
            before: tuple,
            after: tuple,
            service: **service,
            ..Event::EMPTY
        };
        filter.wants(&event)
    };
    services.into_iter().find(wants).copied()
}

/// Reads the ends of all services.
fn served(reader: &Reader) -> Result<Served> {
    let mut served = Served::new();
    let of_node = reader.node_port_addresses()?;
    let protocol_of = |name: &str| {
        let known = [Protocol::TCP, Protocol::UDP, Protocol::SCTP];
        known.into_iter().find(|protocol| protocol.name() == name)
    };
    let mut ids = HashMap::new();
    for row in reader.frontends()? {
        let (Some(protocol), true) = (protocol_of(row.protocol), row.port != 0) else {
            continue;
        };
        ids.insert((row.service.clone(), row.port_name.clone()), row.service_id);
        let addresses = match row.address {
            Some(address) => vec![address],
            None => of_node.clone(),
        };
        for address in addresses {
            let end = End::new(widened(address), Port::from_host(row.port), protocol);
            served.entry(end).or_default().push(row.service_id);
        }
    }
    for row in reader.backends()? {
        let id = ids.get(&(row.service.clone(), row.port_name.clone()));
        let (Some(protocol), Some(id)) = (protocol_of(row.protocol), id) else {
            continue;
        };
        let at = row.address;
        let end = End::new(widened(at.ip()), Port::from_host(at.port()), protocol);
        served.entry(end).or_default().push(*id);
    }
    Ok(served)
}
