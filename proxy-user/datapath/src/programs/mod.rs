// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loads and attaches the kernel programs. In: options and the pinned maps. Out: loaded programs,
//! attached to interfaces and to a cgroup, and their log lines. Called by `Datapath`; `sweep` runs
//! the programs that remove idle flows.

mod check;
mod clsact;
mod foreign;
mod foresee;
mod hooks;
mod load;
mod log;
mod pin;
mod present;
mod probe;
mod refusal;
mod tc;
mod xdp;

pub(super) use check::Damage;
pub(super) use clsact::mark_of;
pub(super) use foreign::Hooks;
pub use foreign::{ChainPosition, ForeignProgram, HookState};
pub(super) use foresee::linked_programs;
pub use foresee::{Attached, ForeignHook, Foreseen, foresee, missing_socket_hooks};
pub(super) use hooks::{HookLinks, cgroup2_mounts};
pub use hooks::{cgroup_root, is_below_root};
pub use load::{Load, OBJECT, PROGRAMS};
pub(super) use load::{Programs, fd};
pub use log::ProgramLog;
pub use present::{Chain, HOOK_COUNT, PinnedLink, Present, chains, pinned_links, present};
pub(super) use probe::check;
pub use probe::{counts_at_peers, has_capability, has_tcx, is_realtime, running_kernel};
pub use refusal::Refusal as RefusedProgram;
pub(super) use tc::{TcAttachments, detach_filters, detach_filters_of, interfaces};
pub use xdp::XdpRefusal;
pub(super) use xdp::{XdpAttachments, is_xdp_pin};
