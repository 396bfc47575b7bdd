// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Removes everything that portolan has created. In: a pin directory. Out: filters, qdiscs, links,
//! maps and directories removed. Called by `cli::cleanup`.

use std::{
    fs, io,
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use linux::{detach, end_translations, forward_chains, get_pinned, has_translations};

use super::{
    error::DatapathError,
    maps::{
        Lock,
        pins::{generations, is_bpffs, links_of},
    },
    programs::{detach_filters, filters_to_detach, interfaces},
};

/// Removes our filters, qdiscs, links, maps and directories, and returns a line of text for each.
/// Fails while an agent has locked `pin_dir`, unless `force` is set.
pub fn cleanup(pin_dir: &Path, force: bool) -> Result<Vec<String>, DatapathError> {
    check_bpffs(pin_dir)?;
    let lock = pin_dir.exists().then(|| Lock::take(pin_dir)).transpose();
    let _lock = if force { lock.ok().flatten() } else { lock? };
    let mut removed = Vec::new();
    let all = generations(pin_dir).map_err(DatapathError::of_file("read", pin_dir))?;
    let links: Vec<PathBuf> = all.iter().map(|one| links_of(&one.dir(pin_dir))).collect();
    for (index, name) in interfaces() {
        let parts = detach_filters(&links, index).map_err(|source| DatapathError::Interface {
            attempt: "remove the clsact qdisc of",
            interface: name.clone(),
            index,
            source,
        })?;
        removed.extend(parts.iter().map(|part| format!("the {part} of {name}")));
    }
    // The directory may contain files of other programs.
    for generation in all {
        remove(&generation.dir(pin_dir), &mut removed)?;
    }
    if pin_dir.exists() && children(pin_dir)?.is_empty() {
        fs::remove_dir(pin_dir).map_err(DatapathError::of_file("remove", pin_dir))?;
        removed.push(format!("{}", pin_dir.display()));
    }
    Ok(removed)
}

/// Returns the lines that [`cleanup`] would return now. Changes nothing, and also works while an
/// agent runs.
pub fn planned(pin_dir: &Path) -> Result<Vec<String>, DatapathError> {
    check_bpffs(pin_dir)?;
    let (mut found, mut marks) = (Vec::new(), Vec::new());
    let all = generations(pin_dir).map_err(DatapathError::of_file("read", pin_dir))?;
    let links: Vec<PathBuf> = all.iter().map(|one| links_of(&one.dir(pin_dir))).collect();
    for (index, name) in interfaces() {
        let (parts, with) = filters_to_detach(&links, index);
        marks.extend(with);
        found.extend(parts.iter().map(|part| format!("the {part} of {name}")));
    }
    let mut left = children(pin_dir)?.len();
    for generation in all {
        list(&generation.dir(pin_dir), &marks, &mut found)?;
        left -= 1;
    }
    if pin_dir.exists() && left == 0 {
        found.push(format!("{}", pin_dir.display()));
    }
    Ok(found)
}

/// Adds a line of text to `found` for each pin below `path`. Leaves out `marks`, the files that say
/// that a qdisc is ours: they are removed together with their qdiscs.
fn list(path: &Path, marks: &[PathBuf], found: &mut Vec<String>) -> Result<(), DatapathError> {
    if path.is_dir() {
        for child in children(path)? {
            list(&child, marks, found)?;
        }
    } else if !marks.iter().any(|mark| mark == path) {
        found.push(format!("the pin {}", path.display()));
    }
    Ok(())
}

fn check_bpffs(pin_dir: &Path) -> Result<(), DatapathError> {
    if pin_dir.exists() && !is_bpffs(pin_dir).unwrap_or(false) {
        return Err(DatapathError::PinDirectory {
            path: pin_dir.into(),
            reason:
                "it is not on a BPF file system, so nothing in it is portolan's; check --pin-dir"
                    .into(),
            source: None,
        });
    }
    Ok(())
}

/// Removes a pin directory and all maps in it. Their programs must not be attached to any interface
/// or cgroup.
pub fn remove_unattached(pin_dir: &Path) -> Result<(), DatapathError> {
    for generation in generations(pin_dir).map_err(DatapathError::of_file("read", pin_dir))? {
        remove(&generation.dir(pin_dir), &mut Vec::new())?;
    }
    fs::remove_dir(pin_dir).map_err(DatapathError::of_file("remove", pin_dir))
}

/// Returns the lines of text that [`remove_rules`] would return now. Changes nothing.
pub fn planned_rules() -> Vec<String> {
    let chains = forward_chains().unwrap_or_default().into_iter();
    let counted = chains.map(|chain| (chain.own_rules().map_or(0, |rules| rules.len()), chain));
    let counted = counted.filter(|(count, _)| *count > 0);
    counted
        .map(|(count, chain)| format!("{count} rules in the nftables chain {chain}"))
        .chain(has_translations().is_ok_and(|is| is).then(|| TABLE.into()))
        .collect()
}

/// What keeps translating connections of another proxy.
const TABLE: &str = "the nftables table inet portolan";

/// Removes the nftables rules that the setting `acceptForward` has added, and the table that keeps
/// translating connections of another proxy. Returns a line of text for each chain or table. If the
/// kernel does not list its chains, nothing is removed.
pub fn remove_rules() -> Vec<String> {
    let mut removed = Vec::new();
    for chain in forward_chains().unwrap_or_default() {
        let rules = chain.own_rules().unwrap_or_default();
        if !rules.is_empty() && chain.remove(&rules).is_ok() {
            removed.push(format!(
                "{} rules in the nftables chain {chain}",
                rules.len()
            ));
        }
    }
    removed.extend(end_translations().is_ok_and(|is| is).then(|| TABLE.into()));
    removed
}

fn children(path: &Path) -> Result<Vec<PathBuf>, DatapathError> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(DatapathError::of_file("read", path))?,
    };
    let mut children = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(DatapathError::of_file("read", path))?;
    // Links are removed first, so that no program runs with half of its maps removed.
    children.sort_by_key(|path| (!path.ends_with("links"), path.clone()));
    Ok(children)
}

fn remove(path: &Path, removed: &mut Vec<String>) -> Result<(), DatapathError> {
    if path.is_dir() {
        for child in children(path)? {
            remove(&child, removed)?;
        }
        fs::remove_dir(path).map_err(DatapathError::of_file("remove", path))?;
    } else {
        // Without this, a process that has the link open would keep it attached.
        _ = get_pinned(path, false).and_then(|link| detach(link.as_fd()));
        fs::remove_file(path).map_err(DatapathError::of_file("remove", path))?;
        removed.push(format!("the pin {}", path.display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleanup_refuses_a_directory_outside_of_a_bpf_file_system() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("v1");
        fs::write(&file, "somebody else's").expect("a file");
        let error = cleanup(directory.path(), true)
            .expect_err("refused")
            .to_string();
        assert!(
            error.contains("not on a BPF file system") && error.contains("--pin-dir"),
            "{error}"
        );
        assert!(file.exists());
    }
}
