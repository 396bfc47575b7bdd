// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Watches the attached programs at work. In: a pin directory and a filter. Out: an event for each packet or socket call that is
//! wanted. The programs themselves are as they always are: the kernel runs others before and after them, while a [`Trace`] lives.
//! Called by `portolan trace`.

mod object;
mod targets;

use std::{
    collections::{BTreeSet, HashMap},
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use aya::maps::{Map, MapData, RingBuf};
use proxy_common::{
    maps,
    trace::{Event, Filter, Named, Target, lost, rate::Rate},
};

use self::{
    object::Object,
    targets::{Offsets, Program, attached},
};
use super::{
    error::DatapathError,
    maps::tables::Table,
    sys::{
        self, KernelTypes, Plain, TracedProgram, attach_tracing, load_tracing, map_by_id,
        missed_runs, per_cpu_sums, traced_program,
    },
};

/// What is wanted.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub filter: Filter,
    /// The endpoints of the sets that the filter names.
    pub named: Vec<(Named, u32)>,
    /// Events a second; 0: no limit.
    pub rate: u64,
}

/// Events that were wanted and are not among those read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lost {
    /// Beyond the rate limit.
    pub limited: u64,
    /// Because they were not read fast enough.
    pub full: u64,
    /// Socket calls that could not be followed: too many at once, or one that interrupted another.
    pub calls: u64,
}

impl Lost {
    pub fn total(&self) -> u64 {
        self.limited + self.full + self.calls
    }
}

/// A program that is watched. Its watchers go when it is dropped.
struct Traced {
    /// At the end, then at the beginning.
    _links: [OwnedFd; 2],
    programs: [OwnedFd; 2],
}

/// The maps of all watchers.
struct Shared {
    events: OwnedFd,
    lost: OwnedFd,
    rate: OwnedFd,
    filter: OwnedFd,
    sets: OwnedFd,
}

/// Watchers at every attached program. Dropping it removes them; so does the kernel, whatever ends the process.
pub struct Trace {
    pin_dir: PathBuf,
    object: Object,
    offsets: Offsets,
    shared: Shared,
    ring: RingBuf<MapData>,
    sets: Table<Named, u32>,
    traced: HashMap<u32, Traced>,
    /// Missed runs of watchers that have gone.
    missed: u64,
}

impl Trace {
    /// Makes the watchers and attaches them to the programs that are attached now.
    pub fn open(pin_dir: &Path, wanted: &Wanted) -> Result<Self, DatapathError> {
        let object = Object::parse()?;
        let types = KernelTypes::read().map_err(failed("read the kernel's types"))?;
        let offsets = Offsets::of(&types).map_err(failed("read the kernel's types"))?;
        let make = |name| object.make(name).map_err(failed("make a map"));
        let shared = Shared {
            events: make("events")?,
            lost: make("lost")?,
            rate: make("rate")?,
            filter: make("filter")?,
            sets: make("sets")?,
        };
        let again = |fd: &OwnedFd| fd.try_clone().map_err(failed("make a map"));
        let ring = MapData::from_fd(again(&shared.events)?)
            .and_then(|data| RingBuf::try_from(Map::RingBuf(data)))
            .map_err(|error| failed("read events")(io::Error::other(error)))?;
        let sets = Table::new(again(&shared.sets)?).map_err(failed("make a map"))?;
        let filters = Table::new(again(&shared.filter)?).map_err(failed("make a map"))?;
        filters
            .update(&0_u32, &wanted.filter)
            .map_err(failed("set the filter"))?;
        let rates = Table::new(again(&shared.rate)?).map_err(failed("make a map"))?;
        let rate = Rate {
            limit: wanted.rate,
            ..Rate::default()
        };
        rates
            .update(&0_u32, &rate)
            .map_err(failed("set the rate"))?;
        let mut trace = Self {
            pin_dir: pin_dir.into(),
            object,
            offsets,
            shared,
            ring,
            sets,
            traced: HashMap::new(),
            missed: 0,
        };
        trace.name(&wanted.named)?;
        trace.follow()?;
        if trace.traced.is_empty() {
            return Err(DatapathError::Trace {
                doing: "find an attached program",
                source: io::Error::new(
                    io::ErrorKind::NotFound,
                    "none is attached on this node; `portolan status` says why",
                ),
            });
        }
        Ok(trace)
    }

    /// Adds endpoints to the sets. Those that go stay: their connections go on.
    pub fn name(&self, named: &[(Named, u32)]) -> Result<(), DatapathError> {
        let (keys, bits): (Vec<_>, Vec<_>) = named.iter().copied().unzip();
        match self.sets.update_all(&keys, &bits).into_iter().next() {
            None => Ok(()),
            Some(refused) => Err(failed("name the endpoints of the filter")(refused.error)),
        }
    }

    /// Watches programs that have been attached since, as those of another generation, and leaves those that have gone.
    pub fn follow(&mut self) -> Result<(), DatapathError> {
        let now = attached(&self.pin_dir).map_err(failed("find the attached programs"))?;
        let ids: BTreeSet<u32> = now.iter().copied().collect();
        let missed = &mut self.missed;
        self.traced.retain(|id, traced| {
            let stays = ids.contains(id);
            if !stays {
                *missed += traced.missed();
            }
            stays
        });
        for id in ids {
            if self.traced.contains_key(&id) {
                continue;
            }
            // One that has gone meanwhile, or none that is watched.
            let Ok(program) = traced_program(id) else {
                continue;
            };
            if let Some(known) = Program::by_name(&program.name) {
                let traced = self.watch(&program, known)?;
                self.traced.insert(id, traced);
            }
        }
        Ok(())
    }

    fn watch(&self, program: &TracedProgram, known: Program) -> Result<Traced, DatapathError> {
        let refused = |source: io::Error| DatapathError::Program {
            program: format!("that traces {}", program.name),
            reason: source.to_string(),
        };
        if program.entry == 0 {
            return Err(refused(io::Error::other(
                "it carries no type information, so it cannot be traced",
            )));
        }
        let counters = counters_of(program).map_err(refused)?;
        let target = self.offsets.target(known);
        let own = self.object.own_maps().map_err(refused)?;
        let targets: Table<u32, Target> = own
            .get("target")
            .ok_or_else(|| io::ErrorKind::NotFound.into())
            .and_then(|fd| fd.try_clone())
            .and_then(Table::new)
            .map_err(refused)?;
        targets.update(&0, &target).map_err(refused)?;
        let map = |name: &str| match name {
            "counters" => Some(counters.as_fd()),
            "events" => Some(self.shared.events.as_fd()),
            "lost" => Some(self.shared.lost.as_fd()),
            "rate" => Some(self.shared.rate.as_fd()),
            "filter" => Some(self.shared.filter.as_fd()),
            "sets" => Some(self.shared.sets.as_fd()),
            name => own.get(name).map(AsFd::as_fd),
        };
        let linked = self.object.linked(map)?;
        let names = if known.hook.is_socket() {
            ["call_ends", "call_begins"]
        } else {
            ["packet_ends", "packet_begins"]
        };
        // The end first: what it has not seen begin, it leaves out.
        let load = |name, at_end| {
            load_tracing(name, linked.instructions(name)?, program, at_end).map_err(refused)
        };
        let programs = [load(names[0], true)?, load(names[1], false)?];
        let attach = |fd: &OwnedFd| attach_tracing(fd.as_fd()).map_err(refused);
        Ok(Traced {
            _links: [attach(&programs[0])?, attach(&programs[1])?],
            programs,
        })
    }

    /// How many programs are watched.
    pub fn watched(&self) -> usize {
        self.traced.len()
    }

    /// The next event, if one waits.
    pub fn next(&mut self) -> Option<Box<Event>> {
        let item = self.ring.next()?;
        Event::from_bytes(&item).map(Box::new)
    }

    /// What was lost until now.
    pub fn lost(&self) -> Result<Lost, DatapathError> {
        let fd = self.shared.lost.try_clone();
        let sums = fd
            .and_then(per_cpu_sums)
            .map_err(failed("read what was lost"))?;
        let at = |place: u32| sums.get(place as usize).copied().unwrap_or(0);
        let missed: u64 = self.traced.values().map(Traced::missed).sum();
        Ok(Lost {
            limited: at(lost::RATE),
            full: at(lost::RING),
            calls: at(lost::CALLS) + self.missed + missed,
        })
    }
}

impl Traced {
    fn missed(&self) -> u64 {
        let programs = self.programs.iter();
        let missed = programs.map(|program| missed_runs(program.as_fd()).unwrap_or(0));
        missed.sum()
    }
}

fn failed(doing: &'static str) -> impl Fn(io::Error) -> DatapathError {
    move |source| DatapathError::Trace { doing, source }
}

/// The map in which a program counts.
fn counters_of(program: &TracedProgram) -> io::Result<OwnedFd> {
    for id in &program.maps {
        let (fd, name) = map_by_id(*id)?;
        if name == maps::COUNTERS {
            return Ok(fd);
        }
    }
    Err(io::Error::other("it has no map of counters"))
}

/// Nanoseconds of the monotonic clock, which events have, at this moment.
pub fn monotonic() -> u64 {
    sys::monotonic()
}
