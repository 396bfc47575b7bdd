// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What every command may use: where the maps are, formats of reports, exit statuses, a runtime,
//! short texts, capabilities. Uses no other file of this package.

use std::{fmt::Display, fs, path::PathBuf, process::ExitCode, str::FromStr};

use anyhow::Context;
use config::telemetry;
use datapath::DEFAULT_PIN_DIR;
use tokio::runtime::Runtime;

/// Where the maps are.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Pins {
    /// Directory on a BPF file system in which the agent pins its maps.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_PIN_DIR)]
    pub pin_dir: PathBuf,
}

/// The format of a report.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Output {
    #[default]
    Table,
    Json,
    Yaml,
}

/// Arguments that contradict each other, or that name an object that does not exist. The exit
/// status is 2, as for arguments that clap refuses.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BadInput(pub(crate) String);

/// The exit status for [`BadInput`].
pub(crate) const BAD_INPUT: u8 = 2;

/// Makes the runtime of a command that has only one thread.
pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().context("start the runtime")
}

/// Returns the exit status of a command whose statuses 1 and 3 are answers: 2 if it fails.
pub(crate) fn exit_status(done: anyhow::Result<u8>) -> ExitCode {
    let status = done.unwrap_or_else(|error| {
        telemetry::fail(&error);
        BAD_INPUT
    });
    status.into()
}

/// Returns the first four names as text, and how many more there are; None without names.
pub(crate) fn some_if_any<T: Display>(
    names: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
) -> Option<String> {
    const SHOWN: usize = 4;
    let names = names.into_iter();
    let more = names.len().saturating_sub(SHOWN);
    let shown: Vec<_> = names.take(SHOWN).map(|name| name.to_string()).collect();
    let text = match more {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    };
    Some(text).filter(|text| !text.is_empty())
}

/// Returns the name of a service port: that of the service, with the port's own name if it has one.
pub(crate) fn port_label(service: &str, port_name: &str) -> String {
    match port_name {
        "" => service.to_owned(),
        name => format!("{service}:{name}"),
    }
}

/// Returns the name of this network namespace's interface with this index, also if it has gone.
pub(crate) fn interface_name(index: u32) -> String {
    match nix::net::if_::if_indextoname(index) {
        Ok(name) => name.to_string_lossy().into_owned(),
        Err(_) => format!("interface {index}"),
    }
}

/// Reads a file of /proc or /sys that has one value; None if it does not or is not there.
pub(crate) fn read_value<T: FromStr>(file: impl AsRef<std::path::Path>) -> Option<T> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Bits of capabilities, from the kernel's `linux/capability.h`.
pub(crate) const SYS_PTRACE: u32 = 19;
pub(crate) const SYS_ADMIN: u32 = 21;
pub(crate) const SYSLOG: u32 = 34;

/// Says what a command, as an operator enters it, lacks without this capability; None with it.
pub(crate) fn lacks(capability: u32, command: &str) -> Option<String> {
    let name = match capability {
        SYS_PTRACE => "CAP_SYS_PTRACE, and the host's processes in sight",
        SYSLOG => "CAP_SYSLOG",
        _ => "CAP_SYS_ADMIN",
    };
    (!datapath::has_capability(capability)).then(|| {
        format!("that needs {name}: `kubectl portolan --debug {command}`, or root on the node")
    })
}
