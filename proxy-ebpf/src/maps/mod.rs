// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Every map of the programs, and access to them: those of an IP family (`tables`), the node's
//! settings and addresses (`node`), port bits (`ports`), counters of backends (`traffic`), reports
//! to `portolan trace` (`trace`), the flow table (`flow`), its slots (`slots`) and which flows are
//! evicted from full sets (`room`), a program's own memory (`workspace`). The agent replaces the
//! maps' sizes by its settings.

pub mod flow;
pub mod next_hop;
pub mod node;
pub mod occupied;
pub mod ports;
pub mod room;
pub mod slots;
pub mod tables;
pub mod trace;
pub mod traffic;
pub mod workspace;

use aya_ebpf::{
    bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC},
    btf_maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray, PerCpuHashMap, PerfEventArray},
    macros::btf_map,
};
use proxy_common::{
    AffinityEntry, AffinityKey, Backend, BackendId, Counter, FrontendKey, LocalPod, PodAffinityKey,
    Record, RecordId, ServiceId, Settings, SocketBucket, SocketEntry, SocketKey,
    carried::{KEYS, Key},
    flow::places::{self, FlowSlot, WAYS},
    maps::{BETWEEN_PODS_SLOTS, DIRECT_SLOTS, NEXT_HOP_SLOTS, SHARED_INTERFACE_SLOTS, capacity},
    masquerade::MasqueradeSources,
    ports::WORDS,
    service::{FragmentKey, ServiceName, SourceRangeKey},
    socket::SOCKET_BUCKETS,
    trace::{Filter, PacketEvent, lost, rate::Rate},
    traffic::{RefusedKey, Traffic},
    xdp::Uplink,
};

use self::{next_hop::NextHop, workspace::Workspace};

const MMAPABLE: usize = BPF_F_MMAPABLE as usize;
const ON_DEMAND: usize = BPF_F_NO_PREALLOC as usize;

pub type Frontends<A> = HashMap<FrontendKey<A>, RecordId, { capacity::FRONTENDS }, ON_DEMAND>;
pub type Records<A> = Array<Record<A>, { capacity::RECORDS }, MMAPABLE>;
pub type Backends<A> = Array<Backend<A>, { capacity::BACKENDS }, MMAPABLE>;
pub type NodeAddresses<A> = HashMap<A, u32, { capacity::NODE_ADDRESSES }>;
pub type SourceRanges<A> = LpmTrie<SourceRangeKey<A>, u32, { capacity::SOURCE_RANGES }>;
pub type AffinityBy<K> = LruHashMap<K, AffinityEntry, { capacity::AFFINITY }>;
pub type Affinity<A> = AffinityBy<AffinityKey<A>>;
pub type Sockets<A> = HashMap<SocketKey<A>, SocketEntry<A>, { capacity::SOCKETS }, ON_DEMAND>;
pub type SocketBuckets<A> = Array<SocketBucket<A>, { SOCKET_BUCKETS as usize }, MMAPABLE>;
/// Number of sets of a flow table.
const FLOW_SETS: usize = places::sets(capacity::FLOWS as u32) as usize;
pub type FlowSlots<A> = Array<FlowSlot<A>, { FLOW_SETS * WAYS as usize }, MMAPABLE>;
pub type FlowTags = Array<places::Tags, FLOW_SETS, MMAPABLE>;
pub type Workspaces<A> = PerCpuArray<Workspace<A>, { workspace::COUNT as usize }>;
/// Cached next hops. Slot: the hash of the next hop's destination, modulo the number of slots.
pub type NextHops<A> = PerCpuArray<NextHop<A>, { NEXT_HOP_SLOTS as usize }>;
/// Counters of the backends of one family.
pub type TrafficOf = PerCpuArray<Traffic, { capacity::TRAFFIC }>;
/// Key: a pod's address. Value: how redirected packets reach this pod of the node.
pub type Pods<A> = HashMap<A, LocalPod, { capacity::PODS }>;
pub type Fragments<A> = LruHashMap<FragmentKey<A>, u32, { capacity::FRAGMENTS }>;

#[btf_map(name = "slots")]
pub static SLOTS: Array<BackendId, { capacity::SLOTS }, MMAPABLE> = Array::new();
#[btf_map(name = "ports")]
pub static PORTS: Array<u64, { WORDS as usize }, MMAPABLE> = Array::new();
#[btf_map(name = "affinity_pods")]
pub static AFFINITY_PODS: AffinityBy<PodAffinityKey> = AffinityBy::new();
/// The key is a cgroup's id: the packet path, not the socket hooks, serves the sockets of processes
/// in and below the cgroup.
#[btf_map(name = "exceptions")]
pub static EXCEPTIONS: HashMap<u64, u32, { capacity::EXCEPTIONS }> = HashMap::new();
/// The secret of the flow tables' hash, which the agent makes with them. No program reads it: it is
/// the constant `HASH_KEY` of those over these maps.
#[btf_map(name = "flow_secret")]
pub static FLOW_SECRET: Array<u64, 1> = Array::new();
/// The tags of IPv4's sets and of IPv6's.
#[btf_map(name = "flow_tags_v4")]
pub static FLOW_TAGS_V4: FlowTags = Array::new();
#[btf_map(name = "flow_tags_v6")]
pub static FLOW_TAGS_V6: FlowTags = Array::new();
/// Key: interface index. Value: the agent's data on it, see [`proxy_common::maps::interface`].
#[btf_map(name = "interfaces")]
pub static INTERFACES: HashMap<u32, u64, { capacity::INTERFACES }> = HashMap::new();
/// Direct conversations with a backend, not through a service. `FlowKey::fingerprint` of the
/// conversation's replies gives the slot and the value.
#[btf_map(name = "direct")]
pub static DIRECT: Array<u32, { DIRECT_SLOTS as usize }> = Array::new();
/// Records of the conversations between two pods of this node that need no translation, see
/// `proxy_common::flow::between_pods`. `Direction::slot` is the slot.
#[btf_map(name = "between_pods")]
pub static BETWEEN_PODS: Array<u64, { BETWEEN_PODS_SLOTS as usize }> = Array::new();
/// Slot: an interface index modulo the number of slots. Value: the index of an interface that many
/// clients come in by, or `SEVERAL_SHARED`.
#[btf_map(name = "shared_ifaces")]
pub static SHARED_INTERFACES: Array<u32, { SHARED_INTERFACE_SLOTS as usize }> = Array::new();
#[btf_map(name = "masq_addresses")]
pub static MASQUERADE_SOURCES: Array<MasqueradeSources, { capacity::MASQUERADE_SOURCES }> =
    Array::new();
#[btf_map(name = "settings")]
pub static SETTINGS: Array<Settings, 1> = Array::new();
/// Names of service ports; read by the command line only.
#[btf_map(name = "names")]
pub static NAMES: HashMap<ServiceId, ServiceName, { capacity::NAMES }, ON_DEMAND> = HashMap::new();
#[btf_map(name = "counters")]
pub static COUNTERS: PerCpuArray<u64, { Counter::CAPACITY as usize }> = PerCpuArray::new();
/// Counters of backends; the index is the backend's id.
#[btf_map(name = "traffic_v4")]
pub static TRAFFIC_V4: TrafficOf = PerCpuArray::new();
#[btf_map(name = "traffic_v6")]
pub static TRAFFIC_V6: TrafficOf = PerCpuArray::new();
#[btf_map(name = "refused")]
pub static REFUSED: PerCpuHashMap<RefusedKey, u64, { capacity::REFUSED }> = PerCpuHashMap::new();
/// Tokens that limit the rate of answers to rejected packets: see `tc::reject`.
#[btf_map(name = "reject_budget")]
pub static REJECT_BUDGET: PerCpuArray<[u64; 2], 1> = PerCpuArray::new();
/// One word: see [`proxy_common::maps::generation`]. While others have taken over, known flows and
/// sockets continue, none begins, nothing is refused. Name and bits are the same in every layout.
#[btf_map(name = "drained")]
pub static DRAINED: Array<u32, 1> = Array::new();
/// Key: interface index. Value: the agent's data on an uplink with our XDP program.
#[btf_map(name = "uplinks")]
pub static UPLINKS: HashMap<u32, Uplink, { capacity::UPLINKS }> = HashMap::new();
/// Keys: the link-layer addresses of the node's interfaces, as `proxy_common::maps::interface::mac`
/// returns them.
#[btf_map(name = "macs")]
pub static MACS: HashMap<u64, u32, { capacity::MACS }> = HashMap::new();
/// Counts changes of routes, neighbours and interfaces. A next hop that was cached at an earlier
/// count is looked up again.
#[btf_map(name = "route_epoch")]
pub static ROUTE_EPOCH: Array<u32, 1> = Array::new();
/// The secrets by which tokens of outer headers are made: see [`proxy_common::carried`].
#[btf_map(name = "header_keys")]
pub static HEADER_KEYS: Array<Key, { KEYS as usize }> = Array::new();
/// Filter of `portolan trace`: see `trace`. The maps of tracing are not pinned; the command finds
/// them by the programs that use them.
#[btf_map(name = "trace_filter")]
pub static TRACE_FILTER: Array<Filter, 1> = Array::new();
#[btf_map(name = "trace_rate")]
pub static TRACE_RATE: Array<Rate, 1> = Array::new();
#[btf_map(name = "trace_lost")]
pub static TRACE_LOST: PerCpuArray<u64, { lost::COUNT as usize }> = PerCpuArray::new();
#[btf_map(name = "trace_event")]
pub static TRACE_EVENT: PerCpuArray<PacketEvent, 1> = PerCpuArray::new();
/// Events for `portolan trace`. The map takes no memory until a reader opens it.
#[btf_map(name = "trace_out")]
pub static TRACE_OUT: PerfEventArray = PerfEventArray::new();
