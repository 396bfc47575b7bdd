// SPDX-License-Identifier: Apache-2.0 OR MIT
//! tc and XDP programs of other software at the node's interfaces. Each returns the same verdict
//! for every packet, or is any program that a test writes.

use std::{
    fs,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, Result};

use super::netns::NetNs;
pub use crate::bpf::CgroupHook;
use crate::bpf::{Instruction, XDP_HOOK, always, attach, load, load_with, load_xdp, pin};

/// The verdict that drops a packet: `TC_ACT_SHOT`, which tcx calls `TCX_DROP`.
pub const DROP: i32 = 2;

/// The verdict that accepts a packet and runs no later program: `TC_ACT_OK`, or `TCX_PASS`.
pub const END: i32 = 0;

/// Where a program runs among the programs of an interface's tc hook.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChainPosition {
    /// Attached by tcx, before all other programs.
    First,
    /// Attached by tcx, after all other programs.
    Last,
    /// A filter of the clsact qdisc, which the kernel runs after all tcx programs.
    Filter,
}

/// A program of other software at one hook of one interface. Dropping it removes the program.
pub enum Foreign<'a> {
    /// Attached by a link, which keeps the program attached while it is open.
    Link { _link: OwnedFd },
    Clsact {
        node: &'a NetNs,
        interface: String,
        direction: &'static str,
        pinned: PathBuf,
    },
}

impl<'a> Foreign<'a> {
    /// Attaches a tc program that returns `verdict` for every packet.
    pub fn new(
        node: &'a NetNs,
        interface: &str,
        egress: bool,
        place: ChainPosition,
        verdict: i32,
    ) -> Result<Self> {
        Self::with(node, interface, egress, place, &always(verdict))
    }
    /// Attaches any tc program.
    pub fn with(
        node: &'a NetNs,
        interface: &str,
        egress: bool,
        place: ChainPosition,
        program: &[Instruction],
    ) -> Result<Self> {
        const TCX_INGRESS: u32 = 46;
        const BEFORE: u32 = 1 << 3;
        let program = load(program)?;
        if place == ChainPosition::Filter {
            return Self::filter(node, interface, egress, &program);
        }
        let hook = TCX_INGRESS + u32::from(egress);
        let is_first = place == ChainPosition::First;
        let flags = if is_first { BEFORE } else { 0 };
        Self::link(node, interface, &program, hook, flags)
    }
    /// Attaches an XDP program that returns `verdict` for every frame: in the interface's driver,
    /// or, if `generic`, in the network stack.
    pub fn at_xdp(node: &NetNs, interface: &str, verdict: i32, generic: bool) -> Result<Self> {
        const SKB_MODE: u32 = 1 << 1;
        const DRV_MODE: u32 = 1 << 2;
        let mode = if generic { SKB_MODE } else { DRV_MODE };
        let program = load_xdp(&always(verdict))?;
        Self::link(node, interface, &program, XDP_HOOK, mode)
    }
    fn link(node: &NetNs, interface: &str, code: &OwnedFd, hook: u32, flags: u32) -> Result<Self> {
        let _link = node.enter(|| {
            let index = nix::net::if_::if_nametoindex(interface)?;
            attach(code, index, hook, flags)
        })??;
        Ok(Self::Link { _link })
    }
    /// Attaches a program to a cgroup that refuses everything.
    pub fn refusing(cgroup: &Path, hook: CgroupHook) -> Result<Self> {
        let [kind, number] = hook.numbers();
        let program = load_with(kind, number, &always(0))?;
        let folder = fs::File::open(cgroup)?;
        let _link = attach(&program, folder.as_raw_fd() as u32, number, 0)?;
        Ok(Self::Link { _link })
    }
    fn filter(node: &'a NetNs, interface: &str, egress: bool, program: &OwnedFd) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let direction = if egress { "egress" } else { "ingress" };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let pinned = PathBuf::from(format!(
            "/sys/fs/bpf/foreign-{}-{number}",
            std::process::id()
        ));
        pin(program.as_fd(), &pinned)?;
        // Fails from the second filter on, because the interface has the qdisc already.
        _ = node.feed("tc", &["qdisc", "add", "dev", interface, "clsact"], "");
        let path = pinned.to_str().context("a plain path")?;
        let words = [
            "filter", "add", "dev", interface, direction, "prio", "50000", "bpf", "da", "pinned",
            path,
        ];
        node.feed("tc", &words, "")?;
        Ok(Self::Clsact {
            node,
            interface: interface.to_owned(),
            direction,
            pinned,
        })
    }
}

impl Drop for Foreign<'_> {
    fn drop(&mut self) {
        if let Self::Clsact {
            node,
            interface,
            direction,
            pinned,
        } = self
        {
            let words = [
                "filter", "delete", "dev", interface, direction, "prio", "50000",
            ];
            _ = node.feed("tc", &words, "");
            _ = fs::remove_file(pinned);
        }
    }
}
