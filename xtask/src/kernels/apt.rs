// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A separate apt for each architecture. It keeps package lists and packages in the user's cache
//! and installs nothing. Finds and downloads kernels, once per user, and the packages with which
//! another architecture's programs are built and tested.

use std::{
    cmp::Ordering,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{command, cross::Arch, fs, setup};

/// Where kernels are searched: Debian 12 and 13, their security updates, and their backports.
const SUITES: &str = "debian bookworm, debian bookworm-backports, debian trixie, debian trixie-backports, \
    debian-security bookworm-security, debian-security trixie-security";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The file that marks a folder as complete: with the kernel's version, or the packages' names.
pub(super) const COMPLETE: &str = "release";

/// Debian's packages for one architecture.
pub(crate) struct Apt {
    pub(super) arch: Arch,
    /// The folder of this architecture in the cache.
    pub(super) folder: PathBuf,
}

impl Apt {
    pub(crate) fn open(arch: Arch) -> Result<Self> {
        let mut folder = setup::cache_dir()?.join("kernels");
        if arch != Arch::Amd64 {
            folder.push(arch.name());
        }
        fs::create_dir_all(&folder)?;
        Ok(Self { arch, folder })
    }

    /// Returns a folder with these packages unpacked, and their dependencies unless `alone`.
    pub(crate) fn unpacked(&self, name: &str, wanted: &[&str], alone: bool) -> Result<PathBuf> {
        let place = self.folder.join(name);
        if place.join(COMPLETE).exists() {
            return Ok(place);
        }
        self.update()?;
        fs::replace_folder(&place, |partial| {
            let archives = partial.join("archives");
            fs::create_dir_all(archives.join("partial"))?;
            let words = match alone {
                true => "--quiet download",
                false => "--quiet --yes --no-install-recommends --download-only install",
            };
            let mut command = self.command("apt-get", words);
            command
                .arg("-o")
                .arg(format!("Dir::Cache::archives={}", archives.display()))
                .args(wanted)
                .current_dir(&archives);
            command::output(&mut command, &format!("download {}", wanted.join(", ")))?;
            unpack(&archives, partial)?;
            fs::remove_dir_all(&archives)?;
            fs::write(partial.join(COMPLETE), wanted.join(" "))
        })?;
        Ok(place)
    }

    /// Downloads Debian's lists of packages.
    pub(super) fn update(&self) -> Result<()> {
        let folder = self.folder.join("apt");
        for name in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(folder.join(name))?;
        }
        let source =
            |suite| format!("deb [signed-by={KEYRING}] http://deb.debian.org/{suite} main\n");
        let sources: String = SUITES.split(", ").map(source).collect();
        let at = folder.display();
        let arch = self.arch.name();
        let configuration = format!(include_str!("apt.conf"), at = at, arch = arch);
        fs::write(folder.join("sources.list"), sources)?;
        fs::write(folder.join("status"), "")?;
        fs::write(folder.join("apt.conf"), configuration)?;
        eprintln!("kernels: fetching Debian's package lists");
        let mut command = self.command("apt-get", "--quiet update");
        command::output(&mut command, "fetch package lists").map(drop)
    }

    /// Returns a command of `program` (apt-get, apt-cache) that uses the lists in the cache.
    pub(super) fn command(&self, program: &str, words: &str) -> Command {
        let mut command = command::of(program, words);
        command.env("APT_CONFIG", self.folder.join("apt/apt.conf"));
        command
    }
}

/// Unpacks the .deb files in the folder `packages` into `place`, and removes them.
pub(super) fn unpack(packages: &Path, place: &Path) -> Result<()> {
    for package in debs(packages)? {
        let mut command = command::of("dpkg-deb", "-x");
        command::output(command.arg(&package).arg(place), "unpack a package")?;
        fs::remove_file(&package)?;
    }
    Ok(())
}

/// Returns the paths of the .deb files in a folder.
pub(super) fn debs(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = fs::children(folder)?;
    files.retain(|file| file.extension().is_some_and(|ending| ending == "deb"));
    Ok(files)
}

/// The mirror with packages that Debian's package lists no longer contain.
const MIRROR: &str = "https://deb.debian.org/debian/pool/main/l/linux";
/// The prefixes of a kernel's packages. Older kernels have all files in the first package.
const PARTS: [&str; 3] = ["linux-image-", "linux-binary-", "linux-modules-"];

/// A kernel that is unpacked in the user's cache.
pub(crate) struct Kernel {
    /// The kernel's version as `uname -r` prints it.
    pub(super) release: String,
    pub(super) image: PathBuf,
    /// The folder `lib/modules/VERSION` of this kernel.
    pub(super) modules: PathBuf,
}

/// Returns the kernel of a series such as 6.12: the cached one, else the newest to be downloaded.
pub(super) fn kernel(apt: &Apt, series: &str) -> Result<Kernel> {
    let place = apt.folder.join(series);
    if let Some(kernel) = read(&place) {
        return Ok(kernel);
    }
    apt.update()?;
    // Debian's kernels for virtual machines: fewer drivers, same network.
    let flavour = format!("-cloud-{}", apt.arch.name());
    let series_of = series.replace('.', r"\.");
    let pattern = format!(r"^linux-(image|binary|modules)-{series_of}\..*{flavour}$");
    let mut command = apt.command("apt-cache", "--names-only search");
    let found = command::output(command.arg(pattern), "list kernels")?;
    let names = found.lines().filter_map(|line| line.split(' ').next());
    let names: Vec<_> = names.collect();
    let releases = names.iter().filter_map(|name| name.strip_prefix(PARTS[0]));
    let mut releases: Vec<_> = releases.collect();
    releases.sort_by(|a, b| compare(b, a));
    let mut result = None;
    for release in releases {
        // The mirror may lack a listed package; then the next older kernel is tried.
        let fetched = fetch(apt, &names, release, &place);
        if fetched.is_ok() || result.is_none() {
            result = Some(fetched);
        }
        if let Some(Ok(())) = result {
            break;
        }
    }
    result.with_context(|| format!("Debian has no package linux-image-{series}.*{flavour}"))??;
    read(&place).with_context(|| format!("{} holds no kernel", place.display()))
}

/// Downloads and unpacks a kernel into a temporary folder, which then gets the name `place`.
fn fetch(apt: &Apt, names: &[&str], release: &str, place: &Path) -> Result<()> {
    eprintln!("kernels: downloading {release}");
    let wanted = PARTS.map(|part| format!("{part}{release}"));
    let wanted = wanted.iter().filter(|name| names.contains(&name.as_str()));
    fs::replace_folder(place, |partial| {
        fs::create_dir_all(partial)?;
        let mut command = apt.command("apt-get", "--quiet download");
        command.args(wanted).current_dir(partial);
        command::output(&mut command, &format!("download {release}"))?;
        unlisted_modules(partial)?;
        unpack(partial, partial)?;
        fs::write(partial.join(COMPLETE), release)?;
        let read = read(partial).map(drop);
        read.with_context(|| format!("the packages of {release} hold no kernel with modules"))
    })
}

/// Downloads the modules' package of the kernel whose other packages are in the folder, if Debian's
/// lists no longer contain it. Mirrors keep it longer. Only TLS says that it is authentic.
fn unlisted_modules(folder: &Path) -> Result<()> {
    let packages = debs(folder)?;
    let paths = packages.iter();
    let names = paths.filter_map(|path| path.file_name()?.to_str());
    let names: Vec<_> = names.collect();
    let [_, binary, modules] = PARTS;
    let image = names.iter().find(|name| name.starts_with(binary));
    if let Some(image) = image
        && !names.iter().any(|name| name.starts_with(modules))
    {
        let name = image.replacen(binary, modules, 1);
        let address = format!("download-file {MIRROR}/{name}");
        let mut command = command::of("/usr/lib/apt/apt-helper", &address);
        command::output(command.arg(folder.join(&name)), &address)?;
    }
    Ok(())
}

/// Returns the kernel in a folder of the cache; None if the folder is incomplete.
fn read(place: &Path) -> Option<Kernel> {
    let release = fs::read_to_string(place.join(COMPLETE)).ok()?;
    let first = |paths: [PathBuf; 2]| paths.into_iter().find(|path| path.exists());
    // Since kernel 7.2, Debian's packages have all files below usr.
    let modules =
        first(["usr/lib/modules", "lib/modules"].map(|at| place.join(at).join(&release)))?;
    let image = format!("boot/vmlinuz-{release}");
    let image = first([modules.join("vmlinuz"), place.join(image)])?;
    Some(Kernel {
        release,
        image,
        modules,
    })
}

/// Compares version strings number by number.
pub(super) fn compare(a: &str, b: &str) -> Ordering {
    let numbers = |text: &str| -> Vec<u64> {
        let parts = text.split(|character: char| !character.is_ascii_digit());
        parts.filter_map(|part| part.parse().ok()).collect()
    };
    numbers(a).cmp(&numbers(b))
}
