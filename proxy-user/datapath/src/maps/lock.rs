// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lock on a pin directory, for one agent at a time. Used by `Datapath` and `cleanup`.

use std::{
    fs::{self, File},
    os::linux::fs::MetadataExt,
    path::Path,
};

use nix::fcntl::{Flock, FlockArg};

use crate::error::DatapathError;

/// This process's exclusive lock on the pin directory, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock(Flock<File>);

impl Lock {
    /// True if the locked directory still has this path; false if it was removed or replaced by
    /// another one.
    pub(crate) fn is_of(&self, pin_dir: &Path) -> bool {
        let (held, now) = (self.0.metadata(), fs::metadata(pin_dir));
        held.and_then(|held| Ok((held, now?)))
            .is_ok_and(|(held, now)| (held.st_dev(), held.st_ino()) == (now.st_dev(), now.st_ino()))
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
