// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds the first file system (initramfs) of a kernel under test: the programs that the tests
//! call with their libraries, the test programs, the kernel's modules, and the stages to run. Used
//! by `kernels`.

use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, ensure};

use super::{
    archive::Archive,
    packages::Kernel,
    programs::Programs,
    stages::{Built, Stage},
};
use crate::{arch::Arch, command, fs, host};

const INIT: &str = include_str!("init.sh");

/// The programs that the tests call. If this machine lacks one, its tests say so.
const PROGRAMS: &str = "/usr/lib/cni/bandwidth bpftool bridge ip nft ping setpriv ss tc wg";

/// The kernel modules that the agent and the tests need where the kernel does not have them built
/// in. Modules that they depend on are added.
const MODULES: &str = "
8021q bonding bridge br_netfilter dummy geneve ifb ip6_tunnel ip_gre ipip macvlan tun veth vxlan wireguard
act_gact act_mirred act_police cls_bpf cls_flower cls_matchall cls_u32 sch_ingress sch_tbf
nf_conntrack nf_conntrack_netlink nf_nat nf_tables
nft_chain_nat nft_ct nft_fib_inet nft_masq nft_nat nft_reject_inet
inet_diag raw_diag tcp_diag udp_diag";

/// Files that programs need to look up host and protocol names: path and content.
const NAMES: [(&str, &str); 4] = [
    ("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"),
    ("/etc/nsswitch.conf", "hosts: files\nprotocols: files\n"),
    ("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"),
    (
        "/etc/protocols",
        "icmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\nipv6-icmp 58 IPv6-ICMP\nsctp 132 SCTP\n",
    ),
];

/// Builds the archive that all kernels of an architecture share: programs, libraries, test programs
/// and files of the clone.
pub(super) fn common(built: &Built) -> Result<Vec<u8>> {
    let programs = Programs::of(built.arch)?;
    let mut archive = Archive::default();
    archive.file("/init", 0o755, INIT.as_bytes());
    for (path, text) in NAMES {
        archive.file(path, 0o644, text.as_bytes());
    }
    let busybox = programs.find("busybox").context("there is no busybox")?;
    archive.copy(&busybox, "/bin/busybox")?;
    for name in PROGRAMS.split(' ') {
        if let Some(program) = programs.find(name) {
            programs.add_libraries(&mut archive, &program)?;
            archive.copy(&program, &programs.path(&program))?;
        }
    }
    for test in &built.programs {
        programs.add_libraries(&mut archive, test)?;
        archive.file(&test.to_string_lossy(), 0o755, &stripped(test, built.arch)?);
    }
    for folder in &built.folders {
        add_folder(&mut archive, folder)?;
    }
    Ok(archive.finish())
}

/// Builds the archive for one kernel: its modules, and the stages to run.
pub(super) fn of_kernel(kernel: &Kernel, stages: &[Stage]) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    let mut list = String::new();
    for module in in_order(&kernel.modules)? {
        let file = kernel.modules.join(&module);
        let (_, name) = module.rsplit_once('/').unwrap_or_default();
        let path = format!("/lib/modules/{}", name.trim_end_matches(".xz"));
        archive.file(&path, 0o644, &unpacked(&file)?);
        list.push_str(&path);
        list.push('\n');
    }
    archive.file("/modules", 0o644, list.as_bytes());
    let line = |stage: &Stage| {
        let seconds = stage.limit.as_secs();
        format!("{}\t{seconds}\t{}\n", stage.name, stage.command)
    };
    let lines: String = stages.iter().map(line).collect();
    archive.file("/stages", 0o644, lines.as_bytes());
    Ok(archive.finish())
}

/// Returns `MODULES` and the modules that they depend on, in the order of loading, as paths below
/// the folder of the kernel's modules.
fn in_order(folder: &Path) -> Result<Vec<String>> {
    let file = folder.join("modules.dep");
    if !file.exists() {
        // Debian's packages contain the modules, but not their index modules.dep.
        let base = folder
            .ancestors()
            .nth(3)
            .context("modules lie below a folder")?;
        let release = folder.file_name().context("a release")?;
        let depmod = host::find_program("depmod").context("depmod is missing: package kmod")?;
        let mut command = Command::new(depmod);
        command.arg("-b").arg(base).arg(release);
        command::output(&mut command, "index the kernel's modules")?;
    }
    Ok(order(&fs::read_to_string(&file)?, MODULES))
}

/// Returns the wanted modules and their dependencies in loading order; `index`: modules.dep.
fn order(index: &str, wanted: &str) -> Vec<String> {
    let needs: BTreeMap<&str, Vec<&str>> = index
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(module, needs)| (module, needs.split_whitespace().collect()))
        .collect();
    let by_name = needs.keys().map(|path| (module_name(path), *path));
    let by_name: BTreeMap<&str, &str> = by_name.collect();
    let (mut order, mut seen) = (Vec::new(), HashSet::new());
    for path in wanted
        .split_whitespace()
        .filter_map(|name| by_name.get(name))
    {
        // The index lists dependencies in reverse order, the most basic one last.
        let all = needs[path].iter().rev().chain([path]);
        for module in all.copied() {
            if seen.insert(module) {
                order.push(module.to_owned());
            }
        }
    }
    order
}

fn module_name(path: &str) -> &str {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split('.').next().unwrap_or(file)
}

fn unpacked(module: &Path) -> Result<Vec<u8>> {
    if module.extension().is_none_or(|ending| ending != "xz") {
        return fs::read(module);
    }
    let output = Command::new("xz").arg("-dc").arg(module).output();
    let output = output.context("start xz: package xz-utils")?;
    ensure!(output.status.success(), "unpack {}", module.display());
    Ok(output.stdout)
}

/// Returns the content of a program without debugging information, which is most of the file.
fn stripped(program: &Path, arch: Arch) -> Result<Vec<u8>> {
    let copy = program.with_extension("stripped");
    let prefix = if arch == Arch::OWN {
        String::new()
    } else {
        format!("{}-", arch.gnu())
    };
    let mut command = command::of(format!("{prefix}strip"), "--strip-debug -o");
    command.arg(&copy).arg(program);
    command::output(&mut command, "strip a program: package binutils")?;
    let content = fs::read(&copy)?;
    fs::remove_file(&copy)?;
    Ok(content)
}

fn add_folder(archive: &mut Archive, folder: &Path) -> Result<()> {
    for path in fs::children(folder)? {
        if path.is_dir() {
            add_folder(archive, &path)?;
        } else {
            archive.copy(&path, &path.to_string_lossy())?;
        }
    }
    Ok(())
}
