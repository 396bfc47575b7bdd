// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A separate apt for each architecture. It keeps package lists and packages in the user's cache
//! and installs nothing. Used for kernels, and for the packages with which another architecture's
//! programs are built and tested.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{arch::Arch, command, fs, host, setup};

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
            let mut command = self.command("apt-get")?;
            command
                .arg("-o")
                .arg(format!("Dir::Cache::archives={}", archives.display()))
                .args(["--quiet", "--yes", "--no-install-recommends"])
                .args((!alone).then_some("--download-only"))
                .arg(if alone { "download" } else { "install" })
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
        self.configure()?;
        eprintln!("kernels: fetching Debian's package lists");
        let mut command = self.command("apt-get")?;
        command::output(command.args(["--quiet", "update"]), "fetch package lists").map(drop)
    }

    fn apt_folder(&self) -> PathBuf {
        self.folder.join("apt")
    }

    fn configure(&self) -> Result<()> {
        let folder = self.apt_folder();
        for name in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(folder.join(name))?;
        }
        let source = |(archive, suite)| {
            format!("deb [signed-by={KEYRING}] http://deb.debian.org/{archive} {suite} main\n")
        };
        let at = folder.display();
        let configuration = format!(
            "Dir::Etc::sourcelist \"{at}/sources.list\";\nDir::Etc::sourceparts \"/dev/null\";\n\
             Dir::State::lists \"{at}/lists\";\nDir::State::status \"{at}/status\";\n\
             Dir::Cache \"{at}\";\nDir::Cache::archives \"{at}/archives\";\n\
             APT::Architecture \"{}\";\nAPT::Architectures \"{0}\";\nAPT::Sandbox::User \"root\";\nAcquire::Retries \"3\";\n",
            self.arch.name()
        );
        fs::write(folder.join("sources.list"), SUITES.map(source).concat())?;
        fs::write(folder.join("status"), "")?;
        fs::write(folder.join("apt.conf"), configuration)
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
    for package in debs(packages)? {
        let mut command = Command::new("dpkg-deb");
        command.arg("-x").arg(&package).arg(place);
        command::output(&mut command, "unpack a package")?;
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
