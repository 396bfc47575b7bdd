// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Notices by inotify(7) when somebody removes a pin. Without it, the checks every second or every
//! 30 s find that out. A part of `attachments`.

use std::{path::PathBuf, sync::Arc, thread, time::Duration};

use nix::{
    errno::Errno,
    sys::inotify::{AddWatchFlags, InitFlags, Inotify},
};
use tokio::sync::mpsc;

/// The shortest time between two notices. The programs stay attached meanwhile, because the agent
/// has their links open.
const SETTLE: Duration = Duration::from_millis(100);

/// The directories of pins that are watched.
#[derive(Debug)]
pub(crate) struct PinWatch {
    inotify: Option<Arc<Inotify>>,
    directories: Vec<PathBuf>,
    /// Keeps the channel open: without inotify, the receiver waits forever.
    _news: mpsc::Sender<()>,
}

impl PinWatch {
    /// Watches directories; the receiver gets a notice of each group of removals.
    pub(crate) fn start(directories: Vec<PathBuf>) -> (Self, mpsc::Receiver<()>) {
        let (sender, news) = mpsc::channel(1);
        let inotify = match Inotify::init(InitFlags::IN_CLOEXEC) {
            Ok(inotify) => {
                let inotify = Arc::new(inotify);
                let (theirs, to) = (Arc::clone(&inotify), sender.clone());
                // The thread ends with the process: nothing wakes it before.
                thread::spawn(move || follow(&theirs, &to));
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
            _news: sender,
        };
        watch.renew();
        (watch, news)
    }

    /// Also watches the directories of other maps.
    pub(super) fn watch(&mut self, directories: impl IntoIterator<Item = PathBuf>) {
        self.directories.extend(directories);
        self.directories.retain(|directory| directory.exists());
        self.renew();
    }

    /// Watches the directories that these paths lead to now.
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
            // The check every second finds a directory that was removed.
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
        // A notice that waits already stands for all: it is taken before the check.
        _ = news.try_send(());
        thread::sleep(SETTLE);
        if news.is_closed() {
            return;
        }
    }
}
