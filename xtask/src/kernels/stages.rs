// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stages that are run in a kernel: each runs a test program of this clone, one test after
//! another. Used by `kernels`.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail};

use super::packages::compare;
use crate::{
    arch::Arch,
    cargo::{self, Workspace},
    cross::Builder,
};

/// A shell command that is run in a kernel and counts as one stage in the results.
pub(super) struct Stage {
    pub(super) name: String,
    /// The command line for the kernel's shell.
    pub(super) command: String,
    pub(super) limit: Duration,
}

impl Stage {
    pub(super) fn new(name: &str, command: String) -> Self {
        Self {
            name: name.to_owned(),
            command,
            limit: Duration::from_secs(1800),
        }
    }
}

/// Which stages and tests are run in a kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// Only tests that are short enough for `cargo xtask test`.
    Part,
    Whole,
}

const TESTS: [&str; 5] = ["packet", "fuzz", "maps", "node", "conformance"];

/// The test of the program `packet` for `Extent::Part`: every kernel program with all optional
/// code. The cases of `fuzz` load them with other settings, and ask what they do with packets.
const PACKET_PART: &str = "budget::case_4_all";
/// The test of the program `fuzz` with the cases that are text: every verdict, both directions.
const CASES_AS_TEXT: &str = "cases_go";
/// Tests that attach, replace and remove kernel programs by tcx links.
const BY_TCX: [&str; 4] = [
    "attach::attachments_outlive",
    "attach::pins_of_a_removed_interface",
    "attach::a_link_of_the_same_index",
    "attach::an_interface_without_link_layer",
];
/// A shell command that succeeds if the kernel has tcx.
const HAS_TCX: &str = "grep -q ' tcx_link_attach' /proc/kallsyms";
/// A test of an agent that reads its services from manifests, serves, and is restarted.
const SERVE_PART: &str = "restart::a_connection_outlives";
/// Of `follow` those that pass on Linux 6.1: it has no tcx links, and gives no reason for a martian
/// source.
const SERVE: &str =
    "changes:: follow::routes handover:: refused:: restart:: attachments:: takeover::";
/// Tests of services through every kind of interface. Most need kernel modules and are ignored by
/// default; they fail on a kernel that lacks such a module.
const DEVICES: &str = "--include-ignored devices::";
/// Tests of features that only newer kernels have: part of the tests' names, and the first series.
const NEWER: [(&str, &str); 1] = [("netkit", "6.7")];
/// Conformance cases that need most of the features that a kernel may lack: pods, node ports,
/// masquerading, sockets of the node's processes.
const CASES: [&str; 8] = [
    "affinity-sticky-per-client",
    "cluster-ip-sctp",
    "dual-stack-service",
    "hairpin-sole-endpoint",
    "masquerade-by-source-local-policy",
    "node-port-on-loopback",
    "node-process-reaches-every-vip",
    "udp-flow-follows-endpoint-change",
];

/// A single setting of balancing and forwarding for the conformance cases, because in a virtual
/// machine each case takes half a minute to load the programs.
const SET_UP: &str = "--socket-balancing all --forwarding stack";

/// The test programs and the agent that run in the kernels.
pub(super) struct Built {
    pub(super) arch: Arch,
    pub(super) programs: Vec<PathBuf>,
    /// Folders that the programs read; they have the same paths in the kernel's file system.
    pub(super) folders: Vec<PathBuf>,
}

impl Built {
    pub(super) fn build(arch: Arch) -> Result<Self> {
        let builder = Builder::new(arch)?;
        let folder = Workspace::read()?.target_directory();
        let build = |name: &&str| {
            if builder.is_native() {
                return cargo::build_test(name);
            }
            // A separate folder, because everything differs in a cross build. Linked statically, so
            // that the program needs no library in the kernel's file system.
            cargo::build_test_by(name, |command| {
                command.arg("--target-dir").arg(folder.join(arch.name()));
                builder.direct(command, "-Ctarget-feature=+crt-static");
            })
        };
        let mut programs = TESTS.iter().map(build).collect::<Result<Vec<_>>>()?;
        let beside = programs.first().and_then(|test| test.parent()?.parent());
        let agent = beside.map(|folder| folder.join("portolan"));
        programs.push(agent.context("tests are built into a folder")?);
        let root = cargo::root();
        Ok(Self {
            arch,
            programs,
            folders: ["conformance", "deploy", "proxy-user/tests/fuzz/cases"]
                .map(|folder| root.join(folder))
                .to_vec(),
        })
    }

    /// Returns the stages to run in the kernel with this version (`uname -r`).
    pub(super) fn stages(&self, extent: Extent, release: &str) -> Result<Vec<Stage>> {
        let paths: Vec<_> = self
            .programs
            .iter()
            .map(|program| program.display())
            .collect();
        let [packet, fuzz, maps, node, conformance, _agent] = &paths[..] else {
            bail!("a test program was not built");
        };
        let one = "--test-threads=1";
        let cases: String = CASES.map(|case| format!(" --case {case}")).concat();
        let folder = cargo::root().join("conformance/cases");
        let folder = folder.display();
        let only_tcx = BY_TCX.map(|test| format!(" --skip {test}")).concat();
        let packet = |what| Stage::new("packet", format!("{packet} {one} --nocapture {what}"));
        let text = Stage::new("cases", format!("{fuzz} {one} {CASES_AS_TEXT}"));
        let serve = |what| Stage::new("serve", format!("{node} {one} {what}"));
        let skipped = skipped(release);
        let devices = Stage::new("devices", format!("{node} {one} {DEVICES}{skipped}"));
        Ok(match extent {
            Extent::Part => {
                let mut stages = vec![packet(PACKET_PART), text, serve(SERVE_PART)];
                // Kernels are tested in parallel, and one is enough for this stage: one with every
                // kind of interface.
                stages.extend(skipped.is_empty().then_some(devices));
                stages
            }
            Extent::Whole => {
                let maps = format!("{HAS_TCX} || skip='{only_tcx}'; {maps} {one} $skip");
                let maps = Stage::new("maps", maps);
                let cases = format!("{conformance} {folder} --jobs 1 {SET_UP}{cases}");
                let cases = Stage::new("conformance", cases);
                vec![packet(""), text, maps, serve(SERVE), devices, cases]
            }
        })
    }
}

/// Returns arguments that skip the tests for which a kernel of this version is too old.
fn skipped(release: &str) -> String {
    let newer = NEWER
        .iter()
        .filter(|(_, since)| compare(release, since).is_lt());
    newer.map(|(name, _)| format!(" --skip {name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernels_that_are_too_old_leave_tests_out() {
        assert_eq!(skipped("6.1.0-56-cloud-amd64"), " --skip netkit");
        assert_eq!(skipped("6.7.1-cloud-amd64"), "");
        assert_eq!(skipped("6.12.117+deb13-cloud-amd64"), "");
    }
}
