// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds a Debian package (.deb) of the agent, for nodes on which systemd starts it.

use std::collections::BTreeSet;

use anyhow::Result;

use super::pack::{Parts, archive, gzip};
use crate::arch::Arch;

/// The script after the installation. It does not start the systemd unit: somebody must write a
/// kubeconfig and enable the unit first.
const AFTER: &str = "#!/bin/sh
set -e
if [ \"$1\" = configure ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    # After an upgrade. The programs in the kernel serve meanwhile.
    systemctl try-restart portolan.service
fi
";

/// The script before the removal. It does not remove the programs from the kernel: `portolan
/// cleanup` would do that, if called before the removal.
const BEFORE: &str = "#!/bin/sh
set -e
if [ \"$1\" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now portolan.service
fi
";

/// Builds the package for an architecture. dpkg's format is an ar archive of three members: the
/// format's version, the control files and the installed files.
pub(super) fn package(arch: Arch, binary: &[u8], parts: &Parts) -> Result<Vec<u8>> {
    let files = files(binary, parts)?;
    let size: usize = files.iter().map(|(_, _, content)| content.len()).sum();
    let control = format!(
        "Package: portolan
Version: {}
Architecture: {}
Maintainer: {}
Installed-Size: {}
Section: net
Priority: optional
Description: service proxy for Kubernetes in eBPF
 portolan takes the place of kube-proxy on a node. It needs Linux 6.1 or
 newer and cgroup v2.
",
        parts.version,
        arch.name(),
        parts.maintainer,
        size.div_ceil(1024),
    );
    let control = archive(&[
        ("control", 0o644, control.as_str()),
        ("conffiles", 0o644, "/etc/portolan/config.conf\n"),
        ("postinst", 0o755, AFTER),
        ("prerm", 0o755, BEFORE),
    ])?;
    let mut package = b"!<arch>\n".to_vec();
    for (name, content) in [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", control),
        ("data.tar.gz", archive(&with_folders(files))?),
    ] {
        let (time, owner, group, mode) = (parts.commit.time, 0, 0, "100644");
        let length = content.len();
        let header = format!("{name:<16}{time:<12}{owner:<6}{group:<6}{mode:<8}{length:<10}`\n");
        package.extend(header.as_bytes());
        package.extend(content);
        // Members of an ar archive begin at even positions.
        if length % 2 == 1 {
            package.push(b'\n');
        }
    }
    Ok(package)
}

/// Returns the installed files (path, mode, content) at the paths that Debian requires.
fn files(binary: &[u8], parts: &Parts) -> Result<Vec<(String, u32, Vec<u8>)>> {
    let mut files = vec![("usr/bin/portolan".to_owned(), 0o755, binary.to_vec())];
    let mut add =
        |path: &str, content: &[u8]| files.push((path.to_owned(), 0o644, content.to_vec()));
    let unit = parts.project("deploy/systemd/portolan.service")?;
    add("usr/lib/systemd/system/portolan.service", unit);
    add(
        "etc/portolan/config.conf",
        parts.project("deploy/systemd/config.conf")?,
    );
    let changelog = gzip(parts.project("CHANGELOG.md")?)?;
    add("usr/share/doc/portolan/changelog.gz", &changelog);
    add("usr/share/doc/portolan/copyright", &copyright(parts)?);
    for (name, content) in &parts.pages {
        if name.ends_with(".1") {
            add(&format!("usr/share/man/man1/{name}.gz"), &gzip(content)?);
        } else if name.ends_with(".bash") {
            add("usr/share/bash-completion/completions/portolan", content);
        } else if name.ends_with(".fish") {
            add(
                &format!("usr/share/fish/vendor_completions.d/{name}"),
                content,
            );
        } else {
            add(&format!("usr/share/zsh/vendor-completions/{name}"), content);
        }
    }
    Ok(files)
}

/// Adds all parent folders before the files, because dpkg creates only folders that are listed.
fn with_folders(files: Vec<(String, u32, Vec<u8>)>) -> Vec<(String, u32, Vec<u8>)> {
    let mut folders = BTreeSet::new();
    for (name, ..) in &files {
        folders.extend(
            name.match_indices('/')
                .map(|(at, _)| name[..=at].to_owned()),
        );
    }
    let folders = folders.into_iter().map(|name| (name, 0o755, Vec::new()));
    folders.chain(files).collect()
}

/// Returns the copyright file with all licences; that of the kernel programs in the binary differs.
fn copyright(parts: &Parts) -> Result<Vec<u8>> {
    let mut text = b"portolan is licensed under Apache-2.0 OR MIT; the kernel programs in it under these or GPL-2.0-only.\n".to_vec();
    for name in ["LICENSE-APACHE", "LICENSE-MIT", "LICENSE-GPL2"] {
        text.extend(format!("\n{name}\n\n").as_bytes());
        text.extend(parts.project(name)?);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use flate2::read::GzDecoder;

    use super::*;
    use crate::{cargo, fs, oci::tests::unpacked, release::trial::parts};

    /// Returns the members of an ar archive.
    fn members(mut archive: &[u8]) -> Vec<(String, Vec<u8>)> {
        archive = archive.strip_prefix(b"!<arch>\n").expect("an ar archive");
        let mut members = Vec::new();
        while !archive.is_empty() {
            let (header, rest) = archive.split_at(60);
            let header = std::str::from_utf8(header).expect("ASCII");
            assert!(header.ends_with("`\n"), "{header:?}");
            let length: usize = header[48..58].trim().parse().expect("a length");
            members.push((header[..16].trim().to_owned(), rest[..length].to_vec()));
            archive = &rest[length + length % 2..];
        }
        members
    }

    #[test]
    fn the_package_has_binary_unit_pages_and_completions_where_debian_wants_them() {
        let package = package(Arch::Arm64, b"binary", &parts().expect("parts")).expect("a package");
        let members = members(&package);
        let names: Vec<_> = members.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["debian-binary", "control.tar.gz", "data.tar.gz"]);
        let unpacked = |member: usize| unpacked(GzDecoder::new(members[member].1.as_slice()));
        let control = unpacked(1);
        let fields = String::from_utf8(control["control"].1.clone()).expect("text");
        for line in ["Package: portolan", "Version: 1.2.3", "Architecture: arm64"] {
            assert!(fields.lines().any(|found| found == line), "{fields}");
        }
        let data = unpacked(2);
        assert_eq!(data["usr/bin/portolan"], (0o755, b"binary".to_vec()));
        for name in [
            "usr/lib/systemd/system/portolan.service",
            "etc/portolan/config.conf",
            "usr/share/man/man1/portolan-run.1.gz",
            "usr/share/bash-completion/completions/portolan",
            "usr/share/zsh/vendor-completions/_portolan",
        ] {
            assert_eq!(data.get(name).map(|(mode, _)| *mode), Some(0o644), "{name}");
        }
        for folder in ["etc/", "etc/portolan/", "usr/share/man/man1/"] {
            let mode = data.get(folder).map(|(mode, _)| *mode);
            assert_eq!(mode, Some(0o755), "{folder}");
        }
        // An administrator's settings survive an upgrade.
        let kept = String::from_utf8(control["conffiles"].1.clone()).expect("text");
        for name in kept.lines() {
            assert!(data.contains_key(name.trim_start_matches('/')), "{name}");
        }
    }

    #[test]
    fn the_package_scripts_are_valid_shell() {
        for script in [AFTER, BEFORE] {
            let checked = Command::new("sh").args(["-n", "-c", script]).status();
            assert!(checked.expect("a shell").success(), "{script}");
        }
    }

    #[test]
    fn the_unit_has_the_capabilities_of_the_daemon_set() {
        let read = |name: &str| fs::read_to_string(cargo::root().join(name)).expect("a file");
        let find = |text: &str, start: &str| -> Vec<String> {
            let mut lines = text.lines().map(str::trim);
            let line = lines.find_map(|line| line.strip_prefix(start));
            let words = line.expect("the line").trim_end_matches(']');
            let words = words.split([' ', ',']).filter(|word| !word.is_empty());
            words
                .map(|word| word.trim_start_matches("CAP_").to_owned())
                .collect()
        };
        let unit = read("deploy/systemd/portolan.service");
        let unit = find(&unit, "CapabilityBoundingSet=");
        assert_eq!(unit, find(&read("deploy/base/daemonset.yaml"), "add: ["));
    }
}
