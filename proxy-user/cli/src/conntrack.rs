// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the node's nf_conntrack parameters with the settings. Used by `init`, which sets the
//! parameters, by `check`, and by `cleanup`, which puts back what kube-proxy would not have set.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use config::Conntrack;
use datapath::maps::pins::{self, CONNTRACK};

const PARAMETERS: &str = "/proc/sys/net/netfilter";
const HASH_SIZE: &str = "/sys/module/nf_conntrack/parameters/hashsize";

/// A parameter of nf_conntrack whose value differs from the settings.
pub(super) struct Due {
    pub(super) now: u32,
    pub(super) wanted: u32,
    file: PathBuf,
}

impl Due {
    pub(super) fn set(&self) -> io::Result<()> {
        fs::write(&self.file, self.wanted.to_string())
    }
}

/// Returns whether the kernel has nf_conntrack and this network namespace has its parameters.
pub(super) fn is_loaded() -> bool {
    Path::new(PARAMETERS).join("nf_conntrack_count").exists()
}

/// Returns the parameters that differ from the settings, or cannot be read, each with its name.
pub(super) fn due(
    conntrack: &Conntrack,
    processors: u32,
) -> impl Iterator<Item = (&'static str, io::Result<Due>)> {
    let files = conntrack.parameters(processors).into_iter();
    let files = files.map(|(name, wanted)| (name, Path::new(PARAMETERS).join(name), wanted, false));
    // KUBE: the hash table has a bucket for four connections. More buckets than that do no harm.
    let max = conntrack.max(processors).into_iter();
    let table = max.map(|max| ("its hash table", HASH_SIZE.into(), max / 4, true));
    files.chain(table).filter_map(|(name, file, wanted, more)| {
        let is_due = |now| if more { now < wanted } else { now != wanted };
        match read(&file) {
            Ok(now) if is_due(now) => Some((name, Ok(Due { now, wanted, file }))),
            Ok(_) => None,
            Err(error) => Some((name, Err(error))),
        }
    })
}

fn read(file: &Path) -> io::Result<u32> {
    let text = fs::read_to_string(file)?;
    text.trim().parse().map_err(io::Error::other)
}

/// Notes the value of a parameter that is about to be set, for [`put_back`].
pub(super) fn note(pin_dir: &Path, name: &str, due: &Due) -> io::Result<()> {
    pins::create_dirs(pin_dir).map_err(io::Error::other)?;
    let text = noted(&notes(pin_dir), name, [due.now, due.wanted]);
    let link = pin_dir.join(CONNTRACK);
    _ = fs::remove_file(&link);
    symlink(text, link)
}

/// Returns what [`note`] has noted: for each parameter `NAME=FOUND,SET`, with blanks in between.
pub(super) fn notes(pin_dir: &Path) -> String {
    let target = fs::read_link(pin_dir.join(CONNTRACK)).unwrap_or_default();
    target.to_string_lossy().into_owned()
}

fn parsed(notes: &str) -> BTreeMap<&str, [u32; 2]> {
    let notes = notes.split(' ').filter_map(|note| {
        let (name, values) = note.split_once('=')?;
        let (found, set) = values.split_once(',')?;
        Some((name, [found.parse().ok()?, set.parse().ok()?]))
    });
    notes.collect()
}

/// Returns the notes with one more. Of a parameter that is set again, the first value counts, or
/// the one that somebody else has set since.
fn noted(notes: &str, name: &str, [found, set]: [u32; 2]) -> String {
    let mut all = parsed(notes);
    let note = all.entry(name).or_insert([found, found]);
    let first = if note[1] == found { note[0] } else { found };
    *note = [first, set];
    let all = all.iter();
    let all = all.map(|(name, [found, set])| format!("{name}={found},{set}"));
    all.collect::<Vec<_>>().join(" ")
}

/// Gives the parameters in `notes` the values that they had, but for those that others have set
/// since; if `dry`, none. Returns a line of text for each.
pub(super) fn put_back(notes: &str, dry: bool) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, [found, set]) in parsed(notes) {
        let file = Path::new(PARAMETERS).join(name);
        if read(&file).ok() != Some(set) {
            continue;
        }
        let stored = match dry {
            true => Ok(()),
            false => fs::write(&file, found.to_string()),
        };
        match stored {
            Ok(()) => lines.push(format!("the value {set} of {name}, which was {found}")),
            Err(error) => eprintln!("nf_conntrack: {name} was {found}, and stays {set}: {error}"),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_that_was_found_first_or_that_another_has_set_since_is_noted_for_each_parameter() {
        let once = noted("", "liberal", [0, 1]);
        let twice = noted(&once, "unacknowledged", [300, 7440]);
        let again = noted(&twice, "unacknowledged", [7440, 600]);
        assert_eq!(again, "liberal=0,1 unacknowledged=300,600");
        let others = noted(&again, "unacknowledged", [900, 600]);
        assert_eq!(others, "liberal=0,1 unacknowledged=900,600");
    }
}
