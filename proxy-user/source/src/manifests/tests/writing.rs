// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests files that are being written, and links as a ConfigMap volume has them.

use std::{
    fs,
    io::Write,
    os::unix::fs::symlink,
    path::Path,
    time::{Duration, SystemTime},
};

use tempfile::TempDir;

use super::{Follower, followed, put, service};

/// Makes a file look old, so that the first scan reads it at once.
fn age(path: &Path) {
    let file = fs::File::options().write(true).open(path).expect("open");
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    file.set_modified(long_ago).expect("set the time");
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
        fs::write(version.join("a.yaml"), text).expect("write");
        age(&version.join("a.yaml"));
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
