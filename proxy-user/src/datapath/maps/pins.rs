// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pin directory: where it may be, who holds it, what shape its maps must have. Used by `load`, `read`
//! and `cli::cleanup`.

use std::{
    fs::{self, File},
    io,
    os::{fd::AsFd, linux::fs::MetadataExt},
    path::{Path, PathBuf},
};

use nix::fcntl::{Flock, FlockArg};
use proxy_common::{
    AffinityEntry, AffinityKey, Backend, Counter, FlowEntry, FlowKey, FrontendKey, PodAffinityKey,
    Record, Settings, SocketBucket, SocketEntry, SocketKey, V4, V6,
    maps::{self, LAYOUT_VERSION, capacity},
    masquerade::MasqueradeSource,
    ports,
    service::{FragmentKey, ServiceName},
    socket::SOCKET_BUCKETS,
};

use crate::datapath::{
    error::DatapathError,
    options::Capacities,
    sys::{LpmKey, MapInfo, MapKind, get_pinned, map_info},
};

const BPF_FS_MAGIC: i64 = 0xcafe_4a11;
const MMAPABLE: u32 = 1 << 10;
const NO_PREALLOC: u32 = 1;

/// Where maps of this version's layout are pinned.
pub fn layout_dir(pin_dir: &Path) -> PathBuf {
    pin_dir.join(format!("v{LAYOUT_VERSION}"))
}

/// Where a map is pinned.
pub fn map_path(pin_dir: &Path, map: &str) -> PathBuf {
    layout_dir(pin_dir).join(map)
}

/// Where links are pinned.
pub fn links_dir(pin_dir: &Path) -> PathBuf {
    layout_dir(pin_dir).join("links")
}

/// Whether a path lies on a BPF file system.
pub(crate) fn is_bpffs(path: &Path) -> bool {
    nix::sys::statfs::statfs(path).is_ok_and(|fs| fs.filesystem_type().0 == BPF_FS_MAGIC)
}

/// Makes the pin directory, which must come to lie on a BPF file system.
pub fn create_dirs(pin_dir: &Path) -> Result<(), DatapathError> {
    let unusable = |reason: &str, source| DatapathError::PinDirectory {
        path: pin_dir.into(),
        reason: reason.into(),
        source,
    };
    if !pin_dir.is_absolute() {
        return Err(unusable("it must be an absolute path", None));
    }
    let existing = pin_dir
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or(Path::new("/"));
    if !is_bpffs(existing) {
        return Err(DatapathError::NoBpffs {
            path: pin_dir.into(),
            mount_point: mount_point(pin_dir),
        });
    }
    let below = pin_dir.strip_prefix(existing).unwrap_or(pin_dir);
    if below.to_string_lossy().contains('.') {
        return Err(unusable(
            "a BPF file system takes no dot in a name; choose another --pin-dir",
            None,
        ));
    }
    fs::create_dir_all(links_dir(pin_dir)).map_err(|error| {
        unusable(
            "it cannot be created (is anything but a directory in the way?)",
            Some(error),
        )
    })
}

/// Where to mount a BPF file system so that the directory lies on it.
fn mount_point(pin_dir: &Path) -> PathBuf {
    let usual = Path::new("/sys/fs/bpf");
    if pin_dir.starts_with(usual) {
        return usual.into();
    }
    pin_dir.into()
}

/// The pin directory, held by this process alone until it is dropped.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "held, never read")] Flock<File>);

impl Lock {
    /// Takes the directory, unless somebody holds it. The lock is on the directory itself, so that agents
    /// in different containers see each other, and nothing is left behind.
    pub fn take(pin_dir: &Path) -> Result<Self, DatapathError> {
        let failed = |attempt, source| DatapathError::File {
            attempt,
            path: pin_dir.into(),
            source,
        };
        loop {
            let file = File::open(pin_dir).map_err(|error| failed("open", error))?;
            let metadata = file.metadata().map_err(|error| failed("look at", error))?;
            let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => lock,
                Err((_, nix::errno::Errno::EWOULDBLOCK)) => {
                    return Err(DatapathError::Locked {
                        path: pin_dir.into(),
                        holder: holder(&metadata),
                    });
                }
                Err((_, error)) => return Err(failed("lock", error.into())),
            };
            // Between opening and locking a cleanup may have removed it.
            match fs::metadata(pin_dir) {
                Ok(now) if now.st_ino() == metadata.st_ino() => return Ok(Self(lock)),
                Ok(_) => {}
                Err(error) => return Err(failed("look at", error)),
            }
        }
    }
}

/// Who holds the lock on a file, by /proc/locks: a process of another PID namespace is not shown there.
fn holder(file: &fs::Metadata) -> Option<u32> {
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let (major, minor) = (
        nix::sys::stat::major(file.st_dev()),
        nix::sys::stat::minor(file.st_dev()),
    );
    let place = format!("{major:02x}:{minor:02x}:{}", file.st_ino());
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "FLOCK");
        let pid = words.nth(3)?;
        (words.next()? == place).then(|| pid.parse().ok().filter(|pid| *pid > 0))?
    })
}

/// What a map must be like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    pub name: &'static str,
    pub kind: MapKind,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub flags: u32,
}

impl Shape {
    fn new<K, V>(name: &'static str, kind: MapKind, max_entries: u32, flags: u32) -> Self {
        Self {
            name,
            kind,
            key_size: size_of::<K>() as u32,
            value_size: size_of::<V>() as u32,
            max_entries,
            flags,
        }
    }
    /// In which way a map differs from this.
    pub fn difference(&self, info: &MapInfo) -> Option<String> {
        let pairs = [
            ("type", info.kind, self.kind as u32),
            ("key size", info.key_size, self.key_size),
            ("value size", info.value_size, self.value_size),
            ("capacity", info.max_entries, self.max_entries),
            ("flags", info.flags, self.flags),
        ];
        pairs
            .into_iter()
            .find(|(_, is, wanted)| is != wanted)
            .map(|(what, is, wanted)| format!("{what} {is} where {wanted} is wanted"))
    }
}

/// Every map's shape.
pub fn shapes(c: &Capacities) -> Vec<Shape> {
    use MapKind::{Array, Hash, LpmTrie, LruHash, PerCpuArray};
    let s = Shape::new::<u32, u32>;
    vec![
        Shape::new::<FrontendKey<V4>, u32>(maps::FRONTENDS_V4, Hash, c.frontends, 0),
        Shape::new::<FrontendKey<V6>, u32>(maps::FRONTENDS_V6, Hash, c.frontends, 0),
        Shape::new::<u32, Record<V4>>(maps::RECORDS_V4, Array, c.records, MMAPABLE),
        Shape::new::<u32, Record<V6>>(maps::RECORDS_V6, Array, c.records, MMAPABLE),
        s(maps::SLOTS, Array, c.slots, MMAPABLE),
        Shape::new::<u32, Backend<V4>>(maps::BACKENDS_V4, Array, c.backends, MMAPABLE),
        Shape::new::<u32, Backend<V6>>(maps::BACKENDS_V6, Array, c.backends, MMAPABLE),
        Shape::new::<V4, u32>(
            maps::NODE_ADDRESSES_V4,
            Hash,
            capacity::NODE_ADDRESSES as u32,
            0,
        ),
        Shape::new::<V6, u32>(
            maps::NODE_ADDRESSES_V6,
            Hash,
            capacity::NODE_ADDRESSES as u32,
            0,
        ),
        Shape::new::<u32, u64>(maps::PORTS, Array, ports::WORDS, MMAPABLE),
        Shape::new::<LpmKey<V4>, u32>(
            maps::SOURCE_RANGES_V4,
            LpmTrie,
            c.source_ranges,
            NO_PREALLOC,
        ),
        Shape::new::<LpmKey<V6>, u32>(
            maps::SOURCE_RANGES_V6,
            LpmTrie,
            c.source_ranges,
            NO_PREALLOC,
        ),
        Shape::new::<AffinityKey<V4>, AffinityEntry>(maps::AFFINITY_V4, LruHash, c.affinity, 0),
        Shape::new::<AffinityKey<V6>, AffinityEntry>(maps::AFFINITY_V6, LruHash, c.affinity, 0),
        Shape::new::<PodAffinityKey, AffinityEntry>(maps::AFFINITY_PODS, LruHash, c.affinity, 0),
        Shape::new::<SocketKey<V4>, SocketEntry<V4>>(maps::SOCKETS_V4, Hash, c.sockets, 0),
        Shape::new::<SocketKey<V6>, SocketEntry<V6>>(maps::SOCKETS_V6, Hash, c.sockets, 0),
        Shape::new::<u32, SocketBucket<V4>>(
            maps::SOCKET_BUCKETS_V4,
            Array,
            SOCKET_BUCKETS,
            MMAPABLE,
        ),
        Shape::new::<u32, SocketBucket<V6>>(
            maps::SOCKET_BUCKETS_V6,
            Array,
            SOCKET_BUCKETS,
            MMAPABLE,
        ),
        Shape::new::<u64, u32>(maps::EXCEPTIONS, Hash, capacity::EXCEPTIONS as u32, 0),
        Shape::new::<FlowKey<V4>, FlowEntry<V4>>(maps::FLOWS_V4, Hash, c.flows, 0),
        Shape::new::<FlowKey<V6>, FlowEntry<V6>>(maps::FLOWS_V6, Hash, c.flows, 0),
        Shape::new::<FragmentKey<V4>, u32>(
            maps::FRAGMENTS_V4,
            LruHash,
            capacity::FRAGMENTS as u32,
            0,
        ),
        Shape::new::<FragmentKey<V6>, u32>(
            maps::FRAGMENTS_V6,
            LruHash,
            capacity::FRAGMENTS as u32,
            0,
        ),
        s(maps::INTERFACES, Hash, capacity::INTERFACES as u32, 0),
        Shape::new::<u32, MasqueradeSource>(
            maps::MASQUERADE_SOURCES,
            Array,
            capacity::MASQUERADE_SOURCES as u32,
            0,
        ),
        Shape::new::<u32, Settings>(maps::SETTINGS, Array, 1, 0),
        // One name per service port, which has at least one frontend of some family.
        Shape::new::<u32, ServiceName>(maps::NAMES, Hash, c.frontends, NO_PREALLOC),
        Shape::new::<u32, u64>(maps::COUNTERS, PerCpuArray, Counter::COUNT, 0),
        Shape::new::<u32, [u64; 2]>(maps::REJECT_BUDGET, PerCpuArray, 1, 0),
    ]
}

/// How many elements the pinned maps hold; none where nothing is pinned.
pub fn pinned_capacities(pin_dir: &Path) -> Result<Option<Capacities>, DatapathError> {
    let mut capacities = Capacities::default();
    let fields = [
        (maps::FRONTENDS_V4, &mut capacities.frontends),
        (maps::RECORDS_V4, &mut capacities.records),
        (maps::SLOTS, &mut capacities.slots),
        (maps::BACKENDS_V4, &mut capacities.backends),
        (maps::FLOWS_V4, &mut capacities.flows),
        (maps::AFFINITY_V4, &mut capacities.affinity),
        (maps::SOCKETS_V4, &mut capacities.sockets),
        (maps::SOURCE_RANGES_V4, &mut capacities.source_ranges),
    ];
    let mut any = false;
    for (map, capacity) in fields {
        let path = map_path(pin_dir, map);
        match get_pinned(&path, false).and_then(|fd| map_info(fd.as_fd())) {
            Ok(info) => {
                *capacity = info.max_entries;
                any = true;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => {
                return Err(DatapathError::File {
                    attempt: "read",
                    path,
                    source,
                });
            }
        }
    }
    Ok(any.then_some(capacities))
}

/// Refuses pinned maps that are not what we would make: other capacities, or somebody else's.
pub fn check_maps(pin_dir: &Path, shapes: &[Shape]) -> Result<(), DatapathError> {
    for shape in shapes {
        let path = map_path(pin_dir, shape.name);
        let difference = match get_pinned(&path, false) {
            Ok(fd) => match map_info(fd.as_fd()) {
                Ok(info) => shape.difference(&info),
                Err(_) => Some("something that is no map".into()),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => Some(format!("something that cannot be opened ({error})")),
        };
        if let Some(difference) = difference {
            return Err(DatapathError::ForeignMap {
                path,
                pin_dir: pin_dir.into(),
                difference,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_map_has_a_shape_and_no_other() {
        let mut shapes: Vec<_> = shapes(&Capacities::default())
            .iter()
            .map(|shape| shape.name)
            .collect();
        let mut names = maps::ALL.to_vec();
        shapes.sort_unstable();
        names.sort_unstable();
        assert_eq!(shapes, names);
    }

    #[test]
    fn a_changed_capacity_is_named() {
        let shape = Shape::new::<u32, u32>("slots", MapKind::Array, 100, 0);
        let info = MapInfo {
            kind: 2,
            key_size: 4,
            value_size: 4,
            max_entries: 50,
            ..MapInfo::default()
        };
        assert_eq!(
            shape.difference(&info).as_deref(),
            Some("capacity 50 where 100 is wanted")
        );
    }
}
