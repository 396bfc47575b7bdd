// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The only list of all maps: type, sizes and capacity of each. Pinned maps are checked against it
//! before they are used. Called by `Datapath::open`, `programs::load` and `cli`.

use std::{io, os::fd::AsFd, path::Path};

use linux::{LpmKey, MMAPABLE, MapInfo, MapKind, NO_PREALLOC, get_pinned, map_info, possible_cpus};
use proxy_common::{
    AffinityEntry, AffinityKey, Backend, Counter, FrontendKey, LocalPod, PodAffinityKey, Record,
    Settings, SocketBucket, SocketEntry, SocketKey, V4, V6,
    carried::{KEYS, Key},
    flow::places::{self, FlowSlot, Tags, WAYS},
    maps::{self, capacity},
    masquerade::MasqueradeSources,
    ports,
    service::{FragmentKey, ServiceName},
    socket::SOCKET_BUCKETS,
    traffic::{RefusedKey, Traffic},
};

use super::{family::Family, pins::layout_dir};
use crate::{error::DatapathError, options::Capacities};

/// The properties with which a map is created: name, type, sizes, flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    pub(crate) name: &'static str,
    pub(crate) kind: MapKind,
    pub(crate) key_size: u32,
    pub(crate) value_size: u32,
    pub(crate) max_entries: u32,
    pub(crate) flags: u32,
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
    /// Describes the first difference between this shape and a map, ignoring the capacity; `None`
    /// if there is none.
    pub(crate) fn difference(&self, info: &MapInfo) -> Option<String> {
        let pairs = [
            ("type", info.kind, self.kind as u32),
            ("key size", info.key_size, self.key_size),
            ("value size", info.value_size, self.value_size),
            ("flags", info.flags, self.flags),
        ];
        pairs
            .into_iter()
            .find(|(_, is, wanted)| is != wanted)
            .map(|(what, is, wanted)| format!("{what} {is} where {wanted} is wanted"))
    }
}

/// Returns the shapes of all maps, for these capacities.
pub fn shapes(c: &Capacities) -> Vec<Shape> {
    use MapKind::{Array, Hash, LruHash, PerCpuArray, PerCpuHash};
    let s = Shape::new::<u32, u32>;
    let (sources, shared) = (
        capacity::MASQUERADE_SOURCES as u32,
        maps::SHARED_INTERFACE_SLOTS,
    );
    let mut shapes = shapes_of::<V4>(c, c.flows);
    shapes.extend(shapes_of::<V6>(c, c.flows_v6));
    shapes.extend([
        s(maps::SLOTS, Array, c.slots, MMAPABLE),
        Shape::new::<u32, u64>(maps::PORTS, Array, ports::WORDS, MMAPABLE),
        Shape::new::<PodAffinityKey, AffinityEntry>(maps::AFFINITY_PODS, LruHash, c.affinity, 0),
        Shape::new::<u64, u32>(maps::EXCEPTIONS, Hash, capacity::EXCEPTIONS as u32, 0),
        Shape::new::<u32, u64>(maps::FLOW_SECRET, Array, 1, 0),
        Shape::new::<u32, u64>(maps::INTERFACES, Hash, capacity::INTERFACES as u32, 0),
        s(maps::DIRECT, Array, maps::DIRECT_SLOTS, 0),
        Shape::new::<u32, u64>(maps::BETWEEN_PODS, Array, maps::BETWEEN_PODS_SLOTS, 0),
        s(maps::SHARED_INTERFACES, Array, shared, 0),
        Shape::new::<u32, MasqueradeSources>(maps::MASQUERADE_SOURCES, Array, sources, 0),
        Shape::new::<u32, Settings>(maps::SETTINGS, Array, 1, 0),
        // One name per service port, which has at least one frontend of some family.
        Shape::new::<u32, ServiceName>(maps::NAMES, Hash, c.frontends, NO_PREALLOC),
        Shape::new::<u32, u64>(maps::COUNTERS, PerCpuArray, Counter::CAPACITY, 0),
        Shape::new::<RefusedKey, u64>(maps::REFUSED, PerCpuHash, capacity::REFUSED as u32, 0),
        Shape::new::<u32, [u64; 2]>(maps::REJECT_BUDGET, PerCpuArray, 1, 0),
        s(maps::DRAINED, Array, 1, 0),
        Shape::new::<u32, u64>(maps::UPLINKS, Hash, capacity::UPLINKS as u32, 0),
        Shape::new::<u64, u32>(maps::MACS, Hash, capacity::MACS as u32, 0),
        s(maps::ROUTE_EPOCH, Array, 1, 0),
        Shape::new::<u32, Key>(maps::HEADER_KEYS, Array, KEYS, 0),
    ]);
    shapes
}

fn shapes_of<A: Family>(c: &Capacities, flows: u32) -> Vec<Shape> {
    use MapKind::{Array, Hash, LpmTrie, LruHash, PerCpuArray};
    let sets = places::sets(flows);
    let counted = counted_backends(c.backends, possible_cpus().unwrap_or(1));
    let (addresses, ranges) = (capacity::NODE_ADDRESSES as u32, c.source_ranges);
    let (buckets, fragments) = (SOCKET_BUCKETS, capacity::FRAGMENTS as u32);
    vec![
        Shape::new::<FrontendKey<A>, u32>(A::FRONTENDS, Hash, c.frontends, NO_PREALLOC),
        Shape::new::<u32, Record<A>>(A::RECORDS, Array, c.records, MMAPABLE),
        Shape::new::<u32, Backend<A>>(A::BACKENDS, Array, c.backends, MMAPABLE),
        Shape::new::<A, u32>(A::NODE_ADDRESSES, Hash, addresses, 0),
        Shape::new::<LpmKey<A>, u32>(A::SOURCE_RANGES, LpmTrie, ranges, NO_PREALLOC),
        Shape::new::<AffinityKey<A>, AffinityEntry>(A::AFFINITY, LruHash, c.affinity, 0),
        Shape::new::<SocketKey<A>, SocketEntry<A>>(A::SOCKETS, Hash, c.sockets, NO_PREALLOC),
        Shape::new::<u32, SocketBucket<A>>(A::SOCKET_BUCKETS, Array, buckets, MMAPABLE),
        Shape::new::<u32, FlowSlot<A>>(A::FLOW_SLOTS, Array, sets * WAYS, MMAPABLE),
        Shape::new::<u32, Tags>(A::FLOW_TAGS, Array, sets, MMAPABLE),
        Shape::new::<FragmentKey<A>, u32>(A::FRAGMENTS, LruHash, fragments, 0),
        Shape::new::<A, LocalPod>(A::PODS, Hash, capacity::PODS as u32, 0),
        Shape::new::<u32, Traffic>(A::TRAFFIC, PerCpuArray, counted, 0),
    ]
}

/// Bytes that the traffic counters of both families may take, summed over all CPUs.
const TRAFFIC_BYTES: usize = 36 << 20;

/// Returns how many backends of a family get their own traffic counters: all, if `TRAFFIC_BYTES`
/// allows.
fn counted_backends(backends: u32, cpus: usize) -> u32 {
    let fit = TRAFFIC_BYTES / (2 * size_of::<Traffic>() * cpus.max(1));
    backends.min(u32::try_from(fit).unwrap_or(u32::MAX))
}

/// Returns the capacities of the pinned maps; `None` if no map is pinned.
pub fn pinned_capacities(pin_dir: &Path) -> Result<Option<Capacities>, DatapathError> {
    capacities_in(&layout_dir(pin_dir))
}

/// Returns the capacities of the maps in a generation's directory; `None` if no map is there.
pub(crate) fn capacities_in(home: &Path) -> Result<Option<Capacities>, DatapathError> {
    let mut capacities = Capacities::default();
    let mut any = false;
    for map in maps::ALL.iter().chain(&maps::HASHED_FLOWS) {
        let Some(capacity) = capacities.of(map) else {
            continue;
        };
        let path = home.join(map);
        match get_pinned(&path, false).and_then(|fd| map_info(fd.as_fd())) {
            Ok(info) => {
                *capacity = info.max_entries;
                any = true;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(DatapathError::of_file("read", &path)(error)),
        }
    }
    Ok(any.then_some(capacities))
}

/// True if the maps in a generation's directory have the capacities of these shapes; a missing map
/// counts as having it. Fails if a pin is not one of our maps: its type, sizes or flags differ, so
/// another program made it.
pub(crate) fn have_shapes(home: &Path, shapes: &[Shape]) -> Result<bool, DatapathError> {
    let mut same = true;
    for shape in shapes {
        let path = home.join(shape.name);
        let difference = match get_pinned(&path, false).map(map_info) {
            Ok(Ok(info)) => {
                same &= info.max_entries == shape.max_entries;
                shape.difference(&info)
            }
            Ok(Err(_)) => Some("it is not a map".into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => Some(format!("it cannot be opened: {error}")),
        };
        if let Some(difference) = difference {
            return Err(DatapathError::ForeignMap {
                pin_dir: home.parent().unwrap_or(home).into(),
                path,
                difference,
            });
        }
    }
    Ok(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_maps_in_the_list_of_names_have_shapes() {
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
    fn backend_traffic_counters_take_a_bounded_amount_of_memory() {
        assert_eq!(counted_backends(1_024, 8), 1_024);
        assert_eq!(counted_backends(262_144, 8), 32_768);
        for cpus in [1, 2, 7, 64, 512] {
            let entries = counted_backends(262_144, cpus) as usize;
            let bytes = 2 * entries * size_of::<Traffic>() * cpus;
            assert!(bytes <= TRAFFIC_BYTES && entries > 500, "{cpus}");
        }
    }

    #[test]
    fn different_map_flags_are_reported_but_not_a_different_capacity() {
        let shape = Shape::new::<u32, u32>("slots", MapKind::Array, 100, 0);
        let info = MapInfo {
            kind: 2,
            key_size: 4,
            value_size: 4,
            max_entries: 50,
            flags: 1,
            ..MapInfo::default()
        };
        assert_eq!(
            shape.difference(&info).as_deref(),
            Some("flags 1 where 0 is wanted")
        );
    }
}
