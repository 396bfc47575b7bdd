// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Failures of the datapath, each with its remedy. Returned by every module; shown to operators
//! unchanged.

use std::{
    io,
    path::{Path, PathBuf},
};

use thiserror::Error;

/// A failure of the datapath as a whole. For single services see `control::apply::Failure`.
#[derive(Debug, Error)]
pub enum DatapathError {
    #[error("follow packets: cannot {doing}")]
    Follow {
        doing: &'static str,
        source: io::Error,
    },
    #[error("trace: cannot {doing}")]
    Trace {
        doing: &'static str,
        source: io::Error,
    },
    #[error(
        "not allowed to use BPF: this process lacks {missing}; run portolan as root, or give it CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
    )]
    MissingCapabilities { missing: String },
    #[error(
        "not allowed to use BPF ({attempt}): run portolan as root, or give it CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
    )]
    NoPrivilege {
        attempt: &'static str,
        source: io::Error,
    },
    #[error(
        "the pin directory {} is not on a BPF file system: mount one with `mount -t bpf bpf {}`, or choose a directory below one with --pin-dir", path.display(), mount_point.display()
    )]
    NoBpffs { path: PathBuf, mount_point: PathBuf },
    #[error("the pin directory {} cannot be used: {reason}", path.display())]
    PinDirectory {
        path: PathBuf,
        reason: String,
        source: Option<io::Error>,
    },
    #[error(
        "another portolan agent{} holds the pin directory {}: stop it first, or give this one its own --pin-dir",
        holder.map(|pid| format!(" (pid {pid})")).unwrap_or_default(), path.display()
    )]
    Locked { path: PathBuf, holder: Option<u32> },
    #[error(
        "this kernel ({running}) makes no BPF map: portolan needs Linux 6.1 or newer, built with CONFIG_BPF_SYSCALL, CONFIG_BPF_JIT, CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS"
    )]
    NoMap { running: String, source: io::Error },
    #[error(
        "the pinned map {} is none of ours ({difference}): another program made it; give the agent its own --pin-dir, or run `portolan cleanup --pin-dir {}` (existing connections through services break) and start again",
        path.display(), pin_dir.display()
    )]
    ForeignMap {
        path: PathBuf,
        pin_dir: PathBuf,
        difference: String,
    },
    #[error("the kernel refuses the program {program}: {reason}")]
    Program { program: String, reason: String },
    #[error("run the program {program}")]
    Run { program: String, source: io::Error },
    #[error("load the kernel programs: {0}")]
    Load(String),
    #[error("{attempt} the map {map}")]
    Map {
        attempt: &'static str,
        map: &'static str,
        source: io::Error,
    },
    #[error(
        "attach the socket hooks to the cgroup {}: is it the root of a cgroup2 hierarchy, or a directory below one? mount one with `mount -t cgroup2 none /sys/fs/cgroup`, or name it with --cgroup-root", path.display()
    )]
    Cgroup { path: PathBuf, source: io::Error },
    #[error("close the node's UDP sockets whose backend has gone")]
    CloseSockets(#[source] io::Error),
    #[error("{attempt} interface {interface} (index {index})")]
    Interface {
        attempt: &'static str,
        interface: String,
        index: u32,
        source: io::Error,
    },
    #[error("{attempt} {}", path.display())]
    File {
        attempt: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error(
        "no portolan is set up here: {} holds no maps; start `portolan run`, or name another directory with --pin-dir",
        path.display()
    )]
    NothingPinned { path: PathBuf },
    #[error(
        "there is no map {map} yet, or no longer: portolan is being set up or removed; try again in a few seconds"
    )]
    NoSuchMap { map: &'static str },
    #[error(
        "the maps in {} are another version's ({found}; this program reads {known}): use the portolan of the agent that made them, in a \
         cluster the one in its pod", path.display()
    )]
    OtherVersion {
        path: PathBuf,
        found: String,
        known: String,
    },
}

impl DatapathError {
    /// Returns a function for `map_err`: it turns an I/O error into one that names the map and what
    /// was attempted with it (`attempt`, such as "read").
    pub(super) fn of_map(
        attempt: &'static str,
        map: &'static str,
    ) -> impl Fn(io::Error) -> Self + Copy {
        move |source| Self::Map {
            attempt,
            map,
            source,
        }
    }
    /// Returns the same kind of function for a file or directory.
    pub(super) fn of_file(attempt: &'static str, path: &Path) -> impl Fn(io::Error) -> Self + Copy {
        move |source| Self::File {
            attempt,
            path: path.into(),
            source,
        }
    }
    pub(super) fn of_interface(
        attempt: &'static str,
        name: &str,
        index: u32,
        source: io::Error,
    ) -> Self {
        Self::Interface {
            attempt,
            interface: name.to_owned(),
            index,
            source,
        }
    }
    pub(super) fn of_program(program: &str, reason: String) -> Self {
        let program = program.to_owned();
        Self::Program { program, reason }
    }
    /// True if the attempt failed because the interface no longer exists. The next list of
    /// interfaces will not contain it.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Interface { source, .. } if source.raw_os_error() == Some(libc::ENODEV))
    }
}
