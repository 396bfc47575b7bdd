// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of a manifest folder: which file holds which objects, and what a scan finds changed. Called
//! by `watch::manifests`, which says when to look.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, HashMap, HashSet},
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::{
    model::{Converter, Object, ObjectKey},
    object::Warning,
    warnings::Topic,
    watch::{Batch, Change, documents},
};

/// A file younger than this may still be being written,
const SETTLE: Duration = Duration::from_millis(100);
/// or this where its writer was seen to close it: another may have opened it just now.
const SETTLE_FINISHED: Duration = Duration::from_millis(10);

/// Files as writers left them, by name.
#[derive(Debug, Default)]
pub(super) struct Writers {
    /// Written to and not closed since.
    pub(super) writing: HashSet<Arc<str>>,
    /// Closed after writing, or put in place by rename.
    pub(super) finished: HashSet<Arc<str>>,
}

/// A folder of manifests.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    converter: Converter,
    files: BTreeMap<Arc<str>, File>,
    /// The files that hold an object, by name: the first one's is used.
    holders: HashMap<ObjectKey, Vec<Arc<str>>>,
}

/// What a scan found.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) batch: Batch,
    /// Some file is not settled: look again soon.
    pub(super) again: bool,
}

#[derive(Debug, Default)]
struct File {
    /// None to have it read again whatever its stamp.
    stamp: Option<Stamp>,
    /// Ordered by key: the last good content.
    objects: Vec<Object>,
    /// Whether there has been good content.
    good: bool,
}

/// Tells one content from another without reading it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl From<&fs::Metadata> for Stamp {
    fn from(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Whether a file of this name is a manifest. Hidden files are editors' and ConfigMap volumes' own.
pub(super) fn is_manifest(name: &str) -> bool {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    !name.starts_with('.') && matches!(extension, "yaml" | "yml" | "json")
}

impl Folder {
    pub(super) fn new(path: &Path, converter: Converter) -> Self {
        Self {
            path: path.to_owned(),
            converter,
            files: BTreeMap::new(),
            holders: HashMap::new(),
        }
    }

    /// Looks at every file and reads those that changed.
    pub(super) fn scan(&mut self, writers: &Writers) -> io::Result<Scan> {
        let mut batch = Batch::default();
        let mut again = false;
        let present = self.list()?;
        let gone: Vec<_> = self
            .files
            .keys()
            .filter(|name| !present.contains_key(*name))
            .cloned()
            .collect();
        for name in gone {
            self.install(&name, Vec::new(), &mut batch);
            self.files.remove(&name);
            batch.warnings.push((Topic::File(name), Vec::new()));
        }
        for (name, metadata) in present {
            let known = self.files.get(&name).and_then(|file| file.stamp);
            if known == Some(Stamp::from(&metadata)) {
                continue;
            }
            let writing = writers.writing.contains(&name);
            let age = if writers.finished.contains(&name) {
                SETTLE_FINISHED
            } else {
                SETTLE
            };
            if writing || !is_settled(&metadata, age) {
                // Its writer's next event tells when to look.
                again |= !writing;
                self.files.entry(name).or_default();
                continue;
            }
            again |= !self.read(name, &mut batch);
        }
        batch.complete = self.files.values().all(|file| file.good);
        Ok(Scan { batch, again })
    }

    fn list(&self) -> io::Result<BTreeMap<Arc<str>, fs::Metadata>> {
        let mut present = BTreeMap::new();
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            let Some(name) = name.to_str().filter(|name| is_manifest(name)) else {
                continue;
            };
            // Follows links: in a ConfigMap volume every file is one. One that leads nowhere is no file.
            match fs::metadata(self.path.join(name)) {
                Ok(metadata) if metadata.is_file() => _ = present.insert(name.into(), metadata),
                _ => {}
            }
        }
        Ok(present)
    }

    /// Reads one file; false where it changed meanwhile and must be read again.
    fn read(&mut self, name: Arc<str>, batch: &mut Batch) -> bool {
        let path = self.path.join(&*name);
        let shown = path.display().to_string();
        let warnings = match read_whole(&path) {
            Ok(None) => {
                self.files.entry(name).or_default();
                return false;
            }
            Ok(Some((stamp, text))) => {
                self.files.entry(Arc::clone(&name)).or_default().stamp = Some(stamp);
                match documents::read(&shown, &text, &mut self.converter) {
                    Ok(content) => self.take(&name, &shown, content, batch),
                    Err(malformed) => vec![Warning {
                        object: format!("{shown}, {}", malformed.place),
                        reason: format!(
                            "{}; {}, correct the file",
                            malformed.reason,
                            self.fallback(&name),
                        ),
                    }],
                }
            }
            Err(error) => {
                self.files.entry(Arc::clone(&name)).or_default().stamp = None;
                vec![Warning {
                    object: shown,
                    reason: format!(
                        "cannot be read: {error}; {}, make it readable UTF-8 text",
                        self.fallback(&name),
                    ),
                }]
            }
        };
        batch.warnings.push((Topic::File(name), warnings));
        true
    }

    fn fallback(&self, name: &str) -> &'static str {
        match self.files.get(name) {
            Some(file) if file.good => "its last good content stays in force",
            _ => "nothing of it is used, and nothing is removed from the maps meanwhile",
        }
    }

    fn take(
        &mut self,
        name: &Arc<str>,
        shown: &str,
        content: documents::Content,
        batch: &mut Batch,
    ) -> Vec<Warning> {
        let mut warnings = content.warnings;
        let mut objects = Vec::with_capacity(content.objects.len());
        for (object, about) in content.objects {
            warnings.extend(about);
            objects.push(object);
        }
        objects.sort_by(order);
        objects.dedup_by(|later, first| {
            let same = order(later, first) == Ordering::Equal;
            if same {
                warnings.push(Warning {
                    object: shown.to_owned(),
                    reason: format!(
                        "{} stands in it more than once; the first one counts, remove the others",
                        first.key(),
                    ),
                });
            }
            same
        });
        self.install(name, objects, batch);
        if let Some(file) = self.files.get_mut(name) {
            file.good = true;
        }
        warnings
    }

    /// Replaces the objects of a file and tells what that changes.
    fn install(&mut self, name: &Arc<str>, mut objects: Vec<Object>, batch: &mut Batch) {
        let file = self.files.entry(Arc::clone(name)).or_default();
        let old = std::mem::take(&mut file.objects);
        let mut touched = Vec::new();
        for object in &mut objects {
            match old.binary_search_by(|known| order(known, object)) {
                // Equal content stays one object, here and in the cluster state.
                Ok(at) => match old.get(at) {
                    Some(known) if known == object => *object = known.clone(),
                    _ => touched.push((object.key(), true)),
                },
                Err(_) => touched.push((object.key(), true)),
            }
        }
        for object in &old {
            if objects.binary_search_by(|new| order(new, object)).is_err() {
                touched.push((object.key(), false));
            }
        }
        objects.shrink_to_fit();
        file.objects = objects;
        for (key, held) in touched {
            self.touch(key, name, held, batch);
        }
    }

    /// Accounts for one object of `name` having come, changed or gone.
    fn touch(&mut self, key: ObjectKey, name: &Arc<str>, held: bool, batch: &mut Batch) {
        let holders = self.holders.entry(key.clone()).or_default();
        let (first, several) = (holders.first().cloned(), holders.len() > 1);
        match (holders.binary_search(name), held) {
            (Err(at), true) => {
                holders.reserve_exact(1);
                holders.insert(at, Arc::clone(name));
            }
            (Ok(at), false) => _ = holders.remove(at),
            _ => {}
        }
        let holders = holders.clone();
        if holders.len() > 1 || several {
            let warnings = self.duplicates(&key, &holders);
            let topic = Topic::Duplicate(key.clone());
            batch.warnings.push((topic, warnings));
        }
        let Some(now) = holders.first() else {
            self.holders.remove(&key);
            batch.changes.push(Change::Delete(key));
            return;
        };
        if first.as_ref() != Some(now) || now == name {
            let objects = self.files.get(now).map_or(&[][..], |file| &file.objects);
            let found = objects.binary_search_by(|object| {
                (object.kind(), object.name()).cmp(&(key.kind, &key.name))
            });
            if let Some(object) = found.ok().and_then(|at| objects.get(at)) {
                batch.changes.push(Change::Upsert(object.clone()));
            }
        }
    }

    fn duplicates(&self, key: &ObjectKey, holders: &[Arc<str>]) -> Vec<Warning> {
        let Some((used, others)) = holders.split_first() else {
            return Vec::new();
        };
        let warning = |other: &Arc<str>| Warning {
            object: key.to_string(),
            reason: format!(
                "it stands in {} and in {}; the first file by name counts, remove it from one of them",
                self.path.join(&**used).display(),
                self.path.join(&**other).display(),
            ),
        };
        others.iter().map(warning).collect()
    }
}

fn order(a: &Object, b: &Object) -> Ordering {
    (a.kind(), a.name()).cmp(&(b.kind(), b.name()))
}

/// A time in the future tells nothing and counts as settled.
fn is_settled(metadata: &fs::Metadata, wanted: Duration) -> bool {
    let age = |time: SystemTime| SystemTime::now().duration_since(time).ok();
    let age = metadata.modified().ok().and_then(age);
    age.is_none_or(|age| age >= wanted)
}

/// The file's text and stamp; none where it changed while it was read.
fn read_whole(path: &Path) -> io::Result<Option<(Stamp, String)>> {
    let before = Stamp::from(&fs::metadata(path)?);
    let text = fs::read_to_string(path)?;
    let after = Stamp::from(&fs::metadata(path)?);
    let whole = before == after && after.size == text.len() as u64;
    Ok(whole.then_some((after, text)))
}
