// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask kernels`: boots Debian's kernels in qemu, one after another, runs this clone's test
//! programs in each, and writes what came of it (`report`). `cargo xtask test kernels` does it for
//! the kernels of Debian's stable releases.

pub(crate) mod apt;
mod boot;
mod initramfs;
mod report;
mod stages;

use std::{thread, time::Duration};

use anyhow::{Result, anyhow, ensure};

use crate::{
    cargo::{self, Workspace},
    command,
    cross::Arch,
    fs, setup, summary,
};
use apt::{Apt, Kernel};
use boot::{Run, describe};
pub(crate) use report::over_budget;
use stages::{Built, Stage};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Series of kernels, such as 6.12; all that Debian has unless given
    versions: Vec<String>,
    /// Only the part of the tests that `cargo xtask test` runs
    #[arg(long)]
    part: bool,
    /// The processor; another one than this machine's is built for by a cross compiler
    #[arg(long, value_enum, default_value_t = Arch::OWN)]
    arch: Arch,
}

/// The series of kernels that portolan supports and that Debian has packages for.
const SERIES: &str = "6.1 6.12 6.16 6.17 6.18 6.19 7.0 7.1 7.2 7.3";

/// The programs that boot and prepare kernels, each with its Debian package.
const TOOLS: &str = "busybox=busybox-static depmod=kmod setpriv=util-linux strip=binutils \
    wg=wireguard-tools xz=xz-utils";

/// The kernels of Debian's stable releases. `cargo xtask test` boots the first, the oldest.
const TESTED: [&str; 2] = ["6.1", "6.12"];

fn install_tools(arch: Arch) -> Result<()> {
    let (qemu, package) = boot::qemu(arch);
    setup::tools(&format!("{TOOLS} {qemu}={package}"))
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let arch = arguments.arch;
    install_tools(arch)?;
    let tests = Tests::build(arch)?;
    let mut versions: Vec<_> = arguments.versions.iter().map(String::as_str).collect();
    if versions.is_empty() {
        versions.extend(SERIES.split(' '));
    }
    let debian = Apt::open(arch)?;
    let commit = cargo::git("describe --always --dirty --exclude=* --abbrev=8")?;
    let date = command::output(&mut command::of("date", "--utc +%F"), "ask for the date")?;
    let mut failed = Vec::new();
    for series in versions {
        let kernel = match apt::kernel(&debian, series) {
            Ok(kernel) => kernel,
            Err(error) => {
                println!("\n=== kernel {series} could not be had: {error:#}");
                failed.push(series);
                continue;
            }
        };
        println!("\n=== kernel {}", kernel.release);
        let stages = tests.built.stages(arguments.part, &kernel.release);
        let run = tests.boot(&kernel, &stages, |line| println!("{line}"))?;
        for stage in &run.stages {
            println!("{series}: {}", describe(stage));
        }
        if !run.complaints().is_empty() {
            failed.push(series);
        }
        let name = match arch {
            Arch::Amd64 => series.to_owned(),
            Arch::Arm64 => format!("{series} {}", arch.name()),
        };
        report::store(&name, &kernel.release, &run, [&commit, date.trim()])?;
    }
    let names = failed.join(", ");
    ensure!(failed.is_empty(), "not all is well on {names}, see above");
    Ok(())
}

/// Boots the kernels of `TESTED`, or the oldest of them, in parallel, runs a part of the
/// tests and adds the results to the row of the summary. Stages that fail are run again, as the
/// failed tests of other stages are. Where these kernels are not available (no Debian, no
/// mirror), prints a message, and one test counts as not run.
pub(crate) fn test(only_oldest: bool, seen: &mut summary::Stage) -> Result<()> {
    let count = if only_oldest { 1 } else { TESTED.len() };
    let kernels = match tested(count) {
        Ok(kernels) => kernels,
        Err(error) => {
            println!("NO KERNEL WAS TESTED but this machine's own: {error:#}");
            seen.tally.not_run += 1;
            return Ok(());
        }
    };
    let tests = &Tests::build(Arch::OWN)?;
    let runs: Vec<_> = thread::scope(|scope| {
        let start = |kernel| {
            scope.spawn(move || {
                let mut lines = String::new();
                (tests.twice(kernel, &mut lines), lines)
            })
        };
        let runs: Vec<_> = kernels.iter().map(start).collect();
        runs.into_iter().map(|run| run.join()).collect()
    });
    for (kernel, run) in kernels.iter().zip(runs) {
        let (run, lines) = run.map_err(|_| anyhow!("a kernel's thread panicked"))?;
        let release = &kernel.release;
        let named = |text: String| format!("{release}: {text}");
        let failures = match run {
            Ok(mut run) => {
                for stage in &mut run.stages {
                    println!("{release}: {}", describe(stage));
                    seen.tally.passed += stage.tally.passed;
                    seen.unsteady.extend(stage.unsteady.drain(..).map(named));
                }
                run.complaints()
            }
            Err(error) => vec![format!("{error:#}")],
        };
        if !failures.is_empty() || !seen.unsteady.is_empty() {
            println!("{release} said:\n{lines}");
        }
        seen.tally.failed += failures.len();
        seen.failures.extend(failures.into_iter().map(named));
    }
    ensure!(seen.failures.is_empty(), "not all is well on every kernel");
    Ok(())
}

fn tested(count: usize) -> Result<Vec<Kernel>> {
    install_tools(Arch::OWN)?;
    let debian = Apt::open(Arch::OWN)?;
    let kernels = TESTED.iter().take(count);
    kernels.map(|series| apt::kernel(&debian, series)).collect()
}

/// The programs that run in kernels, and the archive with them.
struct Tests {
    built: Built,
    common: Vec<u8>,
}

impl Tests {
    fn build(arch: Arch) -> Result<Self> {
        let built = Built::build(arch)?;
        let common = initramfs::common(&built)?;
        Ok(Self { built, common })
    }

    /// Runs a part's stages, and those that failed once more; adds what is printed to `lines`.
    fn twice(&self, kernel: &Kernel, lines: &mut String) -> Result<Run> {
        let mut boot = |stages: &[Stage]| {
            self.boot(kernel, stages, |line| {
                if line.starts_with("@@ end") {
                    println!("{}: {line}", kernel.release);
                }
                *lines += &format!("{line}\n");
            })
        };
        let mut stages = self.built.stages(true, &kernel.release);
        let run = boot(&stages)?;
        stages.retain(|stage| {
            let mut failed = run.stages.iter().filter(|run| run.has_failed());
            failed.any(|run| run.name == stage.name)
        });
        if !run.finished || stages.is_empty() {
            return Ok(run);
        }
        Ok(run.after(boot(&stages)?))
    }

    fn boot(&self, kernel: &Kernel, stages: &[Stage], say: impl FnMut(&str)) -> Result<Run> {
        let name = format!("kernels-{}-{}.cpio", kernel.release, std::process::id());
        let initramfs = Workspace::read()?.target_directory().join(name);
        let own = initramfs::of_kernel(kernel, stages)?;
        fs::write(&initramfs, [&self.common[..], &own].concat())?;
        let limits = stages.iter().map(|_| Stage::LIMIT);
        let limit = limits.sum::<Duration>() + Duration::from_secs(60);
        let run = boot::boot(self.built.arch, &kernel.image, &initramfs, limit, say);
        fs::remove_file(&initramfs)?;
        run
    }
}
