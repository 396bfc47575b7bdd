// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Traces socket calls: attaches programs of its own behind our socket hooks, to the same cgroup.
//! They see what the hooks did to each call. They are detached when the process ends.

use std::{
    fs::{self, File},
    io,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

use aya::{
    Ebpf, EbpfLoader,
    maps::{MapData, perf::PerfEventArrayBuffer},
    programs::{CgroupAttachMode, CgroupSockAddr},
};
use control::causes::chain;
use linux::{get_pinned, link_info};
use proxy_common::maps;

use super::{Lost, Wanted, buffers, failed, program, take_map, tell};
use crate::{
    error::DatapathError,
    maps::pins::{files, layout_dir, links_of},
    programs::{cgroup2_mounts, fd},
};

static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/portolan-trace.bpf.o"));

/// The tracing programs, in the order of attaching.
const PROGRAMS: [&str; 8] = [
    "connect_v4",
    "connect_v6",
    "send_v4",
    "send_v6",
    "receive_v4",
    "receive_v6",
    "peer_name_v4",
    "peer_name_v6",
];
/// The pinned maps that the tracing programs share with the socket hooks.
const SHARED: [&str; 4] = [
    maps::SOCKETS_V4,
    maps::SOCKETS_V6,
    maps::SOCKET_BUCKETS_V4,
    maps::SOCKET_BUCKETS_V6,
];

/// The attached tracing programs. Dropping this detaches them.
pub(super) struct Calls {
    _ebpf: Ebpf,
    home: PathBuf,
    lost: OwnedFd,
    buffers: Vec<PerfEventArrayBuffer<MapData>>,
}

impl Calls {
    /// Attaches the tracing programs; `None` if no socket hook is attached.
    pub(super) fn attach(pin_dir: &Path, wanted: &Wanted) -> Result<Option<Self>, DatapathError> {
        let home = layout_dir(pin_dir);
        let refused = |reason| DatapathError::of_program("that tells of socket calls", reason);
        let Some(cgroup) = cgroup_of(&home).map_err(failed("find the socket hooks"))? else {
            return Ok(None);
        };
        let mut loader = EbpfLoader::new();
        loader.btf(None);
        for map in SHARED {
            loader.map_pin_path(map, home.join(map));
        }
        let mut ebpf = loader
            .load(OBJECT)
            .map_err(|error| refused(chain(&error)))?;
        // The programs are loaded before their maps are taken, because the kernel binds the maps to
        // a program when it loads it.
        for name in PROGRAMS {
            let program = program::<CgroupSockAddr>(&mut ebpf, name);
            let loaded = program.and_then(|program| Ok(program.load()?));
            loaded.map_err(|error| refused(format!("{name}: {}", chain(error.as_ref()))))?;
        }
        let mut of_map = |name| take_map(&mut ebpf, name);
        let made = (|| -> io::Result<_> {
            let maps = [fd(&of_map("trace_filter")?)?, fd(&of_map("trace_rate")?)?];
            tell(maps, &wanted.calls, wanted.rate)?;
            Ok((fd(&of_map("trace_lost")?)?, buffers(of_map("trace_out")?)?))
        })();
        let (lost, buffers) = made.map_err(failed("ask for socket calls"))?;
        for name in PROGRAMS {
            // The mode of a link, which does not affect other programs; the kernel takes no flag
            // for it.
            let mode = CgroupAttachMode::Single;
            let program = program::<CgroupSockAddr>(&mut ebpf, name);
            let attached =
                program.and_then(|program| Ok(program.attach(&cgroup, mode).map(drop)?));
            attached.map_err(|error| refused(format!("{name}: {}", chain(error.as_ref()))))?;
        }
        Ok(Some(Self {
            _ebpf: ebpf,
            home,
            lost,
            buffers,
        }))
    }

    /// True if the socket hooks still use the maps that the tracing programs use.
    pub(super) fn is_current(&self, pin_dir: &Path) -> bool {
        layout_dir(pin_dir) == self.home
    }

    pub(super) fn buffers(&mut self) -> &mut Vec<PerfEventArrayBuffer<MapData>> {
        &mut self.buffers
    }

    pub(super) fn lost(&self) -> Lost {
        Lost::of(&self.lost)
    }
}

/// Opens the cgroup that the socket hooks are attached to, according to their pinned links; `None`
/// if there is none.
fn cgroup_of(home: &Path) -> io::Result<Option<File>> {
    for path in files(&links_of(home)) {
        let name = path.file_name().unwrap_or_default();
        if !name.to_string_lossy().starts_with("cgroup-") {
            continue;
        }
        let info = get_pinned(&path, false).and_then(link_info)?;
        if let Some(id) = info.cgroup_id() {
            return find(id);
        }
    }
    Ok(None)
}

/// Opens the cgroup with this id, which is the inode number of its directory; `None` if it is not
/// found.
fn find(id: u64) -> io::Result<Option<File>> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mut waiting: Vec<_> = cgroup2_mounts(&mounts).collect();
    while let Some(folder) = waiting.pop() {
        // A cgroup may have been removed in the meantime.
        let Ok(metadata) = fs::metadata(&folder) else {
            continue;
        };
        if metadata.ino() == id {
            return File::open(&folder).map(Some);
        }
        let below = fs::read_dir(&folder).into_iter().flatten().flatten();
        let folders = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        waiting.extend(folders.map(|entry| entry.path()));
    }
    Ok(None)
}
