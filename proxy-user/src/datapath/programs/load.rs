// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loads the embedded programs over the pinned maps. Called by `Datapath::open`; the loaded programs are used by the rest
//! of `programs` and by `sweep`.

use std::{
    collections::HashSet,
    io,
    os::fd::{AsFd, BorrowedFd},
};

use aya::{
    Ebpf, EbpfLoader, VerifierLogLevel,
    programs::{Program, SchedClassifier},
};

use proxy_common::flow::ring::ring_size;

use super::{
    entry_points::{HOOKS, PROGRAMS},
    log::ProgramLog,
    probe::running_kernel,
};
use crate::{
    causes::chain,
    datapath::{
        error::DatapathError,
        maps::{Shape, check_maps, pins::map_path},
        options::Options,
        sys::{TestRun, program_id, test_run},
    },
};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/portolan.bpf.o"));

/// aya-log's levels. The verifier removes the code of the levels that are off.
const LOG_FAULTS: u8 = 1;
const LOG_PACKETS: u8 = 4;

/// The loaded programs.
pub(crate) struct Programs {
    ebpf: Ebpf,
}

impl Programs {
    /// Loads over the pinned maps; makes and pins those that are missing.
    pub(crate) fn load(options: &Options, shapes: &[Shape]) -> Result<Self, DatapathError> {
        let pin_dir = &options.pin_dir;
        check_maps(pin_dir, shapes)?;
        let log_level = if options.log_packets {
            LOG_PACKETS
        } else {
            LOG_FAULTS
        };
        let redirect = u32::from(options.redirects);
        let rings = ring_size(options.capacities.flows);
        let mut loader = EbpfLoader::new();
        // The programs use no kernel type: parsing the kernel's type information would cost 20 MB.
        loader
            .btf(None)
            .verifier_log_level(VerifierLogLevel::STATS)
            .override_global("AYA_LOG_LEVEL", &log_level, true)
            .override_global("MASQUERADE_MARK", &options.marks.masquerade, true)
            .override_global("DROP_MARK", &options.marks.drop, true)
            .override_global("REDIRECT", &redirect, true)
            .override_global("RING_SIZE", &rings, true);
        for shape in shapes {
            loader
                .map_pin_path(shape.name, map_path(pin_dir, shape.name))
                .map_max_entries(shape.name, shape.max_entries);
        }
        let mut ebpf = loader
            .load(OBJECT)
            .map_err(|error| DatapathError::Load(chain(&error)))?;
        for name in PROGRAMS.into_iter().chain(HOOKS.map(|hook| hook.program)) {
            let program = ebpf
                .program_mut(name)
                .ok_or_else(|| DatapathError::Load(format!("no program {name} in the object")))?;
            let loaded = match program {
                Program::SchedClassifier(program) => program.load(),
                Program::CgroupSockAddr(program) => program.load(),
                Program::CgroupSock(program) => program.load(),
                _ => {
                    let reason = format!("the program {name} is of an unknown kind");
                    return Err(DatapathError::Load(reason));
                }
            };
            loaded.map_err(|error| DatapathError::Program {
                program: name.into(),
                reason: format!("{} (kernel {})", chain(&error), running_kernel()),
            })?;
        }
        check_maps(pin_dir, shapes)?;
        Ok(Self { ebpf })
    }
    /// The lines that the programs log from now on.
    pub(crate) fn log(&mut self) -> Result<ProgramLog, DatapathError> {
        ProgramLog::open(&mut self.ebpf).map_err(|error| {
            DatapathError::Load(format!("read the programs' log: {}", chain(&error)))
        })
    }
    /// A program's descriptor.
    pub(crate) fn fd(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.ebpf.program(name)?.fd().ok().map(AsFd::as_fd)
    }
    /// Ids of the loaded programs that see packets.
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
        let failed = |reason: String| DatapathError::Program {
            program: program.into(),
            reason,
        };
        let fd = self
            .fd(program)
            .ok_or_else(|| failed("no such program".into()))?;
        test_run(fd, packet, context, repeat).map_err(|error| failed(error.to_string()))
    }
    /// How many instructions the verifier processed.
    pub(crate) fn verified_instructions(&self, name: &str) -> Option<u32> {
        let info = self.ebpf.program(name)?.info().ok()?;
        info.verified_instruction_count()
    }
    /// A program that netlink can attach.
    pub(crate) fn classifier(&mut self, name: &str) -> Option<&mut SchedClassifier> {
        self.ebpf.program_mut(name)?.try_into().ok()
    }
}
