// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The names of the programs in the object file. Used by `load` and `hooks`.

/// The tc programs, and the programs `expire_*`, which the agent runs itself.
pub const PROGRAMS: [&str; 7] = [
    "ingress",
    "egress",
    "ingress_l3",
    "egress_l3",
    "egress_loopback",
    "expire_v4",
    "expire_v6",
];

/// The program for the XDP hook of uplinks.
pub(super) const UPLINK: &str = "uplink";

/// The programs without which the datapath cannot work. If the kernel refuses another one, the rest
/// works.
pub(super) const NEEDED: [&str; 2] = ["ingress", "egress"];

/// A socket hook: the name of our program for it, and the number by which the kernel knows the
/// hook.
#[derive(Clone, Copy)]
pub(super) struct Hook {
    pub(super) program: &'static str,
    /// The hooks that must be attached before this one, because they undo what it changes.
    pub(super) needs: &'static [&'static str],
    /// The hook's number in the kernel's `enum bpf_attach_type`.
    pub(super) attach_type: u32,
}

const fn hook(program: &'static str, attach_type: u32, needs: &'static [&'static str]) -> Hook {
    Hook {
        program,
        needs,
        attach_type,
    }
}

/// The socket hooks in the order of attaching: hooks that restore addresses come before hooks that
/// replace them, and hooks that remove entries before hooks that create them.
pub(super) const HOOKS: [Hook; 11] = [
    hook("release", 34, &[]),
    hook("receive_v4", 19, &[]),
    hook("receive_v6", 20, &[]),
    hook("peer_name_v4", 29, &[]),
    hook("peer_name_v6", 30, &[]),
    hook("bind_v4", 8, &[]),
    hook("bind_v6", 9, &[]),
    // An IPv6 socket sends to IPv4-mapped addresses through `send_v4`, and receives through
    // `receive_v6`.
    hook("send_v4", 14, &["release", "receive_v4", "receive_v6"]),
    hook("send_v6", 15, &["release", "receive_v6"]),
    hook("connect_v4", 10, &["release", "receive_v4", "peer_name_v4"]),
    hook("connect_v6", 11, &["release", "receive_v6", "peer_name_v6"]),
];
