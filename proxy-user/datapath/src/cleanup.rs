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
        pins::{CONNTRACK, SERVERS, generations, is_bpffs, links_of},
    },
    programs::{detach_filters, interfaces, mark_of},
};

/// Removes our filters, qdiscs, links, maps and directories, and returns a line of text for each.
/// Fails while an agent has locked `pin_dir`, unless `force` is set.
pub fn cleanup(pin_dir: &Path, force: bool) -> Result<Vec<String>, DatapathError> {
    check_bpffs(pin_dir)?;
    let lock = pin_dir.exists().then(|| Lock::take(pin_dir)).transpose();
    let _lock = if force { lock.ok().flatten() } else { lock? };
    clean(pin_dir, false)
}

/// Returns the lines that [`cleanup`] would return now. Changes nothing, and also works while an
/// agent runs.
pub fn planned(pin_dir: &Path) -> Result<Vec<String>, DatapathError> {
    check_bpffs(pin_dir)?;
    clean(pin_dir, true)
}

/// Returns a line for everything that it removes, or, if `dry`, would remove.
fn clean(pin_dir: &Path, dry: bool) -> Result<Vec<String>, DatapathError> {
    let mut removed = Vec::new();
    let all = generations(pin_dir).map_err(DatapathError::of_file("read", pin_dir))?;
    let links: Vec<PathBuf> = all.iter().map(|one| links_of(&one.dir(pin_dir))).collect();
    let interfaces = interfaces();
    for (index, name) in &interfaces {
        let parts = detach_filters(&links, *index, dry).map_err(|source| {
            let attempt = "remove the clsact qdisc of";
            DatapathError::of_interface(attempt, name, *index, source)
        })?;
        removed.extend(parts.iter().map(|part| format!("the {part} of {name}")));
    }
    // The files that say that a qdisc is ours are removed together with it.
    let marks = interfaces.iter().map(|(index, _)| mark_of(*index));
    let marks: Vec<_> = if dry { marks.collect() } else { Vec::new() };
    // The directory may contain files of other programs.
    let mut ours: Vec<_> = all.iter().map(|one| one.dir(pin_dir)).collect();
    let files = [SERVERS, CONNTRACK].map(|name| pin_dir.join(name));
    ours.extend(files.into_iter().filter(|file| file.is_symlink()));
    for path in &ours {
        remove(path, &marks, dry, &mut removed)?;
    }
    let left = if dry { ours.len() } else { 0 };
    if pin_dir.exists() && children(pin_dir)?.len() == left {
        if !dry {
            fs::remove_dir(pin_dir).map_err(DatapathError::of_file("remove", pin_dir))?;
        }
        removed.push(pin_dir.display().to_string());
    }
    Ok(removed)
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
        remove(&generation.dir(pin_dir), &[], false, &mut Vec::new())?;
    }
    fs::remove_dir(pin_dir).map_err(DatapathError::of_file("remove", pin_dir))
}

/// Removes the nftables rules that the setting `acceptForward` has added, and the table that keeps
/// translating connections of another proxy; if `dry`, nothing. Returns a line of text for each
/// chain or table. If the kernel does not list its chains, nothing is removed.
pub fn rules(dry: bool) -> Vec<String> {
    let mut found = Vec::new();
    for chain in forward_chains().unwrap_or_default() {
        let rules = chain.own_rules().unwrap_or_default();
        if !rules.is_empty() && (dry || chain.remove(&rules).is_ok()) {
            let count = rules.len();
            found.push(format!("{count} rules in the nftables chain {chain}"));
        }
    }
    let table = if dry {
        has_translations()
    } else {
        end_translations()
    };
    let table = table.is_ok_and(|is| is);
    found.extend(table.then(|| "the nftables table inet portolan".into()));
    found
}

fn children(path: &Path) -> Result<Vec<PathBuf>, DatapathError> {
    let read = fs::read_dir(path).and_then(|all| all.map(|one| Ok(one?.path())).collect());
    let mut children: Vec<PathBuf> = match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        read => read.map_err(DatapathError::of_file("read", path))?,
    };
    // Links are removed first, so that no program runs with half of its maps removed.
    children.sort_by_key(|path| (!path.ends_with("links"), path.clone()));
    Ok(children)
}

/// Removes a pin or a directory of pins, except `marks`; if `dry`, only says so.
fn remove(
    path: &Path,
    marks: &[String],
    dry: bool,
    removed: &mut Vec<String>,
) -> Result<(), DatapathError> {
    let failed = DatapathError::of_file("remove", path);
    if path.is_dir() {
        for child in children(path)? {
            remove(&child, marks, dry, removed)?;
        }
        return if dry {
            Ok(())
        } else {
            fs::remove_dir(path).map_err(failed)
        };
    }
    if marks.iter().any(|mark| path.ends_with(mark)) {
        return Ok(());
    }
    if !dry {
        // Without this, a process that has the link open would keep it attached.
        _ = get_pinned(path, false).and_then(|link| detach(link.as_fd()));
        fs::remove_file(path).map_err(failed)?;
    }
    removed.push(format!("the pin {}", path.display()));
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
