// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pin directory: checks its place in the file system, knows the paths below it, and locks it
//! for one agent at a time. Used by all other modules.

use std::{
    fs::{self, File},
    io,
    os::linux::fs::MetadataExt,
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{Flock, FlockArg},
    sys::statfs::{BPF_FS_MAGIC, statfs},
};
use proxy_common::maps::LAYOUT_VERSION;

use crate::error::DatapathError;

/// One set of maps and the programs that use them; each has its own directory below the pin
/// directory. There are two while one takes over from the other: see `datapath::succession`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Generation {
    /// Counts up: a later generation has a higher number.
    pub number: u32,
    /// The version of the map layout, see [`LAYOUT_VERSION`].
    pub layout: u32,
}

impl Generation {
    /// Parses the name of a generation's directory: `v3`, or `v3-1` for a generation that is not
    /// the first.
    fn of_name(name: &str) -> Option<Self> {
        let version = name.strip_prefix('v')?;
        let (layout, number) = version.split_once('-').unwrap_or((version, "0"));
        Some(Self {
            number: number.parse().ok()?,
            layout: layout.parse().ok()?,
        })
    }
    pub fn name(self) -> String {
        let Self { number, layout } = self;
        match number {
            0 => format!("v{layout}"),
            _ => format!("v{layout}-{number}"),
        }
    }
    pub fn dir(self, pin_dir: &Path) -> PathBuf {
        pin_dir.join(self.name())
    }
    /// True if this program knows the layout of the generation's maps.
    pub fn is_known(self) -> bool {
        self.layout == LAYOUT_VERSION
    }
}

/// The name of the file with the addresses of API servers, in the pin directory. It is a
/// dangling symbolic link, because a BPF file system can hold those.
pub const SERVERS: &str = "api-servers";

/// The name of such a link with the nf_conntrack parameters that `portolan init` has changed.
pub const CONNTRACK: &str = "nf_conntrack";

/// The name of the file that marks a generation whose maps have grown beyond the configured sizes.
/// It is a link as [`SERVERS`] is.
pub(crate) const GROWN: &str = "grown";

/// Returns the generations in a pin directory in the order of their numbers; an empty list if the
/// directory is missing.
pub fn generations(pin_dir: &Path) -> io::Result<Vec<Generation>> {
    let entries = match fs::read_dir(pin_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        found.extend(entry?.file_name().to_str().and_then(Generation::of_name));
    }
    found.sort_unstable();
    Ok(found)
}

/// Returns an error that says why there are no maps that this program can read.
pub(crate) fn nothing_readable(pin_dir: &Path) -> DatapathError {
    let names: Vec<_> = generations(pin_dir)
        .unwrap_or_default()
        .into_iter()
        .map(Generation::name)
        .collect();
    let path = pin_dir.to_owned();
    if names.is_empty() {
        return DatapathError::NothingPinned { path };
    }
    DatapathError::OtherVersion {
        path,
        found: names.join(", "),
        known: format!("v{LAYOUT_VERSION}"),
    }
}

/// True if an agent has locked the pin directory; false if the directory is missing.
pub fn is_held(pin_dir: &Path) -> bool {
    matches!(Lock::take(pin_dir), Err(DatapathError::Locked { .. }))
}

/// Returns the directory of the last generation whose layout this program knows. If there is none,
/// returns the directory that the first one would have.
pub fn layout_dir(pin_dir: &Path) -> PathBuf {
    let all = generations(pin_dir).unwrap_or_default();
    let last = all.into_iter().rev().find(|one| one.is_known());
    last.unwrap_or(Generation {
        number: 0,
        layout: LAYOUT_VERSION,
    })
    .dir(pin_dir)
}

/// Returns the path of a map's pin, below [`layout_dir`].
pub fn map_path(pin_dir: &Path, map: &str) -> PathBuf {
    layout_dir(pin_dir).join(map)
}

/// Returns the directory with the pins of links, below [`layout_dir`].
pub fn links_dir(pin_dir: &Path) -> PathBuf {
    links_of(&layout_dir(pin_dir))
}

pub(crate) fn links_of(home: &Path) -> PathBuf {
    home.join("links")
}

/// Returns the pins of links of all generations in a pin directory, sorted.
pub(crate) fn all_links(pin_dir: &Path) -> io::Result<Vec<PathBuf>> {
    let homes = generations(pin_dir)?.into_iter();
    let links = homes.flat_map(|one| files(&links_of(&one.dir(pin_dir))));
    let mut links: Vec<_> = links.collect();
    links.sort();
    Ok(links)
}

/// Returns device and inode of a directory; `None` if it is missing.
pub(crate) fn identity(directory: io::Result<fs::Metadata>) -> Option<(u64, u64)> {
    let metadata = directory.ok()?;
    Some((metadata.st_dev(), metadata.st_ino()))
}

/// Returns the files of a directory; none if the directory is missing.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Returns the result of removing a file or directory; it is no error if that is missing.
pub(crate) fn if_there(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// True if a path lies on a BPF file system.
pub fn is_bpffs(path: &Path) -> nix::Result<bool> {
    Ok(statfs(path)?.filesystem_type() == BPF_FS_MAGIC)
}

/// Creates the pin directory; fails unless it will be on a BPF file system.
pub fn create_dirs(pin_dir: &Path) -> Result<(), DatapathError> {
    let unusable = |reason: &str, source| DatapathError::PinDirectory {
        path: pin_dir.into(),
        reason: reason.into(),
        source,
    };
    if !pin_dir.is_absolute() {
        return Err(unusable("it must be an absolute path", None));
    }
    let existing = pin_dir
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or(Path::new("/"));
    if !is_bpffs(existing).unwrap_or(false) {
        return Err(DatapathError::NoBpffs {
            path: pin_dir.into(),
            mount_point: mount_point(pin_dir),
        });
    }
    let below = pin_dir.strip_prefix(existing).unwrap_or(pin_dir);
    if below.to_string_lossy().contains('.') {
        return Err(unusable(
            "a BPF file system does not allow dots in names; choose another --pin-dir",
            None,
        ));
    }
    fs::create_dir_all(pin_dir).map_err(|error| {
        unusable(
            "it cannot be created (is a part of the path a file?)",
            Some(error),
        )
    })
}

pub(crate) fn create_links(home: &Path) -> Result<(), DatapathError> {
    let links = links_of(home);
    fs::create_dir_all(&links).map_err(DatapathError::of_file("make", &links))
}

/// Returns the mount point to suggest to the operator for a BPF file system that holds `pin_dir`.
pub fn mount_point(pin_dir: &Path) -> PathBuf {
    let usual = Path::new("/sys/fs/bpf");
    if pin_dir.starts_with(usual) {
        return usual.into();
    }
    pin_dir.into()
}

/// This process's exclusive lock on the pin directory, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock(Flock<File>);

impl Lock {
    /// True if the locked directory still has this path; false if it was removed or replaced by
    /// another one.
    pub(crate) fn is_of(&self, pin_dir: &Path) -> bool {
        let held = identity(self.0.metadata());
        held.is_some() && held == identity(fs::metadata(pin_dir))
    }
    /// Locks the directory; fails if another process has the lock. The lock is on the directory
    /// itself, so agents in different containers see each other, and no lock file is left behind.
    pub(crate) fn take(pin_dir: &Path) -> Result<Self, DatapathError> {
        let failed = |attempt| DatapathError::of_file(attempt, pin_dir);
        loop {
            let file = File::open(pin_dir).map_err(failed("open"))?;
            let metadata = file.metadata().map_err(failed("look at"))?;
            let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => lock,
                Err((_, nix::errno::Errno::EWOULDBLOCK)) => {
                    return Err(DatapathError::Locked {
                        path: pin_dir.into(),
                        holder: holder(&metadata),
                    });
                }
                Err((_, error)) => return Err(failed("lock")(error.into())),
            };
            // A cleanup may have removed the directory after it was opened.
            let now = fs::metadata(pin_dir).map_err(failed("look at"))?;
            if now.st_ino() == metadata.st_ino() {
                return Ok(Self(lock));
            }
        }
    }
}

/// Returns the pid of the process that holds the lock on a directory; `None` if no process holds it
/// or the holder is not visible. Does not try to lock the directory, because that could block an
/// agent that starts.
pub fn holder_of(pin_dir: &Path) -> Option<u32> {
    holder(&fs::metadata(pin_dir).ok()?)
}

/// Returns the pid of the process that holds the lock on a file. Looks in /proc/locks, which does
/// not show processes of other PID namespaces.
fn holder(file: &fs::Metadata) -> Option<u32> {
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let (major, minor) = (
        nix::sys::stat::major(file.st_dev()),
        nix::sys::stat::minor(file.st_dev()),
    );
    let inode = format!("{major:02x}:{minor:02x}:{}", file.st_ino());
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "FLOCK");
        let pid = words.nth(3)?;
        (words.next()? == inode).then(|| pid.parse().ok().filter(|pid| *pid > 0))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_is_parsed_from_its_directory_name() {
        let pins = Path::new("/pins");
        for (name, layout, number) in [("v3", 3, 0), ("v3-1", 3, 1), ("v12-40", 12, 40)] {
            let generation = Generation { number, layout };
            assert_eq!(Generation::of_name(name), Some(generation));
            assert_eq!(generation.dir(pins), pins.join(name));
        }
        for name in ["", "v", "3", "v3-", "v-1", "links", "v3-1-2"] {
            assert_eq!(Generation::of_name(name), None, "{name}");
        }
    }

    #[test]
    fn the_last_generation_with_a_known_layout_is_chosen() {
        let pins = tempfile::tempdir().expect("a directory");
        let names = ["v1", "v9999-7"];
        for name in names {
            fs::create_dir(pins.path().join(name)).expect("a directory");
        }
        let first = pins.path().join(format!("v{LAYOUT_VERSION}"));
        assert_eq!(layout_dir(pins.path()), first);
        let later = pins.path().join(format!("v{LAYOUT_VERSION}-2"));
        for dir in [&first, &later] {
            fs::create_dir(dir).expect("a directory");
        }
        assert_eq!(layout_dir(pins.path()), later);
    }
}
