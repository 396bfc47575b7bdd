// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The programs of the object, by name. Used by `load` and `hooks`.

/// The programs that see packets, and those that the agent runs.
pub const PROGRAMS: [&str; 7] = [
    "ingress",
    "egress",
    "ingress_l3",
    "egress_l3",
    "egress_loopback",
    "expire_v4",
    "expire_v6",
];

/// The program at uplinks' XDP hook.
pub(super) const UPLINK: &str = "uplink";

/// The programs without which nothing is served. Without another one the rest works.
pub(super) const NEEDED: [&str; 2] = ["ingress", "egress"];

/// A socket hook: a program and its attach type.
#[derive(Clone, Copy)]
pub(super) struct Hook {
    pub(super) program: &'static str,
    /// The hooks without which this one must not be attached: they undo what it does.
    pub(super) needs: &'static [&'static str],
    /// `enum bpf_attach_type`.
    pub(super) attach_type: u32,
}

const fn hook(program: &'static str, attach_type: u32, needs: &'static [&'static str]) -> Hook {
    Hook {
        program,
        needs,
        attach_type,
    }
}

/// In the order of attaching: hooks that restore addresses before those that replace them, and
/// hooks that remove entries before those that make them.
pub(super) const HOOKS: [Hook; 11] = [
    hook("release", 34, &[]),
    hook("receive_v4", 19, &[]),
    hook("receive_v6", 20, &[]),
    hook("peer_name_v4", 29, &[]),
    hook("peer_name_v6", 30, &[]),
    hook("bind_v4", 8, &[]),
    hook("bind_v6", 9, &[]),
    // An IPv6 socket sends to IPv4-mapped addresses by it, and receives by the other.
    hook("send_v4", 14, &["release", "receive_v4", "receive_v6"]),
    hook("send_v6", 15, &["release", "receive_v6"]),
    hook("connect_v4", 10, &["release", "receive_v4", "peer_name_v4"]),
    hook("connect_v6", 11, &["release", "receive_v6", "peer_name_v6"]),
];
