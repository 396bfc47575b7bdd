// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Links that attach programs to an interface (tcx, Linux 6.6; XDP) or to a cgroup. Used by
//! `datapath`.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use super::bpf::{Command, bpf, object_info};

const TCX_INGRESS: u32 = 46;
const TCX_EGRESS: u32 = 47;
const BEFORE: u32 = 1 << 3;
const AFTER: u32 = 1 << 4;
/// Flag: the program before or behind which to attach is named by its link.
const RELATIVE_LINK: u32 = 1 << 13;

fn attach_type(egress: bool) -> u32 {
    if egress { TCX_EGRESS } else { TCX_INGRESS }
}

/// What the kernel says about a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C, align(8))]
pub struct LinkInfo {
    pub kind: u32,
    pub id: u32,
    pub program: u32,
    _pad: u32,
    /// For tcx and XDP: index of the interface; 0 once the interface is gone.
    pub ifindex: u32,
    pub attach_type: u32,
    _rest: [u64; 8],
}

impl LinkInfo {
    /// `BPF_LINK_TYPE_TCX`.
    pub const TCX: u32 = 11;

    /// `BPF_LINK_TYPE_XDP`.
    const XDP: u32 = 6;

    /// `BPF_LINK_TYPE_CGROUP`.
    const CGROUP: u32 = 3;

    /// True if the link attaches a program to the cgroup with this id by this attach type.
    pub fn is_cgroup(&self, id: u64, attach_type: u32) -> bool {
        // A cgroup link's attach type is behind the cgroup's id.
        self.cgroup_id() == Some(id) && self._rest[0] as u32 == attach_type
    }
    /// Returns the id of the cgroup to which the link attaches a program; None for other links, and
    /// once it has been detached.
    pub fn cgroup_id(&self) -> Option<u64> {
        // A cgroup link has this id where a tcx link has index and attach type.
        let id = u64::from(self.attach_type) << 32 | u64::from(self.ifindex);
        (self.kind == Self::CGROUP && id != 0).then_some(id)
    }
    /// True if the link attaches an XDP program; its `ifindex` is 0 once it is detached.
    pub fn is_xdp(&self) -> bool {
        self.kind == Self::XDP
    }
    /// True if the link is a tcx link at egress, or with `egress` false at ingress.
    pub fn is_tcx(&self, egress: bool) -> bool {
        self.kind == Self::TCX && self.attach_type == attach_type(egress)
    }
}

/// Returns what the kernel says about a link; fails if the descriptor is not a link's.
pub fn link_info(fd: impl AsFd) -> io::Result<LinkInfo> {
    let mut info = LinkInfo::default();
    object_info(fd.as_fd(), &mut info)?;
    Ok(info)
}

#[repr(C)]
#[derive(Default)]
struct LinkRequest {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    relative: u32,
    _pad: u32,
    revision: u64,
}

/// Attaches a program to the tcx hook of an interface in the caller's network namespace: behind the
/// program of the link `after`, or without `after` before all others, because a program that ends
/// the chain would hide packets from those behind it. So foreign programs see packets already
/// translated at ingress, and as the client sees them at egress.
pub fn attach_tcx(
    program: BorrowedFd<'_>,
    ifindex: u32,
    egress: bool,
    after: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    create(LinkRequest {
        program: program.as_raw_fd() as u32,
        target: ifindex,
        attach_type: attach_type(egress),
        flags: after.map_or(BEFORE, |_| AFTER | RELATIVE_LINK),
        relative: after.map_or(0, |link| link.as_raw_fd() as u32),
        ..LinkRequest::default()
    })
}

/// Attaches an XDP program to an interface of the caller's network namespace, in the driver
/// (`native`) or behind it; fails with `EBUSY` or `EEXIST` if the interface already has an XDP
/// program.
pub fn attach_xdp(program: BorrowedFd<'_>, ifindex: u32, native: bool) -> io::Result<OwnedFd> {
    const XDP: u32 = 37;
    const SKB_MODE: u32 = 1 << 1;
    const DRV_MODE: u32 = 1 << 2;
    create(LinkRequest {
        program: program.as_raw_fd() as u32,
        target: ifindex,
        attach_type: XDP,
        flags: if native { DRV_MODE } else { SKB_MODE },
        ..LinkRequest::default()
    })
}

/// Attaches a program to a cgroup at the hook `attach_type`. Foreign programs stay attached.
pub fn attach_cgroup(
    program: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
    attach_type: u32,
) -> io::Result<OwnedFd> {
    create(LinkRequest {
        program: program.as_raw_fd() as u32,
        target: cgroup.as_raw_fd() as u32,
        attach_type,
        ..LinkRequest::default()
    })
}

fn create(mut request: LinkRequest) -> io::Result<OwnedFd> {
    // SAFETY: the request holds no pointer; the result is a new descriptor.
    unsafe { bpf(Command::LinkCreate, &mut request).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// Replaces a link's program. Every packet goes through either the old program or the new one.
pub fn replace(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let (flags, old) = (0, 0);
    let mut request = [
        link.as_raw_fd() as u32,
        program.as_raw_fd() as u32,
        flags,
        old,
    ];
    // SAFETY: the request holds no pointer.
    unsafe { bpf(Command::LinkUpdate, &mut request) }.map(drop)
}

/// Detaches a link's program at once; the kernel does so only some time after the last pin is gone.
pub fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    let mut request = link.as_raw_fd() as u32;
    // SAFETY: the request is the descriptor alone.
    unsafe { bpf(Command::LinkDetach, &mut request) }.map(drop)
}

#[repr(C)]
#[derive(Default)]
struct QueryRequest {
    target: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    programs: u64,
    count: u32,
    _pad: u32,
    program_flags: u64,
    links: u64,
    link_flags: u64,
    revision: u64,
}

/// Returns the ids of the programs attached directly to a cgroup (not to its parents) at the hook
/// `attach_type`.
pub fn cgroup_programs(cgroup: BorrowedFd<'_>, attach_type: u32) -> io::Result<Vec<u32>> {
    query(cgroup.as_raw_fd() as u32, attach_type, None)
}

/// Returns the ids of the tcx programs at an interface of the caller's network namespace, at egress
/// or ingress, in the order in which the kernel runs them, each with the id of its link, 0 if it
/// has none. Fails with `EINVAL` or `EOPNOTSUPP` if the kernel has no tcx.
pub fn tcx(ifindex: u32, egress: bool) -> io::Result<Vec<(u32, u32)>> {
    let mut links = [0u32; PER_HOOK];
    let programs = query(ifindex, attach_type(egress), Some(&mut links))?;
    Ok(programs.into_iter().zip(links).collect())
}

/// The kernel takes at most this many programs per hook.
const PER_HOOK: usize = 64;

/// Returns the ids of the programs at a hook, and writes the ids of their links into `links`.
fn query(
    target: u32,
    attach_type: u32,
    links: Option<&mut [u32; PER_HOOK]>,
) -> io::Result<Vec<u32>> {
    let mut programs = vec![0u32; PER_HOOK];
    let mut request = QueryRequest {
        target,
        attach_type,
        programs: programs.as_mut_ptr() as u64,
        count: PER_HOOK as u32,
        links: links.map_or(0, |links| links.as_mut_ptr() as u64),
        ..QueryRequest::default()
    };
    // SAFETY: both arrays are exclusively borrowed and hold `count` words.
    unsafe { bpf(Command::ProgramQuery, &mut request) }?;
    programs.truncate(request.count as usize);
    Ok(programs)
}
