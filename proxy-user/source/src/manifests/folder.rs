// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of a manifest folder: which file defines which objects, and what changed since the
//! last scan. Called by `manifests`, which decides when to scan.

use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use control::{
    change::{Batch, Change},
    documents,
    model::{Converter, Object, ObjectKey},
    object::Warning,
    warnings::Topic,
};

use super::file::{Stamp, Writers, is_manifest, is_settled, read_whole};

/// What is known of a manifest folder.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    converter: Converter,
    files: BTreeMap<Arc<str>, File>,
    /// For each object, the files that define it, sorted by name: the definition of the first is
    /// used.
    holders: HashMap<ObjectKey, Vec<Arc<str>>>,
}

/// The result of [`Folder::scan`].
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) batch: Batch,
    /// True if a file may still be written to, so that the folder must be scanned again soon.
    pub(super) again: bool,
}

#[derive(Debug, Default)]
struct File {
    /// The file as it was when last read; None: it is read again at the next scan.
    stamp: Option<Stamp>,
    /// The objects of the file when it was last read without a fault.
    objects: BTreeMap<ObjectKey, Object>,
    /// Whether the file was ever read without a fault.
    good: bool,
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

    /// Checks every file and reads the changed ones.
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
            self.install(&name, BTreeMap::new(), &mut batch);
            self.files.remove(&name);
            batch.warnings.push((Topic::File(name), Vec::new()));
        }
        for (name, metadata) in present {
            let known = self.files.get(&name).and_then(|file| file.stamp);
            if known == Some(Stamp::from(&metadata)) {
                continue;
            }
            let writing = writers.writing.contains(&name);
            if writing || !is_settled(&metadata, writers.finished.contains(&name)) {
                // While a file is being written, its writer's next event causes a scan.
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
            // This follows links, which all files of a ConfigMap volume are. A dangling link is no
            // file.
            match fs::metadata(self.path.join(name)) {
                Ok(metadata) if metadata.is_file() => _ = present.insert(name.into(), metadata),
                _ => {}
            }
        }
        Ok(present)
    }

    /// Reads one file and adds its changes to the batch; false if it changed during the read and
    /// must be read again.
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
            _ => "the file is ignored, and nothing is removed from the maps until it can be read",
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
        let (mut objects, mut again) = (BTreeMap::new(), Vec::new());
        for (object, about) in content.objects {
            warnings.extend(about);
            match objects.entry(object.key()) {
                Entry::Vacant(free) => _ = free.insert(object),
                Entry::Occupied(first) => again.push(Warning {
                    object: shown.to_owned(),
                    reason: format!(
                        "{} is defined more than once; the first definition is used, remove the others",
                        first.key(),
                    ),
                }),
            }
        }
        warnings.extend(again);
        self.install(name, objects, batch);
        if let Some(file) = self.files.get_mut(name) {
            file.good = true;
        }
        warnings
    }

    /// Replaces the objects of a file and adds the resulting changes to the batch.
    fn install(
        &mut self,
        name: &Arc<str>,
        mut objects: BTreeMap<ObjectKey, Object>,
        batch: &mut Batch,
    ) {
        let file = self.files.entry(Arc::clone(name)).or_default();
        let mut old = std::mem::take(&mut file.objects);
        let mut touched = Vec::new();
        for (key, object) in &mut objects {
            match old.remove(key) {
                // Shares an equal object with the cluster state.
                Some(known) if known == *object => *object = known,
                _ => touched.push((key.clone(), true)),
            }
        }
        touched.extend(old.into_keys().map(|key| (key, false)));
        file.objects = objects;
        for (key, held) in touched {
            self.touch(key, name, held, batch);
        }
    }

    /// Notes that the file `name` now defines a new or changed object (`held`), or no longer
    /// defines it.
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
            let file = self.files.get(now);
            if let Some(object) = file.and_then(|file| file.objects.get(&key)) {
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
                "it is defined in {} and in {}; the first file by name is used, remove it from one of them",
                self.path.join(&**used).display(),
                self.path.join(&**other).display(),
            ),
        };
        others.iter().map(warning).collect()
    }
}
