// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask kernels`: boots Debian's kernels in qemu, one after another, runs this clone's test
//! programs in each, and writes docs/dev/kernels.md. `cargo xtask test kernels` does it for the
//! kernels of Debian's stable releases.

pub(crate) mod apt;
mod archive;
mod boot;
mod initramfs;
mod packages;
mod programs;
mod report;
mod stages;

use std::{
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Result, anyhow, ensure};

use crate::{arch::Arch, cargo::Workspace, fs, setup, summary};
use boot::Run;
use packages::{Kernel, Packages};
pub(crate) use report::over_budget;
use stages::{Built, Extent, Stage};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Series of kernels, such as 6.12; all that Debian has unless given
    versions: Vec<String>,
    /// Look for newer releases than those in the cache
    #[arg(long)]
    newest: bool,
    /// Only the part of the tests that `cargo xtask test` runs
    #[arg(long)]
    part: bool,
    /// The processor; another one than this machine's is built for by a cross compiler
    #[arg(long, value_enum, default_value_t = Arch::OWN)]
    arch: Arch,
}

/// The series of kernels that portolan supports and that Debian has packages for.
const SERIES: [&str; 10] = [
    "6.1", "6.12", "6.16", "6.17", "6.18", "6.19", "7.0", "7.1", "7.2", "7.3",
];

/// The programs that boot and prepare kernels, each with its Debian package.
const TOOLS: [(&str, &str); 6] = [
    ("busybox", "busybox-static"),
    ("depmod", "kmod"),
    ("setpriv", "util-linux"),
    ("strip", "binutils"),
    ("wg", "wireguard-tools"),
    ("xz", "xz-utils"),
];

/// The kernels of Debian's stable releases, the oldest first: `cargo xtask test` boots that one,
/// `cargo xtask test all` each.
const TESTED: [&str; 2] = ["6.1", "6.12"];

fn install_tools(arch: Arch) -> Result<()> {
    setup::tools(&TOOLS)?;
    setup::tools(&[boot::qemu(arch)])
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let arch = arguments.arch;
    install_tools(arch)?;
    let built = Built::build(arch)?;
    let extent = if arguments.part {
        Extent::Part
    } else {
        Extent::Whole
    };
    let versions: Vec<&str> = if arguments.versions.is_empty() {
        SERIES.to_vec()
    } else {
        arguments.versions.iter().map(String::as_str).collect()
    };
    let mut packages = Packages::open(arch)?;
    let common = initramfs::common(&built)?;
    let mut failed = Vec::new();
    for series in versions {
        let kernel = match packages.kernel(series, arguments.newest) {
            Ok(kernel) => kernel,
            Err(error) => {
                println!("\n=== kernel {series} could not be had: {error:#}");
                failed.push(series);
                continue;
            }
        };
        println!("\n=== kernel {}", kernel.release);
        let stages = built.stages(extent, &kernel.release)?;
        let run = boot_one(arch, &kernel, &common, &stages, |line| println!("{line}"))?;
        for stage in &run.stages {
            println!("{series}: {}", stage.describe());
        }
        if !run.complaints().is_empty() {
            failed.push(series);
        }
        let name = if arch == Arch::Amd64 {
            series.to_owned()
        } else {
            format!("{series} {}", arch.name())
        };
        report::store(&name, &kernel.release, &run)?;
    }
    ensure!(
        failed.is_empty(),
        "not all is well on {}, see above",
        failed.join(", ")
    );
    Ok(())
}

/// Finds the kernels that `cargo xtask test all` boots, or the oldest of them; the error says why
/// one is missing.
pub(crate) fn tested_kernels(only_oldest: bool) -> Result<Vec<Kernel>> {
    install_tools(Arch::OWN)?;
    let mut packages = Packages::open(Arch::OWN)?;
    let count = if only_oldest { 1 } else { TESTED.len() };
    let kernels = TESTED.iter().take(count);
    let kernels = kernels.map(|series| packages.kernel(series, false));
    kernels.collect()
}

/// Boots the kernels in parallel, runs the stages of `Extent::Part` and adds the results to the row
/// of the summary. Stages that fail are run again, as the failed tests of other stages are.
pub(crate) fn test(kernels: &[Kernel], seen: &mut summary::Stage) -> Result<()> {
    let built = Built::build(Arch::OWN)?;
    let common = initramfs::common(&built)?;
    let run_one = |kernel: &Kernel| {
        let lines = Mutex::new(Vec::new());
        let boot = |stages: &[Stage]| {
            boot_one(Arch::OWN, kernel, &common, stages, |line| {
                if line.starts_with("@@ end") {
                    println!("{}: {line}", kernel.release);
                }
                let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                lines.push(line.to_owned());
            })
        };
        let mut unsteady = Vec::new();
        let run = built
            .stages(Extent::Part, &kernel.release)
            .and_then(|mut stages| {
                let mut run = boot(&stages)?;
                let failed = run.stages.iter().filter(|stage| !stage.passed());
                let failed: Vec<_> = failed.map(|stage| stage.name.clone()).collect();
                if run.finished && !failed.is_empty() {
                    stages.retain(|stage| failed.contains(&stage.name));
                    unsteady = run.after(boot(&stages)?);
                }
                Ok(run)
            });
        let lines = lines.into_inner().unwrap_or_else(PoisonError::into_inner);
        (run, unsteady, lines)
    };
    let runs: Vec<_> = thread::scope(|scope| {
        let start = |kernel| scope.spawn(move || run_one(kernel));
        let runs: Vec<_> = kernels.iter().map(start).collect();
        runs.into_iter().map(|run| run.join()).collect()
    });
    for (kernel, run) in kernels.iter().zip(runs) {
        let (run, unsteady, lines) = run.map_err(|_| anyhow!("a kernel's thread panicked"))?;
        let release = &kernel.release;
        let failures = match run {
            Ok(run) => {
                for stage in &run.stages {
                    println!("{release}: {}", stage.describe());
                    seen.tally.passed += stage.tally.passed;
                }
                run.complaints()
            }
            Err(error) => vec![format!("{error:#}")],
        };
        if !failures.is_empty() || !unsteady.is_empty() {
            println!("{release} said:\n{}", lines.join("\n"));
        }
        let named = |text: String| format!("{release}: {text}");
        seen.tally.failed += failures.len();
        seen.failures.extend(failures.into_iter().map(named));
        seen.unsteady.extend(unsteady.into_iter().map(named));
    }
    Ok(())
}

fn boot_one(
    arch: Arch,
    kernel: &Kernel,
    common: &[u8],
    stages: &[Stage],
    say: impl Fn(&str),
) -> Result<Run> {
    let name = format!("kernels-{}-{}.cpio", kernel.release, std::process::id());
    let initramfs = Workspace::read()?.target_directory().join(name);
    fs::write(
        &initramfs,
        [common, &initramfs::of_kernel(kernel, stages)?].concat(),
    )?;
    let limit = stages.iter().map(|stage| stage.limit).sum::<Duration>() + Duration::from_secs(60);
    let run = boot::boot(arch, &kernel.image, &initramfs, limit, say);
    fs::remove_file(&initramfs)?;
    run
}
