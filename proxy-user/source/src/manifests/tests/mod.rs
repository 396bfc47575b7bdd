// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests a folder of manifests and what is sent when files are added, changed and removed; files
//! that are being written, and links as a ConfigMap volume has them.

mod faults;

use std::{
    fs,
    io::Write,
    os::unix::fs::symlink,
    path::Path,
    time::{Duration, SystemTime},
};

use control::{
    change::{Batch, Change},
    model::{Converter, Object},
    warnings::Warnings,
};
use tempfile::TempDir;
use tokio::{sync::mpsc, time::timeout};

use super::Manifests;
use crate::ObjectSource;

/// Long enough for any change to arrive on a busy machine.
const SOON: Duration = Duration::from_secs(5);
/// Long enough to notice a change that must not come.
const A_WHILE: Duration = Duration::from_millis(300);

fn service(name: &str, port: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{clusterIP: 172.30.0.1, ports: [{{port: {port}}}]}}\n---\n",
    )
}

/// Renames a finished file to its final name; a `.tmp` file is no manifest.
fn put(folder: &Path, file: &str, text: &str) {
    let temporary = folder.join(format!("{file}.tmp"));
    fs::write(&temporary, text).expect("write");
    fs::rename(&temporary, folder.join(file)).expect("rename");
}

/// Returns a folder with these files.
fn folder(files: &[(&str, String)]) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    for (file, text) in files {
        put(folder.path(), file, text);
    }
    folder
}

/// Follows a folder and keeps what was received so far.
struct Follower {
    batches: mpsc::Receiver<Batch>,
    warnings: Warnings,
    complete: bool,
}

impl Follower {
    fn start(folder: &Path) -> Self {
        let (sender, batches) = mpsc::channel(16);
        let source = Manifests::new(folder, Converter::new("node-a"));
        tokio::spawn(async move { source.run(sender).await.expect("following goes on") });
        Self {
            batches,
            warnings: Warnings::default(),
            complete: false,
        }
    }
    /// Returns the changes of the next batch that has any; the first batch may have none.
    async fn changes(&mut self) -> Vec<String> {
        loop {
            let batch = timeout(SOON, self.batches.recv()).await;
            let batch = batch.expect("a batch in time").expect("a batch");
            let listed = batch.listed;
            let changes = self.take(batch);
            if listed || !changes.is_empty() {
                return changes;
            }
        }
    }
    /// Returns all changes that arrive within [`A_WHILE`].
    async fn anything(&mut self) -> Vec<String> {
        let mut changes = Vec::new();
        while let Ok(Some(batch)) = timeout(A_WHILE, self.batches.recv()).await {
            changes.extend(self.take(batch));
        }
        changes
    }
    fn take(&mut self, batch: Batch) -> Vec<String> {
        self.complete = batch.complete;
        for (topic, warnings) in batch.warnings {
            self.warnings.replace(topic, warnings);
        }
        let mut changes: Vec<_> = batch.changes.iter().map(describe).collect();
        changes.sort();
        changes
    }
    /// Fails unless the first warning contains this text.
    fn assert_warned(&self, text: &str) {
        let warnings = self.warnings();
        let first = warnings.first();
        assert!(first.is_some_and(|one| one.contains(text)), "{warnings:?}");
    }
    fn warnings(&self) -> Vec<String> {
        let all = self.warnings.all();
        all.iter().map(ToString::to_string).collect()
    }
}

/// Returns a folder with these files, and its follower after the first changes, with these.
async fn followed(files: &[(&str, String)]) -> (TempDir, Follower, Vec<String>) {
    let folder = folder(files);
    let mut follower = Follower::start(folder.path());
    let changes = follower.changes().await;
    (folder, follower, changes)
}

/// Writes a change as `+cart:80` or `-cart`.
fn describe(change: &Change) -> String {
    match change {
        Change::Upsert(Object::Service(service)) => {
            let port = service.ports.first().map_or(0, |port| port.port.host());
            format!("+{}:{port}", service.name.name)
        }
        Change::Upsert(object) => format!("+{}", object.key()),
        Change::Delete(key) => format!("-{}", key.name.name),
    }
}

#[tokio::test]
async fn the_first_batch_has_all_manifests_and_is_complete() {
    let json = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "json"}}"#;
    let other = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n---\n";
    let (_folder, follower, changes) = followed(&[
        ("a.yaml", service("cart", 80) + other + &service("till", 81)),
        ("b.json", json.to_owned()),
        ("notes.txt", "no manifest".to_owned()),
        (".hidden.yaml", service("hidden", 80)),
    ])
    .await;
    assert_eq!(changes, ["+cart:80", "+json:0", "+till:81"]);
    assert!(follower.complete);
    follower.assert_warned("kind Deployment of apps/v1 is skipped");
}

#[tokio::test]
async fn an_empty_manifest_folder_is_complete_and_its_source_ends_with_its_receiver() {
    let (folder, follower, changes) = followed(&[]).await;
    assert!(changes.is_empty() && follower.complete);
    let source = Manifests::new(folder.path(), Converter::new("node-a"));
    let (sender, _) = mpsc::channel(1);
    let ended = timeout(SOON, source.run(sender)).await;
    ended.expect("in time").expect("without fault");
}

#[tokio::test]
async fn only_changed_objects_of_a_file_are_sent_and_in_one_batch() {
    let both = |port| service("cart", 80) + &service("till", port);
    let (folder, mut follower, _) = followed(&[("a.yaml", both(81))]).await;
    put(folder.path(), "a.yaml", &(both(82) + &service("new", 83)));
    assert_eq!(follower.changes().await, ["+new:83", "+till:82"]);
    put(folder.path(), "a.yaml", &service("new", 83));
    assert_eq!(follower.changes().await, ["-cart", "-till"]);
    fs::remove_file(folder.path().join("a.yaml")).expect("remove");
    assert_eq!(follower.changes().await, ["-new"]);
    assert!(follower.complete);
}

#[tokio::test]
async fn a_file_is_not_read_while_it_is_written_even_if_its_beginning_is_valid() {
    let both = service("cart", 80) + &service("till", 81);
    let (folder, mut follower, _) = followed(&[("a.yaml", both)]).await;
    let mut file = fs::File::create(folder.path().join("a.yaml")).expect("truncate");
    write!(file, "{}", service("cart", 90)).expect("write");
    file.flush().expect("flush");
    assert_eq!(follower.anything().await, [""; 0]);
    write!(file, "{}", service("till", 91)).expect("write");
    assert_eq!(follower.anything().await, [""; 0]);
    drop(file);
    assert_eq!(follower.changes().await, ["+cart:90", "+till:91"]);
}

#[tokio::test]
async fn a_file_that_was_being_written_when_the_agent_started_is_waited_for() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("a.yaml");
    let mut file = fs::File::create(&path).expect("create");
    write!(file, "{}", service("cart", 80)).expect("write");
    let mut follower = Follower::start(folder.path());
    tokio::time::sleep(Duration::from_millis(40)).await;
    write!(file, "{}", service("till", 81)).expect("write");
    drop(file);
    let mut seen = follower.changes().await;
    while seen.len() < 2 {
        assert!(!follower.complete, "{seen:?}");
        seen.extend(follower.changes().await);
    }
    assert_eq!(seen, ["+cart:80", "+till:81"]);
}

#[tokio::test]
async fn a_config_map_volume_is_followed_through_its_link() {
    let folder = TempDir::new().expect("a folder");
    let version = |name: &str, text: &str| {
        let version = folder.path().join(name);
        fs::create_dir(&version).expect("create");
        let mut file = fs::File::create(version.join("a.yaml")).expect("create");
        write!(file, "{text}").expect("write");
        // It looks old, so that the first scan reads it at once.
        let long_ago = SystemTime::now() - Duration::from_secs(3600);
        file.set_modified(long_ago).expect("set the time");
        let [new, data] = ["..data_tmp", "..data"].map(|name| folder.path().join(name));
        symlink(name, &new).expect("link");
        fs::rename(new, data).expect("swap");
    };
    version("..1", &service("cart", 80));
    symlink("..data/a.yaml", folder.path().join("a.yaml")).expect("link");
    let mut follower = Follower::start(folder.path());
    assert_eq!(follower.changes().await, ["+cart:80"]);
    version("..2", &service("cart", 81));
    assert_eq!(follower.changes().await, ["+cart:81"]);
    fs::remove_dir_all(folder.path().join("..2")).expect("remove");
    // A dangling link does not count as a file.
    put(folder.path(), "b.yaml", &service("till", 1));
    assert_eq!(follower.changes().await, ["+till:1", "-cart"]);
}
