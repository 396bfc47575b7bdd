// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes the attached programs report packets. In: a pin directory and a filter. Out: an event for
//! each wanted packet. Programs report only while a [`Trace`] exists. To know that, they read a
//! time in memory for each packet of a service; this is their only cost while nobody traces. The
//! agent pins the maps for tracing once it has attached the programs that use them. Called by
//! `portolan trace`.

mod calls;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use anyhow::Context;
use aya::{
    Ebpf,
    maps::{
        Map, MapData, PerfEventArray,
        perf::{PerfEvent, PerfEventArrayBuffer},
    },
    programs::{Program, ProgramError},
};
pub use linux::monotonic;
use linux::{Plain, get_pinned, map_info, per_cpu_sums};
use proxy_common::trace::{Event, Filter, PATIENCE, lost, rate::Rate};

use self::calls::Calls;
use super::{
    error::DatapathError,
    maps::{TRACE_OUT, pins::generations, tables::Table},
};

/// Memory pages of the event buffer of each CPU, enough for more than a thousand events.
const PAGES: usize = 64;

/// Which events to report, and how many.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub filter: Filter,
    /// The filter for socket calls, which have a process, and no source address.
    pub calls: Filter,
    /// The maximum number of events per second; 0 means no limit.
    pub rate: u64,
}

/// How many wanted events were lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lost {
    /// Events beyond the rate limit.
    pub limited: u64,
    /// Events that were not read fast enough.
    pub unread: u64,
}

impl Lost {
    /// Returns the number of all lost events.
    pub fn total(&self) -> u64 {
        self.limited + self.unread
    }
    fn add(&mut self, more: Self) {
        self.limited += more.limited;
        self.unread += more.unread;
    }
    /// Returns how many events were lost, according to the programs' map of lost events.
    fn of(map: &OwnedFd) -> Self {
        let sums = map.try_clone().and_then(per_cpu_sums).unwrap_or_default();
        let at = |place: u32| sums.get(place as usize).copied().unwrap_or(0);
        Self {
            limited: at(lost::RATE),
            unread: at(lost::UNREAD),
        }
    }
}

/// Programs that were loaded together and so share the maps for tracing. `until` has the time until
/// which they report.
struct Asked {
    until: Table<u32, u64>,
    lost: OwnedFd,
    /// What `lost` contained before this trace began.
    lost_before: Lost,
    buffers: Vec<PerfEventArrayBuffer<MapData>>,
}

/// Receives the events of all attached programs. Tracing stops when this is dropped. If the process
/// is killed, the kernel frees its buffers, and the programs stop reporting after a few seconds.
pub struct Trace {
    pin_dir: PathBuf,
    wanted: Wanted,
    /// The traced programs. Key: the id of their map `trace_out`.
    asked: BTreeMap<u32, Asked>,
    /// The programs that trace socket calls; `None` if no socket hook is attached.
    calls: Option<Calls>,
    events: VecDeque<Event>,
    /// The lost events of programs that are no longer attached.
    gone: Lost,
}

impl Trace {
    /// Starts tracing the programs that are attached now.
    pub fn open(pin_dir: &Path, wanted: Wanted) -> Result<Self, DatapathError> {
        let mut trace = Self {
            pin_dir: pin_dir.into(),
            wanted,
            asked: BTreeMap::new(),
            calls: None,
            events: VecDeque::new(),
            gone: Lost::default(),
        };
        trace.calls = Calls::attach(pin_dir, &trace.wanted)?;
        trace.follow()?;
        if trace.asked.is_empty() {
            let why = "none is attached that can tell; `portolan status` says what is attached";
            return Err(failed("ask the programs")(io::Error::other(why)));
        }
        Ok(trace)
    }

    /// Makes the programs go on reporting; to be called again and again. Includes programs that
    /// were attached in the meantime, such as those of another generation of maps.
    pub fn follow(&mut self) -> Result<(), DatapathError> {
        let all = generations(&self.pin_dir).map_err(failed("find the programs"))?;
        let mut seen = BTreeSet::new();
        for generation in all.into_iter().filter(|one| one.is_known()) {
            let home = generation.dir(&self.pin_dir);
            let key = match get_pinned(&home.join(TRACE_OUT), false).and_then(map_info) {
                Ok(info) => info.id,
                // None of its programs is attached yet, or all are gone by now.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed("find the programs")(error)),
            };
            if seen.insert(key) && !self.asked.contains_key(&key) {
                let asked = self.ask(&home).map_err(failed("ask the programs"))?;
                self.asked.insert(key, asked);
            }
        }
        if let Some(calls) = &self.calls
            && !calls.is_current(&self.pin_dir)
        {
            self.gone.add(calls.lost());
            self.calls = None;
            self.calls = Calls::attach(&self.pin_dir, &self.wanted)?;
        }
        let gone: Vec<u32> = self.asked.keys().copied().collect();
        for key in gone.into_iter().filter(|key| !seen.contains(key)) {
            if let Some(asked) = self.asked.remove(&key) {
                self.gone.add(asked.lost());
            }
        }
        self.asked
            .values()
            .try_for_each(Asked::renew)
            .map_err(failed("ask the programs"))
    }

    fn ask(&self, home: &Path) -> io::Result<Asked> {
        let take = |name: &str| get_pinned(&home.join(name), false);
        let until: Table<u32, u64> = Table::new(take("trace_until")?)?;
        let now = monotonic();
        if until.lookup(&0)?.is_some_and(|until| until > now) {
            return Err(io::Error::other(
                "another `portolan trace` is at work on this node; end it, or wait three seconds if it was killed",
            ));
        }
        let maps = [take("trace_filter")?, take("trace_rate")?];
        tell(maps, &self.wanted.filter, self.wanted.rate)?;
        let lost = take("trace_lost")?;
        let lost_before = Lost::of(&lost);
        let out = MapData::from_fd(take(TRACE_OUT)?).map_err(io::Error::other)?;
        let buffers = buffers(Map::PerfEventArray(out))?;
        Ok(Asked {
            until,
            lost,
            lost_before,
            buffers,
        })
    }

    /// True if socket calls are traced.
    pub fn has_calls(&self) -> bool {
        self.calls.is_some()
    }

    /// Returns the next event if there is one. The events of one CPU are in order.
    pub fn take(&mut self) -> Option<Event> {
        if self.events.is_empty() {
            let events = &mut self.events;
            let buffers = self.asked.values_mut().flat_map(|asked| &mut asked.buffers);
            let of_calls = self.calls.iter_mut().flat_map(Calls::buffers);
            let all = buffers.chain(of_calls);
            each_sample(all, |sample| events.extend(Event::from_bytes(sample)));
            let all = self.events.make_contiguous();
            all.sort_by_key(|event| event.time);
        }
        self.events.pop_front()
    }

    /// Returns how many events were lost so far.
    pub fn lost(&self) -> Lost {
        let mut all = self.gone;
        let packets = self.asked.values().map(Asked::lost);
        for lost in packets.chain(self.calls.iter().map(Calls::lost)) {
            all.add(lost);
        }
        all
    }
}

impl Asked {
    fn renew(&self) -> io::Result<()> {
        self.until.update(&0, &(monotonic() + PATIENCE))
    }
    fn lost(&self) -> Lost {
        let (now, before) = (Lost::of(&self.lost), self.lost_before);
        Lost {
            limited: now.limited.saturating_sub(before.limited),
            unread: now.unread.saturating_sub(before.unread),
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        // If this fails, the programs stop reporting when the time in `until` has passed.
        _ = self.until.update(&0, &0);
    }
}

/// Tells programs what to report, by their maps `trace_filter` and `trace_rate`.
fn tell([filters, rates]: [OwnedFd; 2], filter: &Filter, limit: u64) -> io::Result<()> {
    Table::new(filters)?.update(&0_u32, filter)?;
    let rate = Rate {
        limit,
        ..Rate::default()
    };
    Table::new(rates)?.update(&0_u32, &rate)
}

/// Returns a program of an object, of the kind that the caller wants.
pub(super) fn program<'a, P>(ebpf: &'a mut Ebpf, name: &str) -> anyhow::Result<&'a mut P>
where
    &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
{
    let program = ebpf.program_mut(name);
    let program = program.with_context(|| format!("{name} is not in the object"))?;
    Ok(program.try_into()?)
}

pub(super) fn take_map(ebpf: &mut Ebpf, name: &str) -> io::Result<Map> {
    let map = ebpf.take_map(name);
    map.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Visits all samples in these buffers. Other kinds of events only say that samples were lost,
/// which the programs count as well.
pub(super) fn each_sample<'a>(
    buffers: impl Iterator<Item = &'a mut PerfEventArrayBuffer<MapData>>,
    mut visit: impl FnMut(&[u8]),
) {
    for buffer in buffers {
        buffer.for_each(|event| {
            if let PerfEvent::Sample { head, tail } = event {
                visit(&[head, tail].concat());
            }
        });
    }
}

/// Opens an event buffer for each CPU.
pub(super) fn buffers(map: Map) -> io::Result<Vec<PerfEventArrayBuffer<MapData>>> {
    let mut out = PerfEventArray::try_from(map).map_err(io::Error::other)?;
    let cpus = aya::util::online_cpus().map_err(|(_, error)| error)?;
    let buffers = cpus.into_iter().map(|cpu| out.open(cpu, Some(PAGES)));
    buffers.collect::<Result<_, _>>().map_err(io::Error::other)
}

fn failed(doing: &'static str) -> impl Fn(io::Error) -> DatapathError {
    move |source| DatapathError::Trace { doing, source }
}
