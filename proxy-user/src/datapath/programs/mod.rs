// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel programs. In: options and the pinned maps; out: loaded programs, attached to interfaces and to a cgroup, and
//! the lines that they log. Called by `Datapath` and `sweep`.

mod attach;
mod hooks;
mod load;
mod log;
mod probe;

pub(crate) use attach::{Attachments, detach_filter};
pub(crate) use hooks::attach as attach_hooks;
pub use hooks::cgroup_root;
pub use load::PROGRAMS;
pub(crate) use load::{Programs, open_maps};
pub use log::ProgramLog;
pub(crate) use probe::check;
