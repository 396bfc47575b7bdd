// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Unreadable files, objects defined twice and a missing folder: each causes a warning.

use std::{fs, path::Path};

use control::model::Converter;
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::{Follower, folder, followed, put, service};
use crate::{ObjectSource, SourceError, manifests::Manifests};

#[tokio::test]
async fn a_malformed_file_changes_no_object_and_gives_one_warning() {
    let files = [
        ("a.yaml", service("cart", 80)),
        ("b.yaml", service("till", 81)),
    ];
    let (folder, mut follower, _) = followed(&files).await;
    let broken = service("cart", 90) + "kind: [Service\n";
    put(folder.path(), "a.yaml", &broken);
    assert_eq!(follower.anything().await, [""; 0]);
    assert!(follower.complete, "what the file last held is known");
    follower.assert_warned("a.yaml, document 2, line ");
    follower.assert_warned("its last good content stays in force, correct the file");
    // Other files are still followed.
    put(folder.path(), "b.yaml", &service("till", 82));
    assert_eq!(follower.changes().await, ["+till:82"]);
    assert_eq!(follower.warnings().len(), 1);
    put(folder.path(), "a.yaml", &service("cart", 91));
    assert_eq!(follower.changes().await, ["+cart:91"]);
    assert_eq!(follower.warnings(), [""; 0]);
}

#[tokio::test]
async fn a_file_malformed_from_the_start_keeps_the_list_incomplete_until_it_is_mended() {
    let malformed = "kind: [Service\n".to_owned();
    let files = [("a.yaml", malformed), ("b.yaml", service("till", 81))];
    let (folder, mut follower, changes) = followed(&files).await;
    assert_eq!(changes, ["+till:81"]);
    assert!(!follower.complete);
    follower.assert_warned("the file is ignored, and nothing is removed from the maps");
    put(folder.path(), "a.yaml", &service("cart", 80));
    assert_eq!(follower.changes().await, ["+cart:80"]);
    assert!(follower.complete);
}

#[tokio::test]
async fn a_manifest_file_that_is_not_text_gives_a_warning() {
    let folder = folder(&[]);
    fs::write(folder.path().join("a.yaml"), [0xff, 0xfe, 0x00]).expect("write");
    let mut follower = Follower::start(folder.path());
    follower.changes().await;
    assert!(!follower.complete);
    follower.assert_warned("a.yaml: cannot be read");
}

#[tokio::test]
async fn an_object_in_two_files_is_taken_from_the_first_by_name() {
    let (folder, mut follower, _) = followed(&[("b.yaml", service("cart", 80))]).await;
    let path = folder.path();
    let remove = |name: &str| fs::remove_file(path.join(name)).expect("remove");
    let both = service("cart", 90) + &service("till", 81);
    put(path, "c.yaml", &both);
    assert_eq!(follower.changes().await, ["+till:81"]);
    let warning = format!(
        "Service shop/cart: it is defined in {folder}/b.yaml and in {folder}/c.yaml; the first file by name is used, remove it from one of them",
        folder = path.display(),
    );
    assert_eq!(follower.warnings(), [warning]);
    put(path, "a.yaml", &service("cart", 70));
    assert_eq!(follower.changes().await, ["+cart:70"]);
    assert_eq!(follower.warnings().len(), 2);
    remove("a.yaml");
    assert_eq!(follower.changes().await, ["+cart:80"]);
    remove("b.yaml");
    assert_eq!(follower.changes().await, ["+cart:90"]);
    assert_eq!(follower.warnings(), [""; 0]);
    remove("c.yaml");
    assert_eq!(follower.changes().await, ["-cart", "-till"]);
}

#[tokio::test]
async fn an_object_twice_in_one_file_counts_once() {
    let twice = service("cart", 80) + &service("cart", 81);
    let (_folder, follower, changes) = followed(&[("a.yaml", twice)]).await;
    assert_eq!(changes, ["+cart:80"]);
    follower.assert_warned("Service shop/cart is defined more than once");
}

#[tokio::test]
async fn a_folder_that_does_not_exist_is_an_error_that_says_what_to_do() {
    let (sender, _batches) = mpsc::channel(1);
    let folder = Path::new("/nonexistent/manifests");
    let source = Manifests::new(folder, Converter::new("node-a"));
    assert!(source.check().await.is_err(), "before anything is made");
    let error = source.run(sender).await.expect_err("no such folder");
    assert!(matches!(error, SourceError::Folder { .. }));
    let expected = "cannot read the manifest folder /nonexistent/manifests; create it, or name another one with --manifests";
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn objects_stay_while_their_folder_is_away_and_are_followed_when_it_is_back() {
    let parent = TempDir::new().expect("a folder");
    let folder = parent.path().join("manifests");
    fs::create_dir(&folder).expect("create");
    put(&folder, "a.yaml", &service("cart", 80));
    let mut follower = Follower::start(&folder);
    assert_eq!(follower.changes().await, ["+cart:80"]);
    fs::rename(&folder, parent.path().join("elsewhere")).expect("rename");
    assert_eq!(follower.anything().await, [""; 0]);
    follower.assert_warned("bring the folder back");
    fs::rename(parent.path().join("elsewhere"), &folder).expect("rename back");
    put(&folder, "a.yaml", &service("cart", 81));
    assert_eq!(follower.changes().await, ["+cart:81"]);
    put(&folder, "a.yaml", &service("cart", 82));
    assert_eq!(follower.changes().await, ["+cart:82"]);
    assert_eq!(follower.warnings(), [""; 0]);
}
