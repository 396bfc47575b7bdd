// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask kernels`: boots Debian's kernels in qemu, one after another, runs tests in each with the test programs of this
//! clone, and writes docs/kernels.md. `cargo xtask test kernels` runs it for the kernels of Debian's stable releases.

mod archive;
mod boot;
mod initramfs;
mod packages;

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};

use crate::{
    cargo::{self, Workspace},
    setup,
};
use boot::{QEMU, Run};
use packages::Packages;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Series of kernels, such as 6.12; all that Debian has unless given
    versions: Vec<String>,
    /// Look for newer releases than those in the cache
    #[arg(long)]
    newest: bool,
    /// Only this stage; may be given more than once
    #[arg(long)]
    stage: Vec<String>,
    /// Run this command in the kernel instead of the stages
    #[arg(long)]
    command: Option<String>,
}

/// Every series that Debian has packages of and portolan is promised for.
const SERIES: [&str; 10] = [
    "6.1", "6.12", "6.16", "6.17", "6.18", "6.19", "7.0", "7.1", "7.2", "7.3",
];

/// The programs that boot and prepare kernels, with the Debian package of each.
const TOOLS: [(&str, &str); 6] = [
    (QEMU, "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("depmod", "kmod"),
    ("setpriv", "util-linux"),
    ("strip", "binutils"),
    ("xz", "xz-utils"),
];

/// Something that is run in a kernel.
pub(super) struct Stage {
    name: String,
    /// A line for the shell.
    command: String,
    limit: Duration,
}

const STAGE_LIMIT: Duration = Duration::from_secs(900);

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    setup::tools(&TOOLS)?;
    let built = Built::build()?;
    let mut stages = built.stages();
    if let Some(command) = &arguments.command {
        stages = vec![Stage {
            name: "command".to_owned(),
            command: command.clone(),
            limit: STAGE_LIMIT,
        }];
    } else if !arguments.stage.is_empty() {
        stages.retain(|stage| arguments.stage.contains(&stage.name));
        ensure!(!stages.is_empty(), "there is no such stage");
    }
    let versions: Vec<&str> = if arguments.versions.is_empty() {
        SERIES.to_vec()
    } else {
        arguments.versions.iter().map(String::as_str).collect()
    };
    let mut packages = Packages::open()?;
    let common = initramfs::common(&built.programs(), &built.folders)?;
    for series in versions {
        let kernel = packages.kernel(series, arguments.newest)?;
        println!("\n=== kernel {}", kernel.release);
        let run = boot_one(&kernel, &common, &stages)?;
        println!("{run:?}");
    }
    Ok(())
}

fn boot_one(kernel: &packages::Kernel, common: &[u8], stages: &[Stage]) -> Result<Run> {
    let initramfs = Workspace::read()?.target_directory().join(format!(
        "kernels-{}-{}.cpio",
        kernel.release,
        std::process::id()
    ));
    let content = [common, &initramfs::of_kernel(kernel, stages)?].concat();
    fs::write(&initramfs, content).with_context(|| format!("write {}", initramfs.display()))?;
    let limit = stages.iter().map(|stage| stage.limit).sum::<Duration>() + Duration::from_secs(60);
    let run = boot::boot(&kernel.image, &initramfs, limit, |line| println!("{line}"));
    fs::remove_file(&initramfs).with_context(|| format!("remove {}", initramfs.display()))?;
    run
}

/// The programs that run in the kernels.
struct Built {
    agent: PathBuf,
    tests: Vec<(&'static str, PathBuf)>,
    folders: Vec<PathBuf>,
}

const TESTS: [&str; 5] = ["packet", "maps", "node", "sockets", "conformance"];

impl Built {
    fn build() -> Result<Self> {
        let mut tests = Vec::new();
        for name in TESTS {
            tests.push((name, cargo::build_test(name)?));
        }
        let agent = Workspace::read()?.target_directory().join("debug/portolan");
        let root = cargo::root();
        Ok(Self {
            agent,
            tests,
            folders: vec![root.join("conformance"), root.join("deploy")],
        })
    }

    fn programs(&self) -> Vec<PathBuf> {
        let tests = self.tests.iter().map(|(_, path)| path.clone());
        tests.chain([self.agent.clone()]).collect()
    }

    fn test(&self, name: &str) -> String {
        let path = self.tests.iter().find(|(test, _)| *test == name);
        path.map(|(_, path)| path.display().to_string())
            .unwrap_or_default()
    }

    fn stages(&self) -> Vec<Stage> {
        let stage = |name: &str, command: String| Stage {
            name: name.to_owned(),
            command,
            limit: STAGE_LIMIT,
        };
        vec![
            stage(
                "packet",
                format!("{} --test-threads=1", self.test("packet")),
            ),
            stage("maps", format!("{} --test-threads=1", self.test("maps"))),
        ]
    }
}
