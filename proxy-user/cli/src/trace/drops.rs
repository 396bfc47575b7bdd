// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan trace --drops`: shows the packets of services that the kernel frees. A packet is a
//! service's if it comes from, or goes to, one of its addresses or endpoints.

use std::{collections::HashMap, net::SocketAddr, path::PathBuf};

use anyhow::Result;
use datapath::{follow::What, read::Reader, trace::Lost};
use proxy_common::trace::{
    Event, Filter, Hook,
    follow::{End, Sighting},
};
use serde::Serialize;

use super::{Show, Source, TraceArgs};
use crate::{
    args::protocol_named,
    packets::{
        Freed, KernelRecorder, end,
        line::{Ends, after_space, clock, ends, protocol_name, signals, stamp},
        name_cache::NameCache,
        reasons::{Meaning, meaning},
    },
};

/// A packet that the kernel freed, with names instead of numbers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    time: String,
    #[serde(flatten)]
    freed: Freed,
    /// Inode number of the network namespace, unless it is the node's.
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<u32>,
    protocol: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    signals: String,
    #[serde(flatten)]
    ends: Option<Ends>,
    service: String,
    length: u32,
    #[serde(flatten)]
    meaning: Meaning,
}

impl Line {
    fn text(&self) -> String {
        let Freed { reason, place, .. } = &self.freed;
        let (protocol, service, means) = (self.protocol, &self.service, self.meaning.means);
        let at = match (self.freed.interface.as_str(), self.namespace) {
            ("", None) => "node".to_owned(),
            (name, None) => name.to_owned(),
            ("", Some(inode)) => format!("namespace {inode}"),
            (name, Some(inode)) => format!("{name} of namespace {inode}"),
        };
        let ends = self.ends.as_ref();
        let ends = ends.map_or_else(String::new, |ends| format!("{} > {}", ends.from, ends.to));
        let what = after_space(&self.signals);
        let begin = format!("{} {at} {protocol}{what}", clock(&self.time));
        format!("{begin}  {ends}  [{service}]  {reason} in {place}: {means}")
    }
}

/// The ends of services, each with the ids of the service ports that have it.
type Served = HashMap<End, Vec<u32>>;

/// The kernel's reports of packets that it frees.
pub(super) struct Drops {
    kernel: KernelRecorder,
    known: NameCache,
    filter: Filter,
    served: Served,
    pin_dir: PathBuf,
}

impl Drops {
    pub(super) fn begin(args: &TraceArgs, known: NameCache, filter: Filter) -> Result<Self> {
        let pin_dir = args.pins.pin_dir.clone();
        let served = served(&Reader::open(&pin_dir)?)?;
        let ends: Vec<_> = served.keys().copied().collect();
        let (kernel, lacks) = KernelRecorder::begin(What::FreedOf(&ends), "trace --drops")?;
        if let Some(lacks) = lacks {
            eprintln!("portolan trace: not shown: {lacks}");
        }
        Ok(Self {
            kernel,
            known,
            filter,
            served,
            pin_dir,
        })
    }

    /// Returns the service port of a lost packet, if the filter wants it.
    fn wanted(&self, sighting: &Sighting) -> Option<u32> {
        let tuple = sighting.tuple;
        let ends = [tuple.dst_end(), tuple.src_end()];
        let services = ends.iter().filter_map(|end| self.served.get(end)).flatten();
        let wants = |service: &&u32| {
            let event = Event {
                before: tuple,
                after: tuple,
                service: **service,
                ..Event::EMPTY
            };
            self.filter.wants(&event)
        };
        let found = services.into_iter().find(wants).copied();
        found.filter(|_| self.kernel.is_loss(sighting))
    }
}

impl Source for Drops {
    fn name(&self) -> &'static str {
        "what the kernel frees"
    }

    fn show_next(&mut self, show: &mut Show<'_>) -> Result<bool> {
        while let Some(sighting) = self.kernel.follower.take() {
            let Some(service) = self.wanted(&sighting) else {
                continue;
            };
            let freed = self.kernel.freed(&sighting);
            let (tuple, namespace) = (&sighting.tuple, sighting.namespace);
            let line = Line {
                time: stamp(show.epoch + sighting.time),
                meaning: meaning(&freed.reason, &freed.place),
                freed,
                namespace: (namespace != self.kernel.own).then_some(namespace),
                protocol: protocol_name(tuple),
                signals: signals(tuple),
                ends: ends(tuple, &mut self.known, Hook::Ingress),
                service: self.known.service(service).unwrap_or("?").to_owned(),
                length: sighting.length,
            };
            show.line(&line, |_| line.text())?;
            return Ok(true);
        }
        Ok(false)
    }

    fn look(&mut self) -> Result<()> {
        self.known.refresh();
        let now = served(&Reader::open(&self.pin_dir)?)?;
        let new = now.keys().filter(|end| !self.served.contains_key(end));
        let new: Vec<_> = new.copied().collect();
        self.kernel.follower.also(&new)?;
        self.served = now;
        Ok(())
    }

    fn lost(&self) -> Lost {
        Lost {
            unread: self.kernel.follower.lost(),
            ..Lost::default()
        }
    }
}

fn served(reader: &Reader) -> Result<Served> {
    let mut served = Served::new();
    let of_node = reader.node_port_addresses()?;
    let mut ids = HashMap::new();
    for row in reader.frontends()? {
        let (Some(protocol), true) = (protocol_named(row.protocol), row.port != 0) else {
            continue;
        };
        ids.insert((row.service, row.port_name), row.service_id);
        let addresses = row.address.map_or_else(|| of_node.clone(), |one| vec![one]);
        for address in addresses {
            let end = end(SocketAddr::new(address, row.port), protocol);
            served.entry(end).or_default().push(row.service_id);
        }
    }
    for row in reader.backends()? {
        let id = ids.get(&(row.service, row.port_name));
        if let (Some(protocol), Some(id)) = (protocol_named(row.protocol), id) {
            let end = end(row.address, protocol);
            served.entry(end).or_default().push(*id);
        }
    }
    Ok(served)
}
