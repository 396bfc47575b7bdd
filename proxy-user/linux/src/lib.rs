// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the agent needs of Linux and aya lacks. In: descriptors, paths, plain values. Out: BPF maps
//! by element, batch and memory; pins, links, test runs; sockets, connections, rules and interfaces
//! by netlink. The only crate in `proxy-user` with unsafe code; its functions are safe to call. The
//! crate knows nothing of services.
#![expect(
    unsafe_code,
    reason = "bpf(2) and mmap(2) take pointers, and shared types are passed as bytes"
)]

mod answers;
mod bpf;
mod btf;
mod clock;
mod conntrack;
pub mod glob;
pub mod interfaces;
mod iptables;
mod kernel_types;
mod links;
mod mapping;
mod maps;
pub mod namespaces;
mod netfilter_hooks;
mod netlink;
mod nft_own;
mod nft_trace;
mod nftables;
mod per_cpu;
mod plain;
mod route;
mod routing;
mod sock_diag;
pub mod tables;
mod tc;
mod test_run;
#[doc(hidden)]
pub mod testing;
mod xdp;

pub use answers::{none_if, text};
pub use bpf::{describe_program, get_pinned, pin, program_id, program_name, wait_for_programs};
pub use btf::{Members, members_of};
pub use clock::{monotonic, now, trim_heap};
pub use conntrack::{Tracked, Tuple, tracked};
pub use iptables::{has_legacy_tables, legacy_drops, legacy_masquerades_marked};
pub use kernel_types::{KernelFunctions, KernelTypes, kernel_types};
pub use links::{
    LinkInfo, attach_cgroup, attach_tcx, attach_xdp, cgroup_programs, detach, link_info, replace,
    tcx,
};
pub use mapping::{Mapping, Word};
pub use maps::{
    MMAPABLE, MapInfo, MapKind, NO_PREALLOC, create_bytes, create_map, each_raw, empty_map,
    lookup_one, map_info, possible_cpus,
};
pub use namespaces::{PodNamespace, network_namespace, own_namespace_inode};
pub use netfilter_hooks::{
    UNACKNOWLEDGED, Unsuited, conntrack_misses_bridges, conntrack_unsuited, has_ipvs_services,
    tracks_forwarded,
};
pub use nft_own::{
    OwnRule, comments, end_translations, forward_chains, has_translations, keep_translations,
};
pub use nft_trace::{NftTrace, NftTraced, NftVerdict, TracedTuple};
pub use nftables::{NftChain, nft_chains};
pub use per_cpu::{PerCpu, per_cpu_add, per_cpu_sums};
pub use plain::{LpmKey, Plain};
pub use route::{Incoming, LinkFacts, Routed, ask_neighbour, has_link, link, route};
pub use routing::{RoutingRule, has_xfrm_policies, routing_rules};
pub use sock_diag::{ConnectedSocket, close_tcp, close_udp, socket_inodes};
pub use tc::{Filter, filter_qdiscs, filters, has_filters, remove_clsact};
pub use test_run::{TestRun, test_run};
pub use xdp::{attached_xdp, has_lro, takes_redirected};
