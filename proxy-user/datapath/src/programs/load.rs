// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loads the embedded programs with the pinned maps. Called by `Datapath::open`; the loaded
//! programs are used by the rest of `programs` and by `sweep`.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use aya::{
    Ebpf, EbpfLoader, VerifierLogLevel,
    maps::Map,
    programs::{Program, ProgramError, SchedClassifier},
};
use control::causes::chain;
use linux::{TestRun, program_id, test_run};
use proxy_common::{V4, V6, flow::places, maps};

use super::{
    hooks::HOOKS,
    log::ProgramLog,
    refusal::{Refusal, explain},
};
use crate::{
    Datapath, RefusedProgram,
    error::DatapathError,
    maps::{FlowTable, Shape, open_table},
    options::Options,
};

/// The BPF object file with the kernel programs, embedded at build time.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/portolan.bpf.o"));

/// The tc programs, and the programs `expire_*`, which the agent runs itself.
pub const PROGRAMS: [&str; 7] = [
    "ingress",
    "egress",
    "ingress_l3",
    "egress_l3",
    "egress_loopback",
    "expire_v4",
    "expire_v6",
];

/// The program for the XDP hook of uplinks.
pub(super) const UPLINK: &str = "uplink";

/// The programs without which the datapath cannot work. If the kernel refuses another one, the rest
/// works.
pub(super) const NEEDED: [&str; 2] = ["ingress", "egress"];

/// Log levels of aya-log: only faults, or every packet as well. The verifier removes the code of
/// disabled levels.
const LOG_FAULTS: u8 = 1;
const LOG_PACKETS: u8 = 4;

/// The kernel programs, and how their loading went.
pub(crate) struct Programs {
    ebpf: Ebpf,
    loads: Vec<Load>,
    refusals: Vec<Refusal>,
}

/// A program that the kernel accepted.
#[derive(Clone, Debug)]
pub struct Load {
    pub program: &'static str,
    /// The time that the kernel took to verify and compile the program.
    pub time: Duration,
}

impl Programs {
    /// Loads the programs with the maps that are pinned in `home`; creates and pins missing ones.
    /// Fails if the kernel refuses one of the programs [`NEEDED`]. If it refuses another one, only
    /// the use of that program fails.
    pub(crate) fn load(
        options: &Options,
        home: &Path,
        shapes: &[Shape],
    ) -> Result<Self, DatapathError> {
        let mut loaded = Self {
            ebpf: object(options, home, shapes, VerifierLogLevel::STATS)?,
            loads: Vec::new(),
            refusals: Vec::new(),
        };
        // A second copy of the object, opened at the first refusal, whose verifier logs every
        // instruction.
        let mut tracing = None;
        let hooks = HOOKS.into_iter();
        let uplink = options.xdp.map(|_| UPLINK);
        let packets = PROGRAMS.into_iter().chain(uplink);
        for name in packets.chain(hooks.map(|hook| hook.program)) {
            let start = Instant::now();
            let Err(error) = load_one(&mut loaded.ebpf, name)? else {
                loaded.loads.push(Load {
                    program: name,
                    time: start.elapsed(),
                });
                continue;
            };
            let level = VerifierLogLevel::VERBOSE | VerifierLogLevel::STATS;
            let mut ebpf = match tracing.take() {
                Some(ebpf) => ebpf,
                None => object(options, home, shapes, level)?,
            };
            let reason = explain(&error, load_one(&mut ebpf, name)?.err().as_ref());
            tracing = Some(ebpf);
            if NEEDED.contains(&name) {
                return Err(DatapathError::of_program(name, reason));
            }
            loaded.refusals.push(Refusal {
                program: name.to_owned(),
                reason,
            });
        }
        Ok(loaded)
    }
    /// Returns a program's descriptor, or an error that says why the program is not loaded.
    pub(crate) fn require(&self, name: &str) -> Result<BorrowedFd<'_>, DatapathError> {
        self.fd(name).ok_or_else(|| {
            let refusal = self.refusals.iter().find(|refusal| refusal.program == name);
            let reason = refusal.map(|refusal| refusal.reason.clone());
            let reason = reason.unwrap_or_else(|| "it is not in the object".to_owned());
            DatapathError::of_program(name, reason)
        })
    }
    pub(crate) fn fd(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.ebpf.program(name)?.fd().ok().map(AsFd::as_fd)
    }
    pub(crate) fn map(&self, name: &str) -> io::Result<OwnedFd> {
        self.ebpf
            .map(name)
            .map_or_else(|| Err(io::ErrorKind::NotFound.into()), fd)
    }
    /// Returns the kernel's ids of those programs in [`PROGRAMS`] that are loaded.
    pub(crate) fn ids(&self) -> io::Result<HashSet<u32>> {
        let programs = PROGRAMS.iter().filter_map(|name| self.fd(name));
        programs.map(program_id).collect()
    }
    /// Runs a program on a packet; `context` is the start of a `__sk_buff`.
    pub(crate) fn test_run(
        &self,
        program: &str,
        packet: &[u8],
        context: &[u8],
        repeat: u32,
    ) -> Result<TestRun, DatapathError> {
        let fd = self.require(program)?;
        test_run(fd, packet, context, repeat).map_err(|error| DatapathError::Run {
            program: program.into(),
            source: error,
        })
    }
    /// Returns a tc program in the form in which aya can attach it by netlink; `None` if there is
    /// no such tc program.
    pub(crate) fn classifier(&mut self, name: &str) -> Option<&mut SchedClassifier> {
        self.ebpf.program_mut(name)?.try_into().ok()
    }
}

/// Opens the object file with the maps pinned in `home`; creates and pins missing ones. Its
/// programs are not loaded yet.
fn object(
    options: &Options,
    home: &Path,
    shapes: &[Shape],
    log: VerifierLogLevel,
) -> Result<Ebpf, DatapathError> {
    let log_level = if options.log_packets {
        LOG_PACKETS
    } else {
        LOG_FAULTS
    };
    let redirect = u32::from(options.redirects);
    let header_port = u32::from(options.header_port.unwrap_or_default());
    let [sets_v4, sets_v6] =
        [options.capacities.flows, options.capacities.flows_v6].map(places::sets);
    let secret = || open_table::<u32, u64>(home, maps::FLOW_SECRET);
    let known = secret().and_then(|table| table.lookup(&0)).ok().flatten();
    // If an agent ended before it stored one, it is 0.
    let known = known.filter(|key| *key != 0);
    let hash_key = known.unwrap_or_else(|| RandomState::new().hash_one(()));
    let mut loader = EbpfLoader::new();
    // The programs use no kernel type: parsing the kernel's type information would cost 20 MB.
    loader
        .btf(None)
        .verifier_log_level(log)
        .override_global("AYA_LOG_LEVEL", &log_level, true)
        .override_global("MASQUERADE_MARK", &options.marks.masquerade, true)
        .override_global("DROP_MARK", &options.marks.drop, true)
        .override_global("REDIRECT", &redirect, true)
        .override_global("HEADER_PORT", &header_port, true)
        .override_global("FLOW_SETS_V4", &sets_v4, true)
        .override_global("FLOW_SETS_V6", &sets_v6, true)
        .override_global("HASH_KEY", &hash_key, true);
    if options.xdp.is_none() {
        for map in maps::NEXT_HOPS {
            loader.map_max_entries(map, 1);
        }
    }
    for shape in shapes {
        loader.map_max_entries(shape.name, shape.max_entries);
        loader.map_pin_path(shape.name, home.join(shape.name));
    }
    let loaded = match &options.object {
        Some(path) => loader.load_file(path),
        None => loader.load(OBJECT),
    };
    let loaded = loaded.map_err(|error| DatapathError::Load(chain(&error)))?;
    secret()
        .and_then(|table| table.update(&0, &hash_key))
        .map_err(DatapathError::of_map("set", maps::FLOW_SECRET))?;
    if known.is_none() {
        // What was entered by another secret is not found any more.
        let cleared = FlowTable::<V4>::open(home).and_then(|table| table.clear());
        cleared
            .and_then(|()| FlowTable::<V6>::open(home)?.clear())
            .map_err(DatapathError::of_map("clear", maps::FLOW_TAGS_V4))?;
    }
    Ok(loaded)
}

/// Makes the kernel load a program. The inner error is the kernel's refusal; the outer one means
/// that the object has no such program.
fn load_one(ebpf: &mut Ebpf, name: &str) -> Result<Result<(), ProgramError>, DatapathError> {
    let program = ebpf
        .program_mut(name)
        .ok_or_else(|| DatapathError::Load(format!("no program {name} in the object")))?;
    match program {
        Program::SchedClassifier(program) => Ok(program.load()),
        Program::Xdp(program) => Ok(program.load()),
        Program::CgroupSockAddr(program) => Ok(program.load()),
        Program::CgroupSock(program) => Ok(program.load()),
        _ => {
            let reason = format!("the program {name} is of an unknown kind");
            Err(DatapathError::Load(reason))
        }
    }
}

/// Returns the descriptor of a map that a loader has created.
pub(crate) fn fd(map: &Map) -> io::Result<OwnedFd> {
    match map {
        Map::Array(map)
        | Map::HashMap(map)
        | Map::LruHashMap(map)
        | Map::PerCpuArray(map)
        | Map::PerCpuHashMap(map)
        | Map::PerfEventArray(map) => map.fd().as_fd().try_clone_to_owned(),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

impl Datapath {
    /// Returns a reader of the programs' log lines. Can be called only once.
    pub fn program_log(&mut self) -> Result<ProgramLog, DatapathError> {
        ProgramLog::open(&mut self.programs.ebpf).map_err(|error| {
            DatapathError::Load(format!("read the programs' log: {}", chain(&error)))
        })
    }
    /// Returns the programs that the kernel accepted, with the time that each took.
    pub fn loads(&self) -> &[Load] {
        &self.programs.loads
    }
    /// Returns the programs that the kernel refuses. Nothing that needs them is attached.
    pub fn refusals(&self) -> &[RefusedProgram] {
        &self.programs.refusals
    }
    /// Returns the descriptor of a loaded program; `None` if it is not loaded.
    pub fn program(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.programs.fd(name)
    }
    /// Returns how many instructions the verifier processed for a program; `None` if the kernel
    /// does not show it.
    pub fn verified_instructions(&self, program: &str) -> Option<u32> {
        let info = self.programs.ebpf.program(program)?.info().ok()?;
        info.verified_instruction_count()
    }
}
