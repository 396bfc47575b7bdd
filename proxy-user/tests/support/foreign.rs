// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs of others at the node's interfaces: each returns one verdict, whatever the packet.

use std::{
    ffi::c_void,
    fs, io,
    os::fd::{AsFd, FromRawFd, OwnedFd},
    path::PathBuf,
};

use anyhow::{Context, Result};
use portolan::datapath::sys::{attach_tcx, pin};

use super::netns::NetNs;

/// `TC_ACT_SHOT`, which tcx calls `TCX_DROP`.
pub(crate) const DROP: i32 = 2;

/// A program at one hook of one interface; dropping it takes it away.
pub(crate) enum Foreign<'a> {
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
    pub(crate) fn tcx(node: &NetNs, interface: &str, egress: bool, verdict: i32) -> Result<Self> {
        let program = load(verdict)?;
        let link = node.enter(|| {
            let index = nix::net::if_::if_nametoindex(interface)?;
            attach_tcx(program.as_fd(), index, egress)
        })?;
        let _link = link.context("attach by tcx")?;
        Ok(Self::Tcx { _link })
    }
    /// Adds a filter to the clsact qdisc, which the kernel asks behind every tcx program.
    pub(crate) fn clsact(
        node: &'a NetNs,
        interface: &str,
        egress: bool,
        verdict: i32,
    ) -> Result<Self> {
        let direction = if egress { "egress" } else { "ingress" };
        let pinned = PathBuf::from(format!(
            "/sys/fs/bpf/foreign-{}-{direction}",
            std::process::id()
        ));
        pin(load(verdict)?, &pinned).context("pin a program")?;
        // It is there already from the second filter on.
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

/// Loads `r0 = verdict; exit`.
fn load(verdict: i32) -> Result<OwnedFd> {
    #[repr(C)]
    #[derive(Default)]
    struct Request {
        kind: u32,
        count: u32,
        instructions: u64,
        license: u64,
        rest: [u64; 12],
    }
    const PROG_LOAD: i64 = 5;
    const SCHED_CLS: u32 = 3;
    let move_to_r0 = 0xb7 | u64::from(verdict.cast_unsigned()) << 32;
    let instructions = [move_to_r0, 0x95];
    let request = Request {
        kind: SCHED_CLS,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        ..Request::default()
    };
    let request_at: *const c_void = (&raw const request).cast();
    // SAFETY: the pointers are to live instructions and a string; the size is the request's.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, PROG_LOAD, request_at, size_of_val(&request)) };
    if fd < 0 {
        return Err(io::Error::last_os_error()).context("load a program");
    }
    // SAFETY: a new descriptor, nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
