// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Notices by inotify(7) when somebody removes a pin (a file of bpffs that keeps a link or map).
//! Without inotify, the checks every second and every 30 s notice it. A part of `attachments`.

use std::{path::PathBuf, sync::Arc, thread, time::Duration};

use nix::{
    errno::Errno,
    sys::inotify::{AddWatchFlags, InitFlags, Inotify},
};
use tokio::sync::mpsc;

/// The shortest time between two notices of removed pins. The programs stay attached meanwhile,
/// because the agent has their links open.
const SETTLE: Duration = Duration::from_millis(100);

/// The directories whose pins are watched.
#[derive(Debug)]
pub(crate) struct PinWatch {
    inotify: Option<Arc<Inotify>>,
    directories: Vec<PathBuf>,
}

impl PinWatch {
    /// Watches directories of pins; the receiver gets one notice for all removals at about the same
    /// time.
    pub(crate) fn start(directories: Vec<PathBuf>) -> (Self, mpsc::Receiver<()>) {
        let (sender, news) = mpsc::channel(1);
        let inotify = match Inotify::init(InitFlags::IN_CLOEXEC) {
            Ok(inotify) => {
                let inotify = Arc::new(inotify);
                let theirs = Arc::clone(&inotify);
                // The thread runs until the process ends: nothing stops it before.
                thread::spawn(move || follow(&theirs, &sender));
                Some(inotify)
            }
            Err(error) => {
                tracing::info!("removed pins are found every 30 s, not at once: inotify: {error}");
                None
            }
        };
        let watch = Self {
            inotify,
            directories,
        };
        watch.renew();
        (watch, news)
    }

    /// Also watches these directories, which belong to other maps; drops directories that are gone.
    pub(super) fn watch(&mut self, directories: impl IntoIterator<Item = PathBuf>) {
        self.directories.extend(directories);
        self.directories.retain(|directory| directory.exists());
        self.renew();
    }

    /// Adds the watches again: a path may now lead to another directory than before.
    pub(super) fn renew(&self) {
        let flags = AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        let Some(inotify) = &self.inotify else {
            return;
        };
        for directory in &self.directories {
            // A directory that was removed cannot be watched; the check every second finds that.
            _ = inotify.add_watch(directory, flags);
        }
    }
}

fn follow(inotify: &Inotify, news: &mpsc::Sender<()>) {
    loop {
        match inotify.read_events() {
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(_) => return,
        }
        // One waiting notice is enough: the agent takes it before it checks all pins.
        _ = news.try_send(());
        thread::sleep(SETTLE);
        if news.is_closed() {
            return;
        }
    }
}
