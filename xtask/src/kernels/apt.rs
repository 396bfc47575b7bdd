// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A separate apt for each architecture. It keeps package lists and packages in the user's cache
//! and installs nothing. Used for kernels, and for the packages with which another architecture's
//! programs are built and tested.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{arch::Arch, cargo, host, setup};

/// Debian's archive and suite of each repository that is searched for kernels: Debian 12 and 13,
/// their security updates, and their backports.
const SUITES: [(&str, &str); 6] = [
    ("debian", "bookworm"),
    ("debian", "bookworm-backports"),
    ("debian", "trixie"),
    ("debian", "trixie-backports"),
    ("debian-security", "bookworm-security"),
    ("debian-security", "trixie-security"),
];
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The file that marks a folder of the cache as complete. It contains the kernel's version string,
/// or the packages' names.
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
        fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        Ok(Self { arch, folder })
    }

    /// Returns a folder with these packages unpacked, and their dependencies unless `alone`.
    pub(crate) fn unpacked(&self, name: &str, wanted: &[&str], alone: bool) -> Result<PathBuf> {
        let place = self.folder.join(name);
        if place.join(COMPLETE).exists() {
            return Ok(place);
        }
        self.update()?;
        let partial = place.with_extension("partial");
        let archives = partial.join("archives");
        for old in [&partial, &place] {
            if old.exists() {
                fs::remove_dir_all(old).with_context(|| format!("remove {}", old.display()))?;
            }
        }
        fs::create_dir_all(archives.join("partial"))
            .with_context(|| format!("make {}", archives.display()))?;
        let mut command = self.command("apt-get")?;
        command
            .arg("-o")
            .arg(format!("Dir::Cache::archives={}", archives.display()))
            .args(["--quiet", "--yes", "--no-install-recommends"])
            .args(if alone {
                &["download"][..]
            } else {
                &["--download-only", "install"]
            })
            .args(wanted)
            .current_dir(&archives);
        cargo::output(&mut command, &format!("download {}", wanted.join(", ")))?;
        unpack(&archives, &partial)?;
        fs::remove_dir_all(&archives).with_context(|| format!("remove {}", archives.display()))?;
        fs::write(partial.join(COMPLETE), wanted.join(" ")).context("mark it as complete")?;
        fs::rename(&partial, &place).with_context(|| format!("make {}", place.display()))?;
        Ok(place)
    }

    /// Downloads Debian's lists of packages.
    pub(super) fn update(&self) -> Result<()> {
        self.configure()?;
        eprintln!("kernels: fetching Debian's package lists");
        cargo::output(
            self.command("apt-get")?.args(["--quiet", "update"]),
            "fetch package lists",
        )?;
        Ok(())
    }

    fn apt_folder(&self) -> PathBuf {
        self.folder.join("apt")
    }

    fn configure(&self) -> Result<()> {
        let folder = self.apt_folder();
        for name in ["lists/partial", "archives/partial"] {
            let path = folder.join(name);
            fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
        }
        let sources: String = SUITES
            .iter()
            .map(|(archive, suite)| {
                format!("deb [signed-by={KEYRING}] http://deb.debian.org/{archive} {suite} main\n")
            })
            .collect();
        let at = folder.display();
        let configuration = format!(
            "Dir::Etc::sourcelist \"{at}/sources.list\";\nDir::Etc::sourceparts \"/dev/null\";\n\
             Dir::State::lists \"{at}/lists\";\nDir::State::status \"{at}/status\";\n\
             Dir::Cache \"{at}\";\nDir::Cache::archives \"{at}/archives\";\n\
             APT::Architecture \"{}\";\nAPT::Architectures \"{0}\";\nAPT::Sandbox::User \"root\";\nAcquire::Retries \"3\";\n",
            self.arch.name()
        );
        for (name, text) in [
            ("sources.list", sources.as_str()),
            ("status", ""),
            ("apt.conf", configuration.as_str()),
        ] {
            let path = folder.join(name);
            fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        }
        Ok(())
    }

    /// Returns a command of `program` (apt-get, apt-cache) that uses the lists in the cache.
    pub(super) fn command(&self, program: &str) -> Result<Command> {
        let path = host::find_program(program).with_context(|| {
            format!("{program} is not installed: kernels are taken from Debian's packages")
        })?;
        let mut command = Command::new(path);
        command.env("APT_CONFIG", self.apt_folder().join("apt.conf"));
        Ok(command)
    }
}

/// Unpacks the .deb files in the folder `packages` into `place`, and removes them.
pub(super) fn unpack(packages: &Path, place: &Path) -> Result<()> {
    for package in children(packages, ".deb")? {
        let mut command = Command::new("dpkg-deb");
        command.arg("-x").arg(&package).arg(place);
        cargo::output(&mut command, "unpack a package")?;
        fs::remove_file(&package).with_context(|| format!("remove {}", package.display()))?;
    }
    Ok(())
}

/// Returns the paths in a folder whose names end with `ending`.
pub(super) fn children(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
    Ok(found)
}
