// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Network namespaces that exist only as long as their file descriptor is open. So nothing is left
//! behind however the process ends. Used by everything that runs on a simulated host.

use std::{
    fs::{self, File},
    io::Write,
    os::fd::AsRawFd,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CloneFlags, setns, unshare};

const OF_THIS_THREAD: &str = "/proc/thread-self/ns/net";

/// A network namespace that this process has created.
pub struct NetNs {
    name: String,
    file: File,
}

impl NetNs {
    /// Creates a network namespace with only a loopback interface, down. `name` is for messages.
    pub fn new(name: &str) -> Result<Self> {
        let back = Return::to_here()?;
        unshare(CloneFlags::CLONE_NEWNET)
            .with_context(|| format!("make network namespace {name}: run as root"))?;
        let file = File::open(OF_THIS_THREAD).with_context(|| format!("open {OF_THIS_THREAD}"))?;
        drop(back);
        Ok(Self {
            name: name.to_owned(),
            file,
        })
    }

    /// Runs `work` on this thread inside the namespace, where its sockets and processes stay.
    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        let back = Return::to_here()?;
        setns(&self.file, CloneFlags::CLONE_NEWNET)
            .with_context(|| format!("enter network namespace {}", self.name))?;
        let result = work();
        drop(back);
        Ok(result)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a path to the namespace for others while this process lives: `nsenter --net=PATH`.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Runs iproute2 commands inside the namespace, one a line, as one batch.
    pub fn ip(&self, batch: &str) -> Result<()> {
        self.feed("ip", &["-batch", "-"], batch).map(|_| ())
    }

    /// Runs a program inside the namespace with `input` as its standard input. Returns its standard
    /// output, or an error with what it wrote to standard error.
    pub fn feed(&self, program: &str, args: &[&str], input: &str) -> Result<String> {
        let attempt = || format!("{program} {} in {}", args.join(" "), self.name);
        let mut child = self
            .enter(|| {
                Command::new(program)
                    .args(args)
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
            })?
            .with_context(attempt)?;
        if let Some(mut stdin) = child.stdin.take() {
            // If the program has ended early, its standard error says why.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child.wait_with_output().with_context(attempt)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{}: {}\n{input}", attempt(), said.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Sets kernel parameters of this namespace: path below /proc/sys/net, and value.
    pub fn set(&self, parameters: &[(&str, &str)]) -> Result<()> {
        self.enter(|| {
            for (name, value) in parameters {
                let path = format!("/proc/sys/net/{name}");
                fs::write(&path, value).with_context(|| format!("write {value} to {path}"))?;
            }
            Ok::<_, anyhow::Error>(())
        })?
        .with_context(|| format!("set up {}", self.name))
    }

    /// Sets the namespace's nf_conntrack, if any, as `portolan init` does for `forwarding: auto`.
    pub fn suit_conntrack(&self) -> Result<()> {
        let loaded = self.enter(|| fs::exists(format!("/proc/sys/net/{}", CONNTRACK[0].0)))??;
        if loaded { self.set(&CONNTRACK) } else { Ok(()) }
    }
}

/// What connections past the stack need of nf_conntrack.
const CONNTRACK: [(&str, &str); 2] = [
    ("netfilter/nf_conntrack_tcp_be_liberal", "1"),
    ("netfilter/nf_conntrack_tcp_timeout_unacknowledged", "7440"),
];

/// Dropping it returns the thread to the namespace that it was in, also when a panic unwinds.
struct Return(File);

impl Return {
    fn to_here() -> Result<Self> {
        let attempt = || format!("open {OF_THIS_THREAD}");
        Ok(Self(File::open(OF_THIS_THREAD).with_context(attempt)?))
    }
}

impl Drop for Return {
    fn drop(&mut self) {
        if let Err(error) = setns(&self.0, CloneFlags::CLONE_NEWNET) {
            // Continuing would change the host's own network.
            eprintln!("leave a network namespace: {error}; ending the process");
            std::process::abort();
        }
    }
}

/// Fails with advice on what to do if this process may not create network namespaces.
pub fn check_privilege() -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "network namespaces and BPF programs need root: run this as root"
    );
    Ok(())
}
