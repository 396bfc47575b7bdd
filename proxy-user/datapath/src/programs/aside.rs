// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A second copy of the tc programs for dry runs. It uses the pinned maps that the tc programs only
//! read, and has maps of its own for those that they write. It is attached to no hook, and is gone
//! when the process ends. Called by `read`.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use aya::{Ebpf, VerifierLogLevel};
use control::causes::chain;
use linux::{TestRun, test_run};
use proxy_common::maps;

use super::load::{descriptor, load_one, object};
use crate::{
    error::DatapathError,
    maps::shapes,
    options::{Capacities, Options},
};

/// The maps that the tc programs write. The copy has its own.
const OWN: [&str; 18] = [
    maps::PORTS,
    maps::AFFINITY_V4,
    maps::AFFINITY_V6,
    maps::FLOWS_V4,
    maps::FLOWS_V6,
    maps::RINGS_V4,
    maps::RINGS_V6,
    maps::RING_ENDS,
    maps::FRAGMENTS_V4,
    maps::FRAGMENTS_V6,
    maps::DIRECT,
    maps::BETWEEN_PODS,
    maps::COUNTERS,
    maps::TRAFFIC_V4,
    maps::TRAFFIC_V6,
    maps::REFUSED,
    maps::REJECT_BUDGET,
    maps::DRAINED,
];

/// The capacity of the copy's own maps, enough for a handful of packets.
const FEW: u32 = 1024;

/// The loaded copies of the programs, with their own maps.
pub(crate) struct Aside {
    ebpf: Ebpf,
    own: HashMap<&'static str, OwnedFd>,
}

impl Aside {
    /// Creates the copy's own maps and opens the others, which are pinned in `home`. [`Self::load`]
    /// loads the programs one by one. `redirects` says whether they redirect packets past the
    /// stack.
    pub(crate) fn open(home: &Path, redirects: bool) -> Result<Self, DatapathError> {
        let options = Options {
            capacities: Capacities {
                flows: FEW,
                affinity: FEW,
                ..Capacities::default()
            },
            redirects,
            ..Options::default()
        };
        let shapes = shapes(&options.capacities);
        let ebpf = object(&options, home, &shapes, &OWN, VerifierLogLevel::DISABLE)?;
        let own = OWN.into_iter().map(|name| {
            let map = descriptor(&ebpf, name).map_err(DatapathError::of_map("open", name))?;
            Ok((name, map))
        });
        let own = own.collect::<Result<_, DatapathError>>()?;
        Ok(Self { ebpf, own })
    }

    /// Makes the kernel verify and compile a program, which takes most of a second.
    pub(crate) fn load(&mut self, program: &'static str) -> Result<(), DatapathError> {
        let loaded = load_one(&mut self.ebpf, program)?;
        loaded.map_err(|error| DatapathError::Program {
            program: program.into(),
            reason: chain(&error),
        })
    }

    /// Returns one of the maps that the copy has for itself.
    pub(crate) fn map(&self, name: &'static str) -> Result<OwnedFd, DatapathError> {
        let map = self.own.get(name).ok_or(io::ErrorKind::NotFound.into());
        map.and_then(|map| map.try_clone())
            .map_err(DatapathError::of_map("open", name))
    }

    /// Runs a loaded program on a packet; `context` is the start of a `__sk_buff`.
    pub(crate) fn run(
        &self,
        program: &'static str,
        packet: &[u8],
        context: &[u8],
    ) -> Result<TestRun, DatapathError> {
        let loaded = self.ebpf.program(program);
        let fd = loaded.and_then(|program| program.fd().ok());
        let run = match fd {
            Some(fd) => test_run(fd.as_fd(), packet, context, 1),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        run.map_err(|source| DatapathError::Run {
            program: program.into(),
            source,
        })
    }
}
