// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The host's state for the archive: kernel, interfaces, and the kernel parameters that matter to
//! packets of services.

use std::{fs, path::Path};

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
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    format!(
        "portolan {}\n{}{}",
        env!("CARGO_PKG_VERSION"),
        read("/proc/version"),
        read("/etc/os-release")
    )
}

/// The kernel parameters in the archive, as paths below /proc/sys; a `*` stands for every folder.
const SYSCTLS: &[&str] = &[
    "kernel/unprivileged_bpf_disabled",
    "net/core/bpf_jit_enable",
    "net/core/bpf_jit_limit",
    "net/bridge/bridge-nf-call-iptables",
    "net/bridge/bridge-nf-call-ip6tables",
    "net/ipv4/ip_forward",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/ip_nonlocal_bind",
    "net/ipv4/tcp_tw_reuse",
    "net/ipv4/vs/conntrack",
    "net/ipv4/conf/*/rp_filter",
    "net/ipv4/conf/*/forwarding",
    "net/ipv4/conf/*/accept_local",
    "net/ipv4/conf/*/route_localnet",
    "net/ipv4/conf/*/arp_ignore",
    "net/ipv6/conf/*/forwarding",
    "net/ipv6/conf/*/disable_ipv6",
    "net/netfilter/nf_conntrack_max",
    "net/netfilter/nf_conntrack_count",
    "net/netfilter/nf_conntrack_tcp_be_liberal",
    "net/netfilter/nf_conntrack_tcp_timeout_established",
    "vm/max_map_count",
];

/// Returns a line such as `net.ipv4.ip_forward = 1` for each parameter that the kernel has.
pub(super) fn sysctls() -> String {
    let root = Path::new("/proc/sys");
    let mut lines = String::new();
    for name in SYSCTLS {
        let names = match name.split_once("/*/") {
            None => vec![(*name).to_owned()],
            Some((folder, last)) => {
                let folders = fs::read_dir(root.join(folder))
                    .into_iter()
                    .flatten()
                    .flatten();
                let named = folders.filter_map(|entry| entry.file_name().into_string().ok());
                let mut named: Vec<_> = named
                    .map(|name| format!("{folder}/{name}/{last}"))
                    .collect();
                named.sort();
                named
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
