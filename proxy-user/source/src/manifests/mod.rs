// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Follows a folder of manifests instead of an API server: watches it and sends the changes that
//! each scan finds. Started by `agent`.

mod file;
mod folder;
#[cfg(test)]
mod tests;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use control::{change::Batch, model::Converter, object::Warning, warnings::Topic};
use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode, ModifyKind},
};
use tokio::{
    sync::mpsc::{self, UnboundedReceiver},
    time::{Instant, timeout_at},
};

use super::{ObjectSource, SourceError, unreadable};
use file::{Writers, is_manifest};
use folder::{Folder, Scan};

/// File events at most this far apart belong to one series, after which the folder is scanned once.
const QUIET: Duration = Duration::from_millis(20);
/// The longest wait for a series of file events to end.
const PATIENCE: Duration = Duration::from_millis(500);
/// The pause before the next scan if a file may still be written to.
const RETRY: Duration = Duration::from_millis(20);
/// The pause between scans without a file event: if the target of a link changes, there is no
/// event.
const RESCAN: Duration = Duration::from_secs(10);
/// The pause between attempts to find a missing folder again.
const SEARCH: Duration = Duration::from_secs(1);

/// A folder of YAML and JSON files that define the cluster's objects.
#[derive(Debug)]
pub struct Manifests {
    path: PathBuf,
    converter: Converter,
}

impl Manifests {
    pub fn new(path: &Path, converter: Converter) -> Self {
        Self {
            path: path.to_owned(),
            converter,
        }
    }
}

impl ObjectSource for Manifests {
    async fn check(&self) -> Result<(), SourceError> {
        identity(&self.path)
            .map(drop)
            .map_err(|error| unreadable(&self.path, error))
    }

    async fn run(self, batches: mpsc::Sender<Batch>) -> Result<(), SourceError> {
        let (sender, mut events) = mpsc::unbounded_channel();
        let mut watch = Watch::new(self.path.clone(), sender)?;
        let mut folder = Folder::new(&self.path, self.converter);
        let mut notes = Notes::default();
        let (started, mut listed) = (Instant::now(), false);
        // The value that was last sent; it is sent again only when it changes.
        let mut complete = false;
        let mut readable = true;
        loop {
            watch.renew(std::mem::take(&mut notes.lost));
            let (scanned, taken) = scan(folder, &mut notes.writers).await;
            folder = taken;
            let wait;
            match scanned {
                Ok(Scan {
                    mut batch,
                    again: unsettled,
                }) => {
                    wait = if unsettled { RETRY } else { RESCAN };
                    // One file that never settles must not stop the others from being served.
                    batch.listed = !listed && (!unsettled || started.elapsed() > PATIENCE);
                    listed |= batch.listed;
                    if !readable {
                        batch.warnings.push((Topic::Folder, Vec::new()));
                        readable = true;
                    }
                    let news = batch.listed || batch.complete != complete;
                    complete = batch.complete;
                    if (news || !batch.changes.is_empty() || !batch.warnings.is_empty())
                        && batches.send(batch).await.is_err()
                    {
                        return Ok(());
                    }
                }
                Err(error) if !listed => return Err(unreadable(&self.path, error)),
                Err(error) => {
                    wait = SEARCH;
                    readable = false;
                    let warning = vanished(&self.path, &error);
                    let batch = Batch {
                        warnings: vec![(Topic::Folder, vec![warning])],
                        complete,
                        ..Batch::default()
                    };
                    if batches.send(batch).await.is_err() {
                        return Ok(());
                    }
                }
            }
            tokio::select! {
                () = next(&mut events, &mut notes, &self.path, wait) => {}
                () = batches.closed() => return Ok(()),
            }
        }
    }
}

/// Scans the folder on a thread that may block; returns the result, and the folder's state again.
async fn scan(mut folder: Folder, writers: &mut Writers) -> (io::Result<Scan>, Folder) {
    let mut seen = std::mem::take(writers);
    let work = tokio::task::spawn_blocking(move || {
        let scan = folder.scan(&seen);
        // An unsettled file was not read, so what is known of its writer is kept.
        if scan.as_ref().is_ok_and(|scan| !scan.again) {
            seen.finished.clear();
        }
        (scan, folder, seen)
    });
    let (scan, folder, seen) = match work.await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    *writers = seen;
    (scan, folder)
}

/// What file events since the last scan say.
#[derive(Debug, Default)]
struct Notes {
    writers: Writers,
    /// True if the folder itself was moved or removed: the watch on it may be lost, too.
    lost: bool,
}

/// Waits for a file event or for the time `wait`, and notes which files are being written.
async fn next(
    events: &mut UnboundedReceiver<Event>,
    notes: &mut Notes,
    folder: &Path,
    wait: Duration,
) {
    let relevant = async {
        while let Some(event) = events.recv().await {
            if notes.take(&event, folder) {
                return;
            }
        }
        std::future::pending::<()>().await;
    };
    if timeout_at(Instant::now() + wait, relevant).await.is_err() {
        return;
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let quiet = (Instant::now() + QUIET).min(deadline);
        match timeout_at(quiet, events.recv()).await {
            Ok(Some(event)) => _ = notes.take(&event, folder),
            Ok(None) | Err(_) => return,
        }
    }
}

impl Notes {
    /// Notes a file event; false if it cannot have changed the objects.
    fn take(&mut self, event: &Event, folder: &Path) -> bool {
        let writers = &mut self.writers;
        if event.need_rescan() {
            // Events were lost, so the state of the writers is unknown.
            *writers = Writers::default();
            return true;
        }
        let names = event
            .paths
            .iter()
            .filter_map(|path| path.file_name()?.to_str());
        let names = names.filter(|name| is_manifest(name)).map(Arc::<str>::from);
        let about_folder = event.paths.iter().any(|path| path == folder);
        let (is_writing, is_finished) = match event.kind {
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => (false, true),
            EventKind::Access(_) => return false,
            EventKind::Modify(ModifyKind::Data(_)) => (true, false),
            EventKind::Modify(ModifyKind::Name(_)) | EventKind::Remove(_) if about_folder => {
                self.lost = true;
                return true;
            }
            // The name now belongs to another file, or to no file.
            EventKind::Modify(ModifyKind::Name(_)) => (false, true),
            EventKind::Remove(_) => (false, false),
            _ => return true,
        };
        for name in names {
            writers.writing.remove(&name);
            writers.finished.remove(&name);
            if is_writing {
                writers.writing.insert(name);
            } else if is_finished {
                writers.finished.insert(name);
            }
        }
        true
    }
}

/// The watch on the folder; begun again when another folder has its path.
struct Watch {
    path: PathBuf,
    watcher: RecommendedWatcher,
    /// Device and inode of the folder being watched.
    watched: Option<(u64, u64)>,
}

impl Watch {
    fn new(path: PathBuf, sender: mpsc::UnboundedSender<Event>) -> Result<Self, SourceError> {
        let identity = identity(&path).map_err(|error| unreadable(&path, error))?;
        let failed = |source| SourceError::Watch {
            folder: path.display().to_string(),
            source,
        };
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // After an error of the watch, every file is checked.
            let rescan = |_| Event::new(EventKind::Other).set_flag(notify::event::Flag::Rescan);
            // Sending fails only once nobody follows any more.
            _ = sender.send(event.unwrap_or_else(rescan));
        })
        .map_err(failed)?;
        watcher
            .watch(&path, RecursiveMode::NonRecursive)
            .map_err(failed)?;
        Ok(Self {
            watched: Some(identity),
            path,
            watcher,
        })
    }

    fn renew(&mut self, lost: bool) {
        let identity = identity(&self.path).ok();
        if identity == self.watched && !lost {
            return;
        }
        // Unwatching fails if the old watch is already gone.
        _ = self.watcher.unwatch(&self.path);
        let watching = self.watcher.watch(&self.path, RecursiveMode::NonRecursive);
        self.watched = identity.filter(|_| watching.is_ok());
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok((metadata.dev(), metadata.ino()))
}

fn vanished(path: &Path, error: &io::Error) -> Warning {
    Warning {
        object: path.display().to_string(),
        reason: format!(
            "the manifest folder cannot be read any more: {error}; its last content stays in force, bring the folder back",
        ),
    }
}
