// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Follows one packet through the kernel, or all packets of some ends that the kernel frees: by
//! programs at the kernel's tracepoints. In: what to follow. Out: a [`Sighting`] for each place.
//! Nothing is pinned; the kernel detaches the programs when the process ends, however it ends.
//! Called by `portolan explain --follow` and `portolan trace --drops`.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, OwnedFd},
};

use aya::{
    Ebpf,
    maps::{MapData, perf::PerfEventArrayBuffer},
    programs::{RawTracePoint, SchedClassifier},
};
use control::causes::chain;
use linux::{KernelTypes, Plain, kernel_types, per_cpu_sums, test_run};
use proxy_common::trace::follow::{Config, End, Followed, Seen, Sighting};

use super::{
    error::DatapathError,
    maps::tables::{Table, first_error},
    programs::fd,
    trace::{buffers, each_sample, program, take_map},
};

static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/portolan-follow.bpf.o"));

/// Each program with its tracepoint, and how it sees a packet.
const PROGRAMS: [(&str, &str, Seen); 3] = [
    ("received", "netif_receive_skb", Seen::Received),
    ("sent", "net_dev_queue", Seen::Sent),
    ("freed", "kfree_skb", Seen::Freed),
];
/// The program that gives a packet to an interface.
const INJECT: &str = "inject";

#[derive(Clone, Copy, Debug)]
pub enum What<'a> {
    /// One packet, its repetitions and answers. If its client is not known, it is the first one to
    /// one of these ends.
    Packet(Followed, &'a [End]),
    /// Freed packets from or to these ends.
    FreedOf(&'a [End]),
}

/// The programs' maps that are used while they report.
struct Maps {
    ends: Table<End, u32>,
    lost: OwnedFd,
    buffers: Vec<PerfEventArrayBuffer<MapData>>,
}

/// The attached programs. Dropping this detaches them.
pub struct Follower {
    ebpf: Ebpf,
    types: KernelTypes,
    maps: Maps,
    sightings: VecDeque<Sighting>,
}

impl Follower {
    pub fn attach(what: What<'_>) -> Result<Self, DatapathError> {
        let refused = |reason| DatapathError::of_program("that follows packets", reason);
        let types = kernel_types().map_err(failed("read the kernel's types"))?;
        let mut ebpf = Ebpf::load(OBJECT).map_err(|error| refused(chain(&error)))?;
        let load = |ebpf: &mut Ebpf| -> anyhow::Result<()> {
            for (name, _, _) in PROGRAMS {
                program::<RawTracePoint>(ebpf, name)?.load()?;
            }
            program::<SchedClassifier>(ebpf, INJECT)?.load()?;
            Ok(())
        };
        load(&mut ebpf).map_err(|error| refused(chain(error.as_ref())))?;
        let maps = fill(&mut ebpf, &types, what).map_err(failed("say what is followed"))?;
        let seen = PROGRAMS.iter().filter(|(_, _, seen)| match what {
            What::Packet(..) => true,
            What::FreedOf(_) => *seen == Seen::Freed,
        });
        for (name, tracepoint, _) in seen {
            let point = program::<RawTracePoint>(&mut ebpf, name);
            let attached = point.and_then(|point| Ok(point.attach(tracepoint).map(drop)?));
            attached
                .map_err(|error| refused(format!("{tracepoint}: {}", chain(error.as_ref()))))?;
        }
        Ok(Self {
            ebpf,
            types,
            maps,
            sightings: VecDeque::new(),
        })
    }

    /// Adds ends, which services have got since.
    pub fn also(&self, ends: &[End]) -> Result<(), DatapathError> {
        add(&self.maps.ends, ends).map_err(failed("follow further ends"))
    }

    /// Returns the next sighting if there is one, in the order of their times as far as they have
    /// been read.
    pub fn take(&mut self) -> Option<Sighting> {
        if self.sightings.is_empty() {
            let sightings = &mut self.sightings;
            each_sample(self.maps.buffers.iter_mut(), |sample| {
                sightings.extend(Sighting::from_bytes(sample));
            });
            let all = sightings.make_contiguous();
            all.sort_by_key(|sighting| sighting.time);
        }
        self.sightings.pop_front()
    }

    /// Returns the kernel's name of the reason for which a packet was freed.
    pub fn reason(&self, sighting: &Sighting) -> String {
        let named = self.types.reasons.get(&sighting.reason).cloned();
        named.unwrap_or_else(|| format!("reason {}", sighting.reason))
    }

    /// Returns how many sightings were lost because they were not read fast enough.
    pub fn lost(&self) -> u64 {
        let sums = self.maps.lost.try_clone().and_then(per_cpu_sums);
        sums.unwrap_or_default().iter().sum()
    }

    /// Gives an Ethernet frame to the interface with this index, as if it had received it.
    pub fn inject(&mut self, interface: u32, frame: &[u8]) -> Result<(), DatapathError> {
        /// Members of `struct __sk_buff`, as words.
        const MARK: usize = 2;
        const INTERFACE: usize = 10;
        const REFUSED: u32 = 2;
        let mut context = [[0_u8; 4]; 64];
        context[MARK] = interface.to_ne_bytes();
        context[INTERFACE] = interface.to_ne_bytes();
        let mut run = || -> anyhow::Result<u32> {
            let program = program::<SchedClassifier>(&mut self.ebpf, INJECT)?.fd()?;
            Ok(test_run(program.as_fd(), frame, context.as_flattened(), 1)?.result)
        };
        let refused = |reason| DatapathError::of_program(INJECT, reason);
        match run() {
            Ok(REFUSED) => Err(refused(format!(
                "interface {interface} does not take the packet; is it up?"
            ))),
            Ok(_) => Ok(()),
            Err(error) => Err(refused(chain(error.as_ref()))),
        }
    }
}

/// Writes what is followed into the maps, and opens the buffers of sightings.
fn fill(ebpf: &mut Ebpf, types: &KernelTypes, what: What<'_>) -> io::Result<Maps> {
    let mut of_map = |name| take_map(ebpf, name);
    let config = Config {
        offsets: types.offsets,
        all_ends: matches!(what, What::FreedOf(_)).into(),
    };
    Table::new(fd(&of_map("follow_config")?)?)?.update(&0_u32, &config)?;
    let ends = match what {
        What::Packet(followed, ends) => {
            Table::new(fd(&of_map("followed")?)?)?.update(&0_u32, &followed)?;
            ends
        }
        What::FreedOf(ends) => ends,
    };
    let table = Table::new(fd(&of_map("follow_ends")?)?)?;
    add(&table, ends)?;
    Ok(Maps {
        ends: table,
        lost: fd(&of_map("follow_lost")?)?,
        buffers: buffers(of_map("follow_out")?)?,
    })
}

fn add(table: &Table<End, u32>, ends: &[End]) -> io::Result<()> {
    first_error(table.update_all(ends, &vec![1; ends.len()]))
}

fn failed(doing: &'static str) -> impl Fn(io::Error) -> DatapathError {
    move |source| DatapathError::Follow { doing, source }
}
