// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds the first file system (initramfs) of a kernel under test: the programs that the tests
//! call with their libraries, the test programs, the kernel's modules, and the stages to run.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::{
    apt::{Apt, Kernel},
    stages::{Built, Stage},
};
use crate::{cargo::Workspace, command, cross::Arch, fs, host};

const INIT: &str = include_str!("init.sh");

/// The programs that the tests call. If this machine lacks one, its tests say so.
const PROGRAMS: &str = "/usr/lib/cni/bandwidth bpftool bridge ip nft ping setpriv ss tc wg";

/// The kernel modules that the agent and the tests need where the kernel does not have them built
/// in. Modules that they depend on are added.
const MODULES: &str = include_str!("modules.txt");

/// A folder that becomes a part of a first file system: a kernel takes several archives as one.
pub(super) struct Image(TempDir);

impl Image {
    fn new() -> Result<Self> {
        let folder = TempDir::with_prefix_in("kernels-", Workspace::read()?.target_directory());
        let image = Self(folder.context("make a folder")?);
        // The temporary folder itself is closed to others; the file system's root must not be.
        fs::create_dir_all(image.at("/"))?;
        Ok(image)
    }

    /// Returns where a path of the kernel's file system lies.
    pub(super) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        let inner = path.strip_prefix("/").unwrap_or(path);
        self.0.path().join("root").join(inner)
    }

    /// Returns the folder as a cpio archive.
    fn packed(self) -> Result<Vec<u8>> {
        let pack = "find . | busybox cpio -o -H newc -F ../archive";
        let mut command = command::of("sh", "-c");
        command.arg(pack).current_dir(self.at("/"));
        command::output(&mut command, "pack a kernel's file system")?;
        fs::read(self.0.path().join("archive"))
    }
}

/// Builds the archive that all kernels share: programs, libraries, tests and files of the clone.
pub(super) fn common(built: &Built) -> Result<Vec<u8>> {
    let programs = Programs::of(built.arch)?;
    let image = Image::new()?;
    let busybox = programs.find("busybox").context("there is no busybox")?;
    fs::copy(&busybox, &image.at("/bin/busybox"))?;
    fs::write(image.at("/init"), INIT)?;
    let mode = busybox.metadata().context("look at busybox")?.permissions();
    std::fs::set_permissions(image.at("/init"), mode).context("make /init executable")?;
    for program in PROGRAMS.split(' ').filter_map(|name| programs.find(name)) {
        programs.add_libraries(&image, &program)?;
        fs::copy(&program, &image.at(programs.path(&program)))?;
    }
    for test in &built.programs {
        programs.add_libraries(&image, test)?;
        let at = image.at(test);
        fs::copy(test, &at)?;
        // Debugging information is most of the file.
        let strip = match built.arch {
            Arch::OWN => "strip".to_owned(),
            other => format!("{}-strip", other.gnu()),
        };
        let mut command = command::of(strip, "--strip-debug");
        command::output(command.arg(at), "strip a program: package binutils")?;
    }
    let mut command = command::of("cp", "--recursive --parents");
    command.args(&built.folders).arg(image.at("/"));
    command::output(&mut command, "copy the tests' files")?;
    image.packed()
}

/// Builds the archive for one kernel: its modules, and the stages to run.
pub(super) fn of_kernel(kernel: &Kernel, stages: &[Stage]) -> Result<Vec<u8>> {
    let image = Image::new()?;
    let mut list = Vec::new();
    for module in modules(kernel)? {
        let name = module.rsplit('/').next().unwrap_or(&module);
        let path = format!("/lib/modules/{name}");
        fs::copy(Path::new(&module), &image.at(&path))?;
        if path.ends_with(".xz") {
            let mut command = command::of("xz", "--decompress");
            command::output(command.arg(image.at(&path)), "unpack a module")?;
        }
        list.push(format!("{}\n", path.trim_end_matches(".xz")));
    }
    fs::write(image.at("/modules"), list.concat())?;
    let seconds = Stage::LIMIT.as_secs();
    let line = |stage: &Stage| format!("{}\t{seconds}\t{}\n", stage.name, stage.command);
    let lines: String = stages.iter().map(line).collect();
    fs::write(image.at("/stages"), lines)?;
    image.packed()
}

/// Returns the files of `MODULES` and of the modules that they depend on, in the order of loading.
fn modules(kernel: &Kernel) -> Result<Vec<String>> {
    let base = kernel.modules.ancestors().nth(3);
    let base = base.context("modules lie below a folder")?;
    if !kernel.modules.join("modules.dep").exists() {
        // Debian's packages contain the modules, but not their index modules.dep.
        let mut command = command::of("depmod", "-b");
        command.arg(base).arg(&kernel.release);
        command::output(&mut command, "index the kernel's modules")?;
    }
    let words = "--config /dev/null --all --show-depends --dirname";
    let mut command = command::of("modprobe", words);
    command
        .arg(base)
        .args(["--set-version", &kernel.release])
        .args(MODULES.split_whitespace());
    // It complains of modules that this kernel lacks, and lists all others.
    let output = command.output().context("start modprobe")?;
    let mut files: Vec<String> = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let file = line.strip_prefix("insmod ");
        let file = file.map(|file| file.trim().to_owned());
        files.extend(file.filter(|file| !files.contains(file)));
    }
    let complaints = String::from_utf8_lossy(&output.stderr);
    ensure!(!files.is_empty(), "modprobe lists no modules: {complaints}");
    Ok(files)
}

/// Debian's packages that contain the programs.
const PACKAGES: &str = "bpftool busybox-static containernetworking-plugins iproute2 iputils-ping \
    nftables util-linux wireguard-tools";
/// Folders in which programs are searched.
const FOLDERS: [&str; 4] = ["usr/bin", "usr/sbin", "bin", "sbin"];

/// Finds programs and libraries for one architecture.
pub(super) struct Programs {
    arch: Arch,
    /// The root folder: another architecture's unpacked packages, or this machine's own.
    root: PathBuf,
}

impl Programs {
    pub(super) fn of(arch: Arch) -> Result<Self> {
        let packages: Vec<_> = PACKAGES.split(' ').collect();
        let root = match arch {
            Arch::OWN => "/".into(),
            other => Apt::open(other)?.unpacked("programs", &packages, false)?,
        };
        Ok(Self { arch, root })
    }

    /// Returns the path of a program; None if it is missing: the tests that call it then say so.
    pub(super) fn find(&self, name: &str) -> Option<PathBuf> {
        if self.arch == Arch::OWN {
            return host::find_program(name);
        }
        let places = FOLDERS.iter().map(|folder| Path::new(folder).join(name));
        let places = places.map(|place| self.root.join(place.strip_prefix("/").unwrap_or(&place)));
        places.into_iter().find(|path| path.is_file())
    }

    /// Returns the path that a found program has in the kernel's file system.
    pub(super) fn path<'a>(&self, program: &'a Path) -> &'a Path {
        program.strip_prefix(&self.root).unwrap_or(program)
    }

    /// Adds the libraries that a program is linked with, and its dynamic loader, to the image, by
    /// the names in its ELF file: ldd would run the program, which may be another processor's.
    pub(super) fn add_libraries(&self, image: &Image, program: &Path) -> Result<()> {
        let mut command = command::of("readelf", "--wide --dynamic --program-headers");
        let text = command::output(command.arg(program).env("LC_ALL", "C"), "list libraries")?;
        for line in text.lines() {
            if !line.contains("(NEEDED)") && !line.contains("program interpreter") {
                continue;
            }
            let (_, name) = line.rsplit_once([':', '[']).unwrap_or_default();
            let name = name.trim().trim_end_matches(']');
            // The dynamic loader has its full path in the ELF file, and must be at that path.
            let place = Path::new("/lib").join(self.arch.gnu()).join(name);
            if image.at(&place).exists() {
                continue;
            }
            let file = name.rsplit('/').next().unwrap_or(name);
            let folders = ["usr/lib", "lib"].map(|folder| self.root.join(folder));
            let found = folders.map(|folder| folder.join(self.arch.gnu()).join(file));
            let library = found.iter().find(|library| library.exists());
            let library = library.with_context(|| format!("{} needs {file}", program.display()))?;
            fs::copy(library, &image.at(&place))?;
            self.add_libraries(image, library)?;
        }
        Ok(())
    }
}
