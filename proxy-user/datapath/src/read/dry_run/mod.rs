// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dry runs: copies of the tc programs run on packets that were never sent, with maps of their own.
//! They change no flow, affinity or counter of the serving programs. Called by `portolan explain`.

mod packet;

use std::{net::IpAddr, os::fd::OwnedFd};

use linux::Plain;
use proxy_common::{
    AffinityEntry, AffinityKey, Counter, FlowEntry, FlowKey, Port, V4, V6,
    maps::{self, interface},
};

use super::{Asked, Explained, Reader, failed};
use crate::{
    error::DatapathError,
    maps::{family::Family, tables::Table},
    programs::Aside,
};
pub use packet::{Kind, Packet};

/// A tc hook of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hook {
    Ingress,
    Egress,
}

impl Hook {
    /// Returns the name of the hook, which is also the name of the program for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

/// The run of one tc program on one packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    pub hook: Hook,
    pub interface: u32,
    /// The first counter that the program incremented; `Untouched` if it incremented none.
    pub counter: Counter,
    pub before: Packet,
    /// The packet after the run; `None` if the program dropped it.
    pub after: Option<Packet>,
    /// True if the program sent the packet out by itself: through another interface, past the
    /// stack, or as an answer through the same one.
    pub redirected: bool,
    /// The packet's mark after the run.
    pub mark: u32,
}

/// The copies of programs and maps for dry runs. They are removed when this is dropped.
pub struct DryRun {
    aside: Aside,
    counters: Vec<u64>,
}

impl DryRun {
    /// Creates the maps and copies into them what the serving maps know about the client: its
    /// affinity and its connection. `incoming` is the index of the interface that the packets come
    /// in on; its flags decide whether the programs redirect packets past the stack.
    pub fn open(
        reader: &Reader,
        asked: &Asked,
        explained: &Explained,
        incoming: u32,
    ) -> Result<Self, DatapathError> {
        let word = reader.interface_word(incoming)?.unwrap_or(0);
        let redirects = interface::bits(word) & interface::REDIRECTS != 0;
        let aside = Aside::open(&reader.home, redirects)?;
        copy::<u32, u64>(reader, &aside, maps::PORTS)?;
        copy::<u32, u32>(reader, &aside, maps::DRAINED)?;
        match asked.client {
            IpAddr::V4(client) => {
                copy_client::<V4>(reader, &aside, asked, explained, client.into())?
            }
            IpAddr::V6(client) => {
                copy_client::<V6>(reader, &aside, asked, explained, client.into())?
            }
        }
        let counters = counters(&aside)?;
        Ok(Self { aside, counters })
    }

    /// Makes the kernel load the program for a hook. Must be called before the first [`Self::step`]
    /// with this hook.
    pub fn load(&mut self, hook: Hook) -> Result<(), DatapathError> {
        self.aside.load(hook.name())
    }

    /// Runs the program for a hook on a packet with this mark, as if it passed the interface with
    /// this index.
    pub fn step(
        &mut self,
        hook: Hook,
        interface: u32,
        packet: &Packet,
        mark: u32,
    ) -> Result<Step, DatapathError> {
        const SHOT: u32 = 2;
        const REDIRECT: u32 = 7;
        // The buffer is as long as any kernel's `__sk_buff`, because all of it is returned.
        const FIELDS: usize = 64;
        const MARK: usize = 2;
        const INTERFACE: usize = 10;
        let mut context = [[0_u8; 4]; FIELDS];
        context[MARK] = mark.to_ne_bytes();
        context[INTERFACE] = interface.to_ne_bytes();
        let bytes = packet.encode(linux::link(interface).ok().and_then(|link| link.mac));
        let run = self
            .aside
            .run(hook.name(), &bytes, context.as_flattened())?;
        let now = counters(&self.aside)?;
        let moved = |counter: &&Counter| {
            let index = **counter as usize;
            now.get(index) != self.counters.get(index)
        };
        let counter = Counter::ALL.iter().find(moved);
        let counter = counter.copied().unwrap_or(Counter::Untouched);
        self.counters = now;
        let mark = run.context.get(MARK * 4..MARK * 4 + 4);
        let mark = mark.and_then(|mark| mark.try_into().ok());
        Ok(Step {
            hook,
            interface,
            counter,
            before: *packet,
            after: (run.result != SHOT)
                .then(|| Packet::decode(&run.data))
                .flatten(),
            redirected: run.result == REDIRECT,
            mark: mark.map_or(0, u32::from_ne_bytes),
        })
    }
}

fn counters(aside: &Aside) -> Result<Vec<u64>, DatapathError> {
    linux::per_cpu_sums(aside.map(maps::COUNTERS)?).map_err(failed(maps::COUNTERS))
}

/// Copies all elements of a serving map into the dry run's map of the same name.
fn copy<K: Plain, V: Plain>(
    reader: &Reader,
    aside: &Aside,
    map: &'static str,
) -> Result<(), DatapathError> {
    let from: Table<K, V> = reader.table(map)?;
    let to = table::<K, V>(aside.map(map)?, map)?;
    let (keys, values): (Vec<_>, Vec<_>) = from.entries().map_err(failed(map))?.into_iter().unzip();
    match to.update_all(&keys, &values).into_iter().next() {
        Some(refused) => Err(DatapathError::of_map("copy", map)(refused.error)),
        None => Ok(()),
    }
}

fn table<K: Plain, V: Plain>(
    map: OwnedFd,
    name: &'static str,
) -> Result<Table<K, V>, DatapathError> {
    Table::new(map).map_err(failed(name))
}

/// Copies the client's affinity entry and the flow entries of its connection into the maps of a dry
/// run.
fn copy_client<A: Family>(
    reader: &Reader,
    aside: &Aside,
    asked: &Asked,
    explained: &Explained,
    client: A,
) -> Result<(), DatapathError> {
    if let Some(held) = &explained.affinity {
        let key = AffinityKey {
            service: held.service,
            client,
        };
        let from: Table<AffinityKey<A>, AffinityEntry> = reader.table(A::AFFINITY)?;
        if let Some(entry) = from.lookup(&key).map_err(failed(A::AFFINITY))? {
            let to = table(aside.map(A::AFFINITY)?, A::AFFINITY)?;
            to.update(&key, &entry).map_err(failed(A::AFFINITY))?;
        }
    }
    let Some(to) = A::of_ip(asked.to.ip()).filter(|_| asked.client_port != 0) else {
        return Ok(());
    };
    let from: Table<FlowKey<A>, FlowEntry<A>> = reader.table(A::FLOWS)?;
    let copies = table(aside.map(A::FLOWS)?, A::FLOWS)?;
    let ports = [asked.client_port, asked.to.port()].map(Port::from_host);
    let plain = FlowKey::new(client, ports[0], to, ports[1], asked.protocol);
    let keys = [plain.behind(explained.interface), plain];
    for key in keys {
        let find = |key: &FlowKey<A>| from.lookup(key).map_err(failed(A::FLOWS));
        let Some(entry) = find(&key)? else { continue };
        copies.update(&key, &entry).map_err(failed(A::FLOWS))?;
        let mut reply_key = key;
        entry.reply_key_into(&key, &mut reply_key);
        if let Some(reply) = find(&reply_key)? {
            copies
                .update(&reply_key, &reply)
                .map_err(failed(A::FLOWS))?;
            let mut masqueraded = key;
            reply.masqueraded_key_into(&reply_key, &mut masqueraded);
            if let Some(entry) = find(&masqueraded)? {
                copies
                    .update(&masqueraded, &entry)
                    .map_err(failed(A::FLOWS))?;
            }
        }
    }
    Ok(())
}
