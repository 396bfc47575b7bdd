// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Foreign tc and XDP programs at the node's interfaces: each returns one verdict for every packet,
//! and may count packets.

use std::{
    fs,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, Result};

use super::netns::NetNs;
use crate::bpf::{Instruction, always, attach_tcx, attach_xdp, load, load_xdp, pin};

/// `TC_ACT_SHOT`, which tcx calls `TCX_DROP`.
pub const DROP: i32 = 2;

/// `TC_ACT_OK`, which tcx calls `TCX_PASS`: ends the chain.
pub const END: i32 = 0;

/// A position in the chain of an interface's hook.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChainPosition {
    /// By tcx, before all other programs.
    First,
    /// By tcx, after all other programs.
    Last,
    /// A filter of the clsact qdisc, which the kernel runs after all tcx programs.
    Filter,
}

impl ChainPosition {
    pub const ALL: [Self; 3] = [Self::First, Self::Last, Self::Filter];
}

/// A program at one hook of one interface; dropping it removes the program.
pub enum Foreign<'a> {
    /// The link keeps the program attached.
    Link { _link: OwnedFd },
    Clsact {
        node: &'a NetNs,
        interface: String,
        direction: &'static str,
        pinned: PathBuf,
    },
}

impl<'a> Foreign<'a> {
    /// Attaches a program that returns one verdict for every packet.
    pub fn new(
        node: &'a NetNs,
        interface: &str,
        egress: bool,
        place: ChainPosition,
        verdict: i32,
    ) -> Result<Self> {
        Self::with(node, interface, egress, place, &always(verdict))
    }
    /// Attaches any program.
    pub fn with(
        node: &'a NetNs,
        interface: &str,
        egress: bool,
        place: ChainPosition,
        program: &[Instruction],
    ) -> Result<Self> {
        let program = load(program)?;
        if place == ChainPosition::Filter {
            return Self::filter(node, interface, egress, &program);
        }
        let _link = node.enter(|| {
            let index = nix::net::if_::if_nametoindex(interface)?;
            attach_tcx(
                program.as_fd(),
                index,
                egress,
                place == ChainPosition::First,
            )
        })??;
        Ok(Self::Link { _link })
    }
    /// Attaches a program at an interface's XDP hook that passes every frame.
    pub fn at_xdp(node: &NetNs, interface: &str) -> Result<Self> {
        const XDP_PASS: i32 = 2;
        let program = load_xdp(&always(XDP_PASS))?;
        let _link = node.enter(|| {
            let index = nix::net::if_::if_nametoindex(interface)?;
            attach_xdp(program.as_fd(), index)
        })??;
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
        // Fails from the second filter on, because the qdisc exists already.
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
