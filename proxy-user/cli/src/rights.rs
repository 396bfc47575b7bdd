// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a command needs that the agent's container may not do, and how to get it.

/// Bits of capabilities, from the kernel's `linux/capability.h`.
pub(crate) const SYS_PTRACE: u32 = 19;
pub(crate) const SYS_ADMIN: u32 = 21;
pub(crate) const SYSLOG: u32 = 34;

/// Says what a command lacks, unless this process has the capability. `command`: as an operator
/// would enter it.
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
