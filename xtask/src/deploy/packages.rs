// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests a release's packages with the programs that read them (dpkg, helm). Small placeholder
//! files stand for the binaries.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Write},
    net::{Ipv4Addr, TcpListener},
    process::Command,
    thread,
};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::helm::{ADDRESS, Helm};
use crate::{arch::Arch, command, fs, release::trial, setup};

/// Tests that dpkg unpacks the .deb package into a separate root folder, and lists it.
pub(super) fn debian() -> Result<()> {
    setup::tools(&[
        ("dpkg", "dpkg"),
        ("dpkg-deb", "dpkg"),
        ("sha256sum", "coreutils"),
    ])?;
    let place = TempDir::with_prefix("portolan-packages-").context("make a folder")?;
    let at = |name: &str| place.path().join(name);
    for (name, content) in trial::files()? {
        fs::write(at(&name), content)?;
    }
    let run = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.current_dir(place.path()).args(arguments);
        command::output(&mut command, &format!("{program} {}", arguments.join(" ")))
    };
    run("sha256sum", &["--check", "--strict", "SHA256SUMS"])?;
    let package = format!("portolan_1.2.3_{}.deb", Arch::OWN.name());
    fs::create_dir_all(at("root/var/lib/dpkg/updates"))?;
    fs::create_dir_all(at("root/var/lib/dpkg/info"))?;
    fs::write(at("root/var/lib/dpkg/status"), "")?;
    let root = format!("--root={}", at("root").display());
    run("dpkg", &[&root, "--force-not-root", "--unpack", &package])?;
    let listed = run("dpkg", &[&root, "--listfiles", "portolan"])?;
    for name in [
        "/usr/bin/portolan",
        "/usr/lib/systemd/system/portolan.service",
    ] {
        let is_listed = listed.lines().any(|line| line == name);
        ensure!(is_listed, "not installed: {name}: {listed}");
        ensure!(at(&format!("root{name}")).is_file(), "not there: {name}");
    }
    let version = run("dpkg-deb", &["--field", &package, "Version"])?;
    ensure!(version.trim() == "1.2.3", "the version is {version}");
    Ok(())
}

/// Tests that helm renders the packed chart as it renders the chart's folder, also from a web
/// server that has the release's files.
pub(super) fn chart(helm: &Helm) -> Result<()> {
    let place = TempDir::with_prefix("portolan-chart-").context("make a folder")?;
    let file = place.path().join("portolan.tgz");
    let files = trial::files()?;
    fs::write(&file, &files["portolan-1.2.3.tgz"])?;
    let packed = helm.template_of(&file, &[ADDRESS])?;
    let is_same = packed == helm.template(&[ADDRESS])?;
    ensure!(is_same, "the packed chart gives other objects");
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("start a web server")?;
    let address = server.local_addr().context("the web server's address")?;
    // It ends with this process.
    thread::spawn(move || serve(&server, &files));
    let pulled = helm.template_from(&format!("http://{address}"), &[ADDRESS])?;
    ensure!(
        pulled == packed,
        "the chart of index.yaml gives other objects"
    );
    Ok(())
}

/// Answers requests for these files.
fn serve(server: &TcpListener, files: &BTreeMap<String, Vec<u8>>) -> io::Result<()> {
    for stream in server.incoming() {
        let mut stream = stream?;
        let mut request = String::new();
        BufReader::new(&stream).read_line(&mut request)?;
        let path = request.split(' ').nth(1).unwrap_or_default();
        let file = files.get(path.trim_start_matches('/'));
        let (status, content) = match file {
            Some(content) => ("200 OK", content.as_slice()),
            None => ("404 Not Found", b"".as_slice()),
        };
        let length = content.len();
        write!(
            stream,
            "HTTP/1.0 {status}\r\nContent-Length: {length}\r\n\r\n"
        )?;
        stream.write_all(content)?;
    }
    Ok(())
}
