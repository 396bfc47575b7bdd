// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The host's state for the archive: kernel, interfaces, and the kernel's parameters of packets.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::Result;
use config::Config;
use ipnet::IpNet;
use linux::interfaces::Interfaces;
use serde::Serialize;

use crate::frame::{read_value, runtime};

/// A network interface of the host.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InterfaceRow {
    name: String,
    index: u32,
    kind: String,
    mtu: Option<u32>,
    state: Option<String>,
    bridge: Option<u32>,
    addresses: Vec<IpNet>,
    /// True if the settings say that portolan's programs belong at this interface.
    attach: bool,
}

pub(super) fn interfaces(config: &Config) -> Result<Vec<InterfaceRow>> {
    let patterns = config.interface_patterns();
    let interfaces = runtime()?.block_on(Interfaces::open(patterns))?;
    let rows = interfaces.current().iter().map(|interface| {
        let link = Path::new("/sys/class/net").join(&interface.name);
        InterfaceRow {
            mtu: read_value(link.join("mtu")),
            state: read_value(link.join("operstate")),
            name: interface.name.clone(),
            index: interface.index,
            kind: format!("{:?}", interface.kind),
            bridge: interface.bridge,
            addresses: interface.addresses.clone(),
            attach: interface.attach,
        }
    });
    Ok(rows.collect())
}

/// Returns the versions of portolan, the kernel and the distribution as text.
pub(super) fn kernel() -> String {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let [kernel, release] = ["/proc/version", "/etc/os-release"].map(read);
    let version = env!("CARGO_PKG_VERSION");
    format!("portolan {version}\n{kernel}{release}")
}

/// The kernel parameters in the archive, as paths below /proc/sys; a `*` stands for every folder.
const SYSCTLS: &str = include_str!("sysctls.txt");

/// Returns a line such as `net.ipv4.ip_forward = 1` for each parameter that the kernel has.
pub(super) fn sysctls() -> String {
    let root = Path::new("/proc/sys");
    let mut lines = String::new();
    for name in SYSCTLS.lines() {
        let names = match name.split_once("/*/") {
            None => vec![name.to_owned()],
            Some((folder, last)) => {
                let folders = fs::read_dir(root.join(folder)).into_iter().flatten();
                let named = folders.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
                let named = named.map(|name| format!("{folder}/{name}/{last}"));
                BTreeSet::from_iter(named).into_iter().collect()
            }
        };
        for name in names {
            if let Some(value) = read_value::<String>(root.join(&name)) {
                lines += &format!("{} = {value}\n", name.replace('/', "."));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_kernel_and_of_every_interface_are_listed() {
        let lines = sysctls();
        for wanted in ["net.ipv4.ip_forward = ", "net.ipv4.conf.lo.rp_filter = "] {
            assert!(lines.contains(wanted), "{wanted}: {lines}");
        }
    }
}
