// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds and downloads Debian's kernels, once per user. For a series such as 6.12 it returns the
//! paths of a kernel image and its modules. Called by `kernels`.

use std::{
    cmp::Ordering,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail, ensure};

use super::apt::{Apt, COMPLETE, debs, unpack};
use crate::{arch::Arch, command, fs};

/// The mirror with packages that Debian's package lists no longer contain.
const MIRROR: &str = "https://deb.debian.org/debian";
/// The prefixes of a kernel's packages. Older kernels have all files in the first package.
const PARTS: [&str; 3] = ["linux-image-", "linux-binary-", "linux-modules-"];
/// A kernel that is unpacked in the user's cache.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// The kernel's version as `uname -r` prints it.
    pub(super) release: String,
    pub(super) image: PathBuf,
    /// The folder `lib/modules/VERSION` of this kernel.
    pub(super) modules: PathBuf,
}

/// Debian's kernels for one architecture.
pub(super) struct Packages {
    apt: Apt,
    /// The names of all kernel packages; None until a kernel is needed that is not in the cache.
    names: Option<Vec<String>>,
}

impl Packages {
    pub(super) fn open(arch: Arch) -> Result<Self> {
        let apt = Apt::open(arch)?;
        Ok(Self { apt, names: None })
    }

    /// Returns a kernel of a series such as 6.12: the newest one of Debian if `newest`, else the
    /// one in the cache if there is one.
    pub(super) fn kernel(&mut self, series: &str, newest: bool) -> Result<Kernel> {
        let place = self.apt.folder.join(series);
        if !newest && let Some(kernel) = read(&place) {
            return Ok(kernel);
        }
        let flavour = self.flavour();
        let releases = releases(self.names()?, series, &flavour);
        ensure!(
            !releases.is_empty(),
            "Debian has no package linux-image-{series}.*{flavour}"
        );
        let mut refused = None;
        for release in releases.iter().rev() {
            if read(&place).is_some_and(|kernel| kernel.release == *release) {
                break;
            }
            // The mirror may lack a listed package; then the next older kernel is tried.
            match self.fetch(release, &place) {
                Ok(()) => break,
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        match (read(&place), refused) {
            (Some(kernel), _) => Ok(kernel),
            (None, Some(error)) => Err(error),
            (None, None) => bail!("{} holds no kernel", place.display()),
        }
    }

    /// Returns the suffix of Debian's kernels for virtual machines: fewer drivers, same network.
    fn flavour(&self) -> String {
        format!("-cloud-{}", self.apt.arch.name())
    }

    /// Returns the names of all kernel packages in Debian's lists.
    fn names(&mut self) -> Result<&[String]> {
        if self.names.is_none() {
            self.apt.update()?;
            let pattern = format!("^linux-(image|binary|modules)-[0-9].*{}$", self.flavour());
            let mut command = self.apt.command("apt-cache")?;
            command.args(["--names-only", "search", &pattern]);
            let found = command::output(&mut command, "list kernels")?;
            let names = found.lines().filter_map(|line| line.split(' ').next());
            self.names = Some(names.map(str::to_owned).collect());
        }
        Ok(self.names.as_deref().unwrap_or_default())
    }

    /// Downloads and unpacks a kernel into a temporary folder, which then gets the name `place`.
    fn fetch(&self, release: &str, place: &Path) -> Result<()> {
        eprintln!("kernels: downloading {release}");
        let names = self.names.as_deref().unwrap_or_default();
        let wanted = PARTS.map(|part| format!("{part}{release}"));
        let wanted: Vec<_> = wanted.iter().filter(|name| names.contains(name)).collect();
        fs::replace_folder(place, |partial| {
            fs::create_dir_all(partial)?;
            let mut command = self.apt.command("apt-get")?;
            command
                .args(["--quiet", "download"])
                .args(&wanted)
                .current_dir(partial);
            command::output(&mut command, &format!("download {release}"))?;
            unlisted_modules(partial)?;
            unpack(partial, partial)?;
            fs::write(partial.join(COMPLETE), release)?;
            let whole = read(partial).is_some();
            ensure!(
                whole,
                "Debian's packages of {release} hold no kernel with modules"
            );
            Ok(())
        })
    }
}

/// Downloads the modules' package of the kernel whose other packages are in the folder, if Debian's
/// lists no longer contain it. Mirrors keep it longer. No signature covers it, so its authenticity
/// depends on TLS.
fn unlisted_modules(folder: &Path) -> Result<()> {
    let packages = debs(folder)?;
    let file_of = |part: &str| {
        let mut names = packages
            .iter()
            .filter_map(|path| path.file_name()?.to_str());
        names.find(|name| name.starts_with(part))
    };
    let [_, binary, modules] = PARTS;
    let (Some(image), None) = (file_of(binary), file_of(modules)) else {
        return Ok(());
    };
    let name = image.replacen(binary, modules, 1);
    let mut command = Command::new("/usr/lib/apt/apt-helper");
    let address = format!("{MIRROR}/pool/main/l/linux/{name}");
    command
        .args(["download-file", &address])
        .arg(folder.join(&name));
    command::output(&mut command, &format!("download {name}")).map(drop)
}

/// Returns the kernel in a folder of the cache; None if the folder is incomplete.
fn read(place: &Path) -> Option<Kernel> {
    let release = fs::read_to_string(place.join(COMPLETE)).ok()?;
    let first = |paths: [PathBuf; 2]| paths.into_iter().find(|path| path.exists());
    // Since kernel 7.2, Debian's packages have all files below usr.
    let modules =
        first(["usr/lib/modules", "lib/modules"].map(|at| place.join(at).join(&release)))?;
    let image = first([
        modules.join("vmlinuz"),
        place.join("boot").join(format!("vmlinuz-{release}")),
    ])?;
    Some(Kernel {
        release,
        image,
        modules,
    })
}

/// Returns the kernel versions of a series among names of packages, the newest last.
fn releases(names: &[String], series: &str, flavour: &str) -> Vec<String> {
    let start = format!("{}{series}.", PARTS[0]);
    let mut releases: Vec<_> = names
        .iter()
        .filter(|name| name.starts_with(&start) && name.ends_with(flavour))
        .map(|name| name[PARTS[0].len()..].to_owned())
        .collect();
    releases.sort_by(|a, b| compare(a, b));
    releases
}

/// Compares version strings number by number.
pub(super) fn compare(a: &str, b: &str) -> Ordering {
    let numbers = |text: &str| -> Vec<u64> {
        text.split(|character: char| !character.is_ascii_digit())
            .filter_map(|part| part.parse().ok())
            .collect()
    };
    numbers(a).cmp(&numbers(b))
}
