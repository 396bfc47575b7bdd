// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stages that are run in a kernel: each runs a test program of this clone, one test after
//! another. Used by `kernels`.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail};

use super::apt::compare;
use crate::{
    cargo::{self, Workspace},
    cross::{Arch, Builder},
};

/// A shell command that is run in a kernel and counts as one stage in the results.
pub(super) struct Stage {
    pub(super) name: &'static str,
    /// The command line for the kernel's shell.
    pub(super) command: String,
}

impl Stage {
    /// The longest time that a stage may take.
    pub(super) const LIMIT: Duration = Duration::from_secs(1800);
}

const TESTS: &str = "packet fuzz maps node conformance";

/// The test of the program `packet` for a part of the tests: every kernel program with all optional
/// code. The cases of `fuzz` load them with other settings, and ask what they do with packets.
const PACKET_PART: &str = "budget::case_4_all";
/// The test of the program `fuzz` with the cases that are text: every verdict, both directions.
const CASES_AS_TEXT: &str = "cases_go";
/// Skips tests that attach, replace and remove kernel programs by tcx links, where the kernel has
/// none.
const WITHOUT_TCX: &str = "grep -q ' tcx_link_attach' /proc/kallsyms || skip='\
    --skip attach::attachments_outlive --skip attach::pins_of_a_removed_interface \
    --skip attach::a_link_of_the_same_index --skip attach::an_interface_without_link_layer'";
/// A test of an agent that serves pods and the node's processes, with manifests.
const SERVE_PART: &str = "without_v4::";
/// Of `follow` those that pass on Linux 6.1: it has no tcx links, and gives no reason for a martian
/// source.
const SERVE: &str =
    "without_v4:: follow::routes handover::a_drained refused:: attachments:: takeover::";
/// Tests of services through every kind of interface. Most need kernel modules and are ignored by
/// default; they fail on a kernel that lacks such a module.
const DEVICES: &str = "--include-ignored devices::";
/// Skips tests of devices that only kernels since `NETKIT` have.
const WITHOUT_NETKIT: &str = " --skip netkit";
const NETKIT: &str = "6.7";
/// Conformance cases that need most of the features that a kernel may lack: pods, node ports,
/// masquerading, sockets of the node's processes.
/// In a single setting, because in a virtual machine each takes half a minute to load the programs.
const CASES: &str = "--jobs 1 --socket-balancing all --forwarding stack \
    --case affinity-sticky-per-client --case cluster-ip-sctp --case dual-stack-service \
    --case hairpin-sole-endpoint --case masquerade-by-source-local-policy \
    --case node-port-on-loopback --case node-process-reaches-every-vip \
    --case udp-flow-follows-endpoint-change";

/// The test programs and the agent that run in the kernels.
pub(super) struct Built {
    pub(super) arch: Arch,
    pub(super) programs: Vec<PathBuf>,
    /// Folders that the programs read; they have the same paths in the kernel's file system.
    pub(super) folders: [PathBuf; 3],
}

impl Built {
    pub(super) fn build(arch: Arch) -> Result<Self> {
        let builder = Builder::new(arch)?;
        let folder = Workspace::read()?.target_directory();
        let build = |name| {
            cargo::build_test(name, |command| {
                if builder.is_native() {
                    return;
                }
                // A separate folder, because everything differs in a cross build. Linked statically,
                // so that the program needs no library in the kernel's file system.
                command.arg("--target-dir").arg(folder.join(arch.name()));
                builder.direct(command, "-Ctarget-feature=+crt-static");
            })
        };
        let mut programs = TESTS.split(' ').map(build).collect::<Result<Vec<_>>>()?;
        let beside = programs.first().and_then(|test| test.parent()?.parent());
        let agent = beside.map(|folder| folder.join("portolan"));
        programs.push(agent.context("tests are built into a folder")?);
        let folders = ["conformance", "deploy", "proxy-user/tests/fuzz/cases"];
        Ok(Self {
            arch,
            programs,
            folders: folders.map(|folder| cargo::root().join(folder)),
        })
    }

    /// Returns the stages to run in the kernel with this version (`uname -r`). `is_part`: only
    /// tests that are short enough for `cargo xtask test`.
    pub(super) fn stages(&self, is_part: bool, release: &str) -> Result<Vec<Stage>> {
        let paths = self.programs.iter().map(|program| program.display());
        let paths: Vec<_> = paths.collect();
        let [packet, fuzz, maps, node, conformance, _agent] = &paths[..] else {
            bail!("a test program was not built");
        };
        let one = "--test-threads=1";
        let stage = |name, command| Stage { name, command };
        let cases = cargo::root().join("conformance/cases");
        let packet = |what| stage("packet", format!("{packet} {one} --nocapture {what}"));
        let text = stage("cases", format!("{fuzz} {one} {CASES_AS_TEXT}"));
        let serve = |what| stage("serve", format!("{node} {one} {what}"));
        let has_all = compare(release, NETKIT).is_ge();
        let skipped = if has_all { "" } else { WITHOUT_NETKIT };
        let devices = stage("devices", format!("{node} {one} {DEVICES}{skipped}"));
        if is_part {
            let mut stages = vec![packet(PACKET_PART), text, serve(SERVE_PART)];
            // Kernels are tested in parallel, and one is enough for this stage: one with every kind
            // of interface.
            stages.extend(has_all.then_some(devices));
            return Ok(stages);
        }
        let maps = stage("maps", format!("{WITHOUT_TCX}; {maps} {one} $skip"));
        let cases = format!("{conformance} {} {CASES}", cases.display());
        let cases = stage("conformance", cases);
        Ok(vec![packet(""), text, maps, serve(SERVE), devices, cases])
    }
}
