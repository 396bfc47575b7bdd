// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests whether this process may use BPF, and asks what the kernel is and has. Called by
//! `Datapath::open`, the agent and the command line.

use std::{fs, io};

use linux::{MapKind, create_map, tcx};

use crate::error::DatapathError;

/// True if the kernel counts a packet that a program redirects to a pod at the pod's own interface.
/// It does so since veth devices have their own counters (Linux 6.7, and some versions before it):
/// then its type information contains the name `NETDEV_PCPU_STAT_TSTATS`.
pub fn counts_at_peers() -> bool {
    let types = fs::read("/sys/kernel/btf/vmlinux").unwrap_or_default();
    let mut names = types.split(|byte| *byte == 0);
    names.any(|name| name == b"NETDEV_PCPU_STAT_TSTATS")
}

/// The capabilities that the process needs: name, bit, and the bit of another capability that
/// includes it, if there is one.
const CAPABILITIES: [(&str, u32, Option<u32>); 3] = [
    ("CAP_BPF", 39, Some(SYS_ADMIN)),
    ("CAP_NET_ADMIN", 12, None),
    ("CAP_PERFMON", 38, Some(SYS_ADMIN)),
];
const SYS_ADMIN: u32 = 21;

/// Returns the names of the needed capabilities that a process with these effective capabilities
/// lacks.
fn missing_capabilities(effective: u64) -> Vec<&'static str> {
    let has = |bit: u32| effective >> bit & 1 == 1;
    let missing = CAPABILITIES
        .iter()
        .filter(|(_, bit, instead)| !has(*bit) && !instead.is_some_and(has));
    missing.map(|(name, ..)| *name).collect()
}

/// True if this process has the capability with this bit, effectively.
pub fn has_capability(bit: u32) -> bool {
    effective_capabilities() >> bit & 1 == 1
}

/// Returns this process's effective capabilities, one per bit; all of them if the kernel does not
/// show them.
fn effective_capabilities() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .unwrap_or(u64::MAX)
}

/// Fails if capabilities are missing, which the error names, or if the kernel makes no map.
pub(crate) fn check() -> Result<(), DatapathError> {
    let missing = missing_capabilities(effective_capabilities());
    if !missing.is_empty() {
        return Err(DatapathError::MissingCapabilities {
            missing: missing.join(" and "),
        });
    }
    let map = create_map(MapKind::Array, 4, 4, 1, 0, None);
    map.map(drop).map_err(explain)
}

fn explain(error: io::Error) -> DatapathError {
    if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) {
        return DatapathError::NoPrivilege {
            attempt: "create a map",
            source: error,
        };
    }
    DatapathError::NoMap {
        running: running_kernel(),
        source: error,
    }
}

/// Returns the version of the running kernel, as `uname -r` shows it.
pub fn running_kernel() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease")
        .map(|release| release.trim().to_owned())
        .unwrap_or_else(|_| "of unknown version".into())
}

/// True if the kernel is preemptible everywhere (PREEMPT_RT). On such a kernel, from Linux 6.18 on,
/// tc programs interrupt each other on a CPU. Our programs are not made for that: those on one CPU
/// share memory.
pub fn is_realtime() -> bool {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    says_realtime(
        &read("/sys/kernel/realtime"),
        &read("/proc/sys/kernel/version"),
    )
}

fn says_realtime(flag: &str, version: &str) -> bool {
    let mut words = version.split_whitespace();
    flag.trim() == "1" || words.any(|word| word.starts_with("PREEMPT_RT"))
}

/// True if the kernel has tcx links (Linux 6.6). `ifindex` is that of any interface.
pub fn has_tcx(ifindex: u32) -> bool {
    tcx(ifindex, false).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_realtime_kernel_is_known_by_its_flag_or_its_version() {
        let usual = "#1 SMP PREEMPT_DYNAMIC Debian 6.18.1-1 (2026-01-02)";
        assert!(!says_realtime("", usual) && !says_realtime("0\n", usual));
        assert!(says_realtime("1\n", ""));
        assert!(says_realtime("", "#1 SMP PREEMPT_RT Debian 6.18.1-1"));
    }

    #[test]
    fn an_error_eperm_names_the_missing_privileges() {
        let error = explain(io::Error::from_raw_os_error(libc::EPERM)).to_string();
        assert!(
            error.contains("(create a map)") && error.contains("CAP_BPF"),
            "{error}"
        );
    }

    #[test]
    fn a_missing_capability_is_named() {
        let [bpf, net_admin, perfmon] = CAPABILITIES.map(|(_, bit, _)| 1_u64 << bit);
        assert!(missing_capabilities(bpf | net_admin | perfmon).is_empty());
        assert!(missing_capabilities(1 << SYS_ADMIN | net_admin).is_empty());
        assert_eq!(missing_capabilities(bpf | perfmon), ["CAP_NET_ADMIN"]);
        assert_eq!(missing_capabilities(net_admin), ["CAP_BPF", "CAP_PERFMON"]);
    }
}
