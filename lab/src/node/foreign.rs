// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Foreign tc programs at the node's interfaces: each returns one verdict for every packet.

use std::{
    fs,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
};

use anyhow::{Context, Result};

use super::netns::NetNs;
use crate::bpf::{always, attach_tcx, load, pin};

/// `TC_ACT_SHOT`, which tcx calls `TCX_DROP`.
pub const DROP: i32 = 2;

/// A program at one hook of one interface; dropping it removes the program.
pub enum Foreign<'a> {
    /// The link keeps the program attached.
    Tcx { _link: OwnedFd },
    Clsact {
        node: &'a NetNs,
        interface: String,
        direction: &'static str,
        pinned: PathBuf,
    },
}

impl<'a> Foreign<'a> {
    /// Attaches by tcx: before all others at ingress, behind all others at egress.
    pub fn tcx(node: &NetNs, interface: &str, egress: bool, verdict: i32) -> Result<Self> {
        let program = load(&always(verdict))?;
        let _link = node.enter(|| {
            let index = nix::net::if_::if_nametoindex(interface)?;
            attach_tcx(program.as_fd(), index, egress)
        })??;
        Ok(Self::Tcx { _link })
    }
    /// Adds a filter to the clsact qdisc, which the kernel runs after all tcx programs.
    pub fn clsact(node: &'a NetNs, interface: &str, egress: bool, verdict: i32) -> Result<Self> {
        let direction = if egress { "egress" } else { "ingress" };
        let pinned = PathBuf::from(format!(
            "/sys/fs/bpf/foreign-{}-{direction}",
            std::process::id()
        ));
        pin(load(&always(verdict))?.as_fd(), &pinned)?;
        // Fails from the second filter on: the qdisc is there.
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
