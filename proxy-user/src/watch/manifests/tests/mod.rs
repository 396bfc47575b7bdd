// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The manifest folder as writers treat it: renames, half-written files, links, removals.

use std::{
    fs,
    io::Write,
    os::unix::fs::symlink,
    path::Path,
    time::{Duration, SystemTime},
};

use tempfile::TempDir;
use tokio::{sync::mpsc, time::timeout};

use super::Manifests;
use crate::{
    model::{Converter, Object},
    warnings::Warnings,
    watch::{Batch, Change, Source, SourceError},
};

/// Long enough for any change to arrive on a busy machine.
const SOON: Duration = Duration::from_secs(5);
/// Long enough for a change that must not come to have come.
const A_WHILE: Duration = Duration::from_millis(300);

fn service(name: &str, port: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{clusterIP: 172.30.0.1, ports: [{{port: {port}}}]}}\n---\n",
    )
}

/// Puts a file in place as a careful writer does; `.tmp` is no manifest.
fn put(folder: &Path, file: &str, text: &str) {
    let temporary = folder.join(format!("{file}.tmp"));
    fs::write(&temporary, text).expect("write");
    fs::rename(&temporary, folder.join(file)).expect("rename");
}

/// Makes a file look as if it had been written long ago, so that a first scan takes it at once.
fn age(path: &Path) {
    let file = fs::File::options().write(true).open(path).expect("open");
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    file.set_modified(long_ago).expect("set the time");
}

/// A source under test, and what has come of it so far.
struct Follower {
    batches: mpsc::Receiver<Batch>,
    warnings: Warnings,
    complete: bool,
}

impl Follower {
    fn start(folder: &Path) -> Self {
        let (sender, batches) = mpsc::channel(16);
        let source = Manifests::new(folder, Converter::new("node-a"));
        tokio::spawn(async move { source.run(sender).await.expect("it goes on") });
        Self {
            batches,
            warnings: Warnings::default(),
            complete: false,
        }
    }
    /// The changes of the next batch that has any, or that is the first.
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
    /// The changes that come within a while.
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
        let mut told: Vec<_> = batch.changes.iter().map(tell).collect();
        told.sort();
        told
    }
    fn told(&self) -> Vec<String> {
        self.warnings
            .all()
            .iter()
            .map(ToString::to_string)
            .collect()
    }
}

/// `+cart:80` or `-cart`.
fn tell(change: &Change) -> String {
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
async fn the_first_batch_has_everything_and_says_so() {
    let folder = TempDir::new().expect("a folder");
    put(
        folder.path(),
        "a.yaml",
        &(service("cart", 80) + &service("till", 81)),
    );
    put(
        folder.path(),
        "b.json",
        r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "json"}}"#,
    );
    put(folder.path(), "notes.txt", "no manifest");
    put(folder.path(), ".hidden.yaml", &service("hidden", 80));
    let mut follower = Follower::start(folder.path());
    assert_eq!(
        follower.changes().await,
        ["+cart:80", "+json:0", "+till:81"]
    );
    assert!(follower.complete);
}

#[tokio::test]
async fn an_empty_folder_is_complete() {
    let folder = TempDir::new().expect("a folder");
    let mut follower = Follower::start(folder.path());
    assert!(follower.changes().await.is_empty());
    assert!(follower.complete);
}

#[tokio::test]
async fn only_what_differs_is_sent_and_a_file_takes_effect_together() {
    let folder = TempDir::new().expect("a folder");
    put(
        folder.path(),
        "a.yaml",
        &(service("cart", 80) + &service("till", 81)),
    );
    let mut follower = Follower::start(folder.path());
    follower.changes().await;
    put(
        folder.path(),
        "a.yaml",
        &(service("cart", 80) + &service("till", 82) + &service("new", 83)),
    );
    assert_eq!(follower.changes().await, ["+new:83", "+till:82"]);
    put(folder.path(), "a.yaml", &service("new", 83));
    assert_eq!(follower.changes().await, ["-cart", "-till"]);
    fs::remove_file(folder.path().join("a.yaml")).expect("remove");
    assert_eq!(follower.changes().await, ["-new"]);
    assert!(follower.complete);
}

#[tokio::test]
async fn a_file_that_is_being_written_is_not_read_however_well_its_beginning_parses() {
    let folder = TempDir::new().expect("a folder");
    put(
        folder.path(),
        "a.yaml",
        &(service("cart", 80) + &service("till", 81)),
    );
    let mut follower = Follower::start(folder.path());
    follower.changes().await;
    let mut file = fs::File::create(folder.path().join("a.yaml")).expect("truncate");
    file.write_all(service("cart", 90).as_bytes())
        .expect("write");
    file.flush().expect("flush");
    assert_eq!(follower.anything().await, [""; 0]);
    file.write_all(service("till", 91).as_bytes())
        .expect("write");
    assert_eq!(follower.anything().await, [""; 0]);
    drop(file);
    assert_eq!(follower.changes().await, ["+cart:90", "+till:91"]);
}

#[tokio::test]
async fn a_file_that_was_being_written_when_the_agent_started_is_waited_for() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("a.yaml");
    let mut file = fs::File::create(&path).expect("create");
    file.write_all(service("cart", 80).as_bytes())
        .expect("write");
    let mut follower = Follower::start(folder.path());
    tokio::time::sleep(Duration::from_millis(40)).await;
    file.write_all(service("till", 81).as_bytes())
        .expect("write");
    drop(file);
    let mut seen = follower.changes().await;
    while seen.len() < 2 {
        assert!(!follower.complete, "{seen:?}");
        seen.extend(follower.changes().await);
    }
    assert_eq!(seen, ["+cart:80", "+till:81"]);
}

#[tokio::test]
async fn a_malformed_file_changes_nothing_and_is_told_once() {
    let folder = TempDir::new().expect("a folder");
    put(folder.path(), "a.yaml", &service("cart", 80));
    put(folder.path(), "b.yaml", &service("till", 81));
    let mut follower = Follower::start(folder.path());
    follower.changes().await;
    let broken = service("cart", 90) + "kind: [Service\n";
    put(folder.path(), "a.yaml", &broken);
    assert_eq!(follower.anything().await, [""; 0]);
    assert!(follower.complete, "what the file last held is known");
    let told = follower.told();
    let [warning] = &told[..] else {
        panic!("{told:?}")
    };
    assert!(warning.contains("a.yaml, document 2, line "), "{warning}");
    assert!(
        warning.ends_with("its last good content stays in force, correct the file"),
        "{warning}"
    );
    // Others go on meanwhile.
    put(folder.path(), "b.yaml", &service("till", 82));
    assert_eq!(follower.changes().await, ["+till:82"]);
    assert_eq!(follower.told().len(), 1);
    put(folder.path(), "a.yaml", &service("cart", 91));
    assert_eq!(follower.changes().await, ["+cart:91"]);
    assert_eq!(follower.told(), [""; 0]);
}

#[tokio::test]
async fn a_file_malformed_from_the_start_keeps_the_list_incomplete_until_it_is_mended() {
    let folder = TempDir::new().expect("a folder");
    put(folder.path(), "a.yaml", "kind: [Service\n");
    put(folder.path(), "b.yaml", &service("till", 81));
    let mut follower = Follower::start(folder.path());
    assert_eq!(follower.changes().await, ["+till:81"]);
    assert!(!follower.complete);
    assert!(
        follower.told()[0].contains("nothing of it is used"),
        "{:?}",
        follower.told()
    );
    put(folder.path(), "a.yaml", &service("cart", 80));
    assert_eq!(follower.changes().await, ["+cart:80"]);
    assert!(follower.complete);
}

#[tokio::test]
async fn a_file_that_is_no_text_is_told() {
    let folder = TempDir::new().expect("a folder");
    fs::write(folder.path().join("a.yaml"), [0xff, 0xfe, 0x00]).expect("write");
    let mut follower = Follower::start(folder.path());
    follower.changes().await;
    assert!(!follower.complete);
    assert!(
        follower.told()[0].contains("a.yaml: cannot be read"),
        "{:?}",
        follower.told()
    );
}

#[tokio::test]
async fn an_unknown_kind_is_told_and_the_rest_of_the_file_works() {
    let folder = TempDir::new().expect("a folder");
    let text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n---\n".to_owned()
        + &service("cart", 80);
    put(folder.path(), "a.yaml", &text);
    let mut follower = Follower::start(folder.path());
    assert_eq!(follower.changes().await, ["+cart:80"]);
    assert!(follower.complete);
    assert!(
        follower.told()[0].contains("kind Deployment of apps/v1 is skipped"),
        "{:?}",
        follower.told()
    );
}

#[tokio::test]
async fn of_one_object_in_two_files_the_first_file_by_name_counts() {
    let folder = TempDir::new().expect("a folder");
    put(folder.path(), "b.yaml", &service("cart", 80));
    let mut follower = Follower::start(folder.path());
    follower.changes().await;
    put(
        folder.path(),
        "c.yaml",
        &(service("cart", 90) + &service("till", 81)),
    );
    assert_eq!(follower.changes().await, ["+till:81"]);
    let told = follower.told();
    let [warning] = &told[..] else {
        panic!("{told:?}")
    };
    let file = |name| folder.path().join(name).display().to_string();
    assert_eq!(
        *warning,
        format!(
            "Service shop/cart: it stands in {} and in {}; the first file by name counts, remove it from one of them",
            file("b.yaml"),
            file("c.yaml"),
        )
    );
    put(folder.path(), "a.yaml", &service("cart", 70));
    assert_eq!(follower.changes().await, ["+cart:70"]);
    assert_eq!(follower.told().len(), 2);
    fs::remove_file(folder.path().join("a.yaml")).expect("remove");
    assert_eq!(follower.changes().await, ["+cart:80"]);
    fs::remove_file(folder.path().join("b.yaml")).expect("remove");
    assert_eq!(follower.changes().await, ["+cart:90"]);
    assert_eq!(follower.told(), [""; 0]);
    fs::remove_file(folder.path().join("c.yaml")).expect("remove");
    assert_eq!(follower.changes().await, ["-cart", "-till"]);
}

#[tokio::test]
async fn an_object_twice_in_one_file_counts_once() {
    let folder = TempDir::new().expect("a folder");
    put(
        folder.path(),
        "a.yaml",
        &(service("cart", 80) + &service("cart", 81)),
    );
    let mut follower = Follower::start(folder.path());
    assert_eq!(follower.changes().await, ["+cart:80"]);
    assert!(
        follower.told()[0].contains("Service shop/cart stands in it more than once"),
        "{:?}",
        follower.told()
    );
}

#[tokio::test]
async fn a_config_map_volume_is_followed_through_its_link() {
    let folder = TempDir::new().expect("a folder");
    let version = |name: &str, text: &str| {
        let version = folder.path().join(name);
        fs::create_dir(&version).expect("create");
        fs::write(version.join("a.yaml"), text).expect("write");
        age(&version.join("a.yaml"));
        symlink(name, folder.path().join("..data_tmp")).expect("link");
        fs::rename(
            folder.path().join("..data_tmp"),
            folder.path().join("..data"),
        )
        .expect("swap");
    };
    version("..1", &service("cart", 80));
    symlink("..data/a.yaml", folder.path().join("a.yaml")).expect("link");
    let mut follower = Follower::start(folder.path());
    assert_eq!(follower.changes().await, ["+cart:80"]);
    version("..2", &service("cart", 81));
    assert_eq!(follower.changes().await, ["+cart:81"]);
    fs::remove_dir_all(folder.path().join("..2")).expect("remove");
    // A link that leads nowhere is no file.
    put(folder.path(), "b.yaml", &service("till", 1));
    assert_eq!(follower.changes().await, ["+till:1", "-cart"]);
}

#[tokio::test]
async fn a_folder_that_does_not_exist_is_an_error_that_says_what_to_do() {
    let (sender, _batches) = mpsc::channel(1);
    let source = Manifests::new(
        Path::new("/nonexistent/manifests"),
        Converter::new("node-a"),
    );
    let error = source.run(sender).await.expect_err("no such folder");
    assert!(matches!(error, SourceError::Folder { .. }));
    assert_eq!(
        error.to_string(),
        "cannot read the manifest folder /nonexistent/manifests; create it, or name another one with --manifests"
    );
}

#[tokio::test]
async fn a_folder_that_vanishes_takes_nothing_along_and_is_followed_again_when_it_returns() {
    let parent = TempDir::new().expect("a folder");
    let folder = parent.path().join("manifests");
    fs::create_dir(&folder).expect("create");
    put(&folder, "a.yaml", &service("cart", 80));
    let mut follower = Follower::start(&folder);
    assert_eq!(follower.changes().await, ["+cart:80"]);
    fs::rename(&folder, parent.path().join("elsewhere")).expect("rename");
    assert_eq!(follower.anything().await, [""; 0]);
    assert!(
        follower.told()[0].contains("bring the folder back"),
        "{:?}",
        follower.told()
    );
    fs::rename(parent.path().join("elsewhere"), &folder).expect("rename back");
    put(&folder, "a.yaml", &service("cart", 81));
    assert_eq!(follower.changes().await, ["+cart:81"]);
    put(&folder, "a.yaml", &service("cart", 82));
    assert_eq!(follower.changes().await, ["+cart:82"]);
    assert_eq!(follower.told(), [""; 0]);
}

#[test]
fn the_source_ends_when_nobody_listens() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let folder = TempDir::new().expect("a folder");
    let source = Manifests::new(folder.path(), Converter::new("node-a"));
    let (sender, batches) = mpsc::channel(1);
    drop(batches);
    let ended = runtime.block_on(async { timeout(SOON, source.run(sender)).await });
    ended.expect("in time").expect("without fault");
}
