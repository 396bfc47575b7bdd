// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The names of others' programs where the followed packet was lost: at tc hooks and XDP of
//! interfaces, and at the client's cgroups. And opening sockets in these, because the hooks of a
//! cgroup see the sockets that were opened there.

use std::{fs, os::fd::AsFd, path::PathBuf};

use datapath::{Attached, cgroup_root};
use linux::{cgroup_programs, describe_program};
use proxy_common::trace::follow::Seen;
use rustix::thread::gettid;

use super::{
    super::{ExplainArgs, resolve::Passage},
    judge::loses,
    record::Recorder,
    stations::{Did, Host, Station},
};

/// Returns the programs at the hook at which the packet was freed, or, if it did not arrive, the
/// XDP program of the interface that should have received it.
pub(super) fn at_interfaces(
    args: &ExplainArgs,
    recorder: &Recorder,
    stations: &[Station],
    passage: &Passage,
) -> Vec<String> {
    let own = recorder.kernel.own;
    let reason = stations.iter().find_map(|station| match &station.did {
        Did::Freed(freed) if loses(&station.did) && station.host == Host::Node => {
            Some(freed.reason.as_str())
        }
        _ => None,
    });
    let mut sightings = recorder.sightings.iter();
    let freed = sightings.find(|one| one.seen == Seen::Freed as u8 && one.namespace == own);
    let index = freed.map(|one| one.interface);
    let Ok(ours) = Attached::read(&args.pins.pin_dir) else {
        return Vec::new();
    };
    let side = match reason {
        Some("TC_INGRESS") => 0,
        Some("TC_EGRESS") => 1,
        // The hook is told by the function, or by the interface that did not receive the packet.
        _ => {
            let incoming = passage.incoming.as_ref().map(|place| place.index);
            let xdp = |index| ours.foreign_xdp(index).ok().flatten();
            return index.or(incoming).and_then(xdp).into_iter().collect();
        }
    };
    let Some(Ok(states)) = index.map(|index| ours.states(index)) else {
        return Vec::new();
    };
    let state = &states[side];
    let members = state.before.iter().chain(&state.behind);
    members.cloned().collect()
}

/// Returns the programs of others that see what a process connects and sends: at its cgroup and all
/// above. `process`: None for this one.
pub(super) fn at_cgroups(args: &ExplainArgs, process: Option<i32>, v6: bool) -> Vec<String> {
    /// `BPF_CGROUP_INET_EGRESS`; `BPF_CGROUP_INET4_CONNECT`, `_UDP4_SENDMSG`; those of IPv6.
    const EGRESS: u32 = 1;
    let [connect, send] = if v6 { [11, 15] } else { [10, 14] };
    let (Ok(Some(root)), Some(own)) = (cgroup_root(), own_cgroup(process)) else {
        return Vec::new();
    };
    let Ok(ours) = Attached::read(&args.pins.pin_dir) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let folders = own.ancestors();
    let folders = folders.take_while(|folder| folder.starts_with(&root));
    for folder in folders.filter_map(|folder| fs::File::open(folder).ok()) {
        for kind in [EGRESS, connect, send] {
            let programs = cgroup_programs(folder.as_fd(), kind).unwrap_or_default();
            let foreign = programs.into_iter().filter(|id| !ours.has(*id));
            found.extend(foreign.map(describe_program));
        }
    }
    found.dedup();
    found
}

/// The folder of a process's cgroup; None stands for the calling thread.
fn own_cgroup(process: Option<i32>) -> Option<PathBuf> {
    let process = process.map_or_else(|| "thread-self".to_owned(), |process| process.to_string());
    let text = fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(cgroup_root().ok()??.join(path))
}

/// Runs `work` while this process, or at least this thread, is in the cgroup of another one. Stays
/// where it is if that is not possible.
pub(super) fn inside_cgroup<T>(process: Option<i32>, work: impl FnOnce() -> T) -> T {
    let own = own_cgroup(None);
    let there = process.and_then(|process| own_cgroup(Some(process)));
    let enter = |folder: &PathBuf| {
        let enter = |file: &str, id: String| fs::write(folder.join(file), id);
        // A threaded cgroup takes threads of its own domain only.
        enter("cgroup.procs", std::process::id().to_string())
            .or_else(|_| enter("cgroup.threads", gettid().as_raw_nonzero().to_string()))
    };
    let moved = there.filter(|there| own.is_some() && enter(there).is_ok());
    let result = work();
    if let (Some(_), Some(own)) = (moved, own) {
        // If this fails, the process ends soon in any case.
        _ = enter(&own);
    }
    result
}
