// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Settings under kube-proxy's names, from a file and from flags that override it. Read `table`
//! first: each setting has one entry there. `cli::run` builds the `Config`, and `agent` uses it.
#![deny(unsafe_code)]

mod choices;
mod file;
mod follow;
mod kernel;
mod raw;
pub mod runbooks;
pub mod setting;
pub mod table;
pub mod telemetry;
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
mod values;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use control::{
    model::{ClientAddress, Selection},
    object::{ObjectName, Warning},
};
use datapath::{Capacities, DEFAULT_PIN_DIR, maps::sizes_for};
use ipnet::IpNet;
use nix::{
    sys::sysinfo::sysinfo,
    unistd::{SysconfVar, sysconf},
};
use proxy_common::{
    flow::IdleTimes,
    masquerade::{Marks, PortRanges},
};

use crate::telemetry::LogFormat;

pub use choices::{
    Forwarding, GoneEndpoints, LocalDetection, Masquerade, Mode, NodePortAddresses,
    SocketBalancing, UnallocatedClusterIps, Xdp,
};
pub use file::{document, render};
pub use follow::{ConfigFile, waits_for_start};
pub use kernel::{Conntrack, set_allocated, set_pods};
pub use raw::RawConfig;
pub use values::{boolean, duration, integer};

/// Where a setting's value comes from, unless it is the default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    Flag,
    File,
}

/// The checked settings of the agent. docs/settings.md says what each of them does.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    pub mode: Mode,
    pub cluster_cidr: Vec<IpNet>,
    pub hostname_override: Option<String>,
    /// Only Services whose label `service.kubernetes.io/service-proxy-name` has this value are
    /// served; without it, those without the label.
    pub service_proxy_name: Option<String>,
    pub masquerade_all: bool,
    pub node_port_addresses: NodePortAddresses,
    /// Whether node ports are also served on IPv4 loopback addresses.
    pub localhost_node_ports: bool,
    pub local_detection: LocalDetection,
    pub idle_times: IdleTimes,
    /// The settings of the node's nf_conntrack, which `portolan init` applies.
    pub conntrack: Conntrack,
    /// KUBE: the node's own address of this family; 0.0.0.0 and :: only say the family. The family
    /// decides the defaults of the two addresses below.
    pub bind_address: IpAddr,
    /// Whether the agent ends if the port of one of the two addresses below is taken.
    pub bind_address_hard_fail: bool,
    pub metrics_bind_address: SocketAddr,
    pub healthz_bind_address: SocketAddr,
    /// Where the kubelet's probes are answered.
    pub probe_bind_address: Option<SocketAddr>,
    pub pin_directory: PathBuf,
    /// After how many seconds without an agent the programs give way to others; 0: never.
    pub abandoned_after: u32,
    pub socket_balancing: SocketBalancing,
    pub socket_exceptions: Vec<String>,
    pub unallocated_cluster_ips: UnallocatedClusterIps,
    pub answer_ping: bool,
    /// Whether link-local addresses of services are served.
    pub serve_link_local: bool,
    /// Whether the objects of the Gateway API are served.
    pub gateway_api: bool,
    /// Whether Services of type LoadBalancer are made for Gateways without addresses.
    pub gateway_services: bool,
    /// How a new flow gets its backend, for services whose annotation does not say it.
    pub selection: Selection,
    /// What endpoints see of clients that are masqueraded, for services whose annotation does not
    /// say it.
    pub client_address: ClientAddress,
    /// The file with the keys of outer headers; without it every such client is masqueraded.
    pub client_address_keys: Option<PathBuf>,
    /// The UDP port of outer headers.
    pub client_address_port: u16,
    /// The Service whose endpoints are the agents that take outer headers off.
    pub agents_service: Option<ObjectName>,
    /// What becomes of connections to an endpoint whose pod is gone.
    pub gone_endpoints: GoneEndpoints,
    /// Addresses at which processes of this node answer, although no interface has them.
    pub own_addresses: Vec<IpAddr>,
    pub interfaces: Vec<String>,
    pub masquerade: Masquerade,
    pub forwarding: Forwarding,
    pub xdp: Xdp,
    /// Name patterns of the interfaces that get XDP; if there are none, the uplinks get it.
    pub xdp_interfaces: Vec<String>,
    /// Whether portolan's own rules accept forwarded packets that the firewall's policy would drop.
    pub accept_forward: bool,
    pub masquerade_ports: PortRanges,
    /// The bits that mark packets: to masquerade (KUBE: `masqueradeBit`), and to drop at egress.
    pub marks: Marks,
    /// The sizes of the maps. A size of 0 is chosen by the size of the machine.
    pub capacities: Capacities,
    /// The limit of kernel memory for maps, in MiB; 0 for a quarter of the machine's memory.
    pub map_memory: u32,
    pub log_level: String,
    pub log_format: LogFormat,
    pub log_packets: bool,
    /// How many services have metrics of their own.
    pub services_with_metrics: u32,
    /// Whether warnings about Services and EndpointSlices become Kubernetes events.
    pub object_events: bool,
    pub kubeconfig: Option<PathBuf>,
    /// kube-proxy's settings that are given in the file or as flags but have no effect in portolan.
    pub unused: Vec<String>,
    /// Flags that are given but have no effect, because there is a configuration file.
    pub ignored_flags: Vec<String>,
    /// Warnings about keys of the file that are unknown or given twice.
    pub ignored: Vec<Warning>,
    /// For each given setting, by its key, whether the file or a flag gives it.
    pub sources: BTreeMap<&'static str, Source>,
    /// Flag only: the node's addresses, used if its Node object has no InternalIP.
    pub node_ips: Vec<IpAddr>,
    /// Flag only: the root of the cgroup2 hierarchy.
    pub cgroup_root: Option<PathBuf>,
}

/// The default of [`Config::client_address_port`].
const HEADER_PORT: u16 = 6099;

impl Config {
    /// Returns the UDP port of outer headers; None if this node neither puts one on nor takes one
    /// off. With `masquerade: mark` the node's rules replace the client's address before a header
    /// could keep it.
    pub fn header_port(&self) -> Option<u16> {
        let has_keys = self.client_address_keys.is_some();
        (has_keys && self.masquerade == Masquerade::Full).then_some(self.client_address_port)
    }
    /// Returns what endpoints see of clients that are masqueraded, for services whose annotation
    /// does not say it; None if this node puts no outer headers on.
    pub fn client_addresses(&self) -> Option<ClientAddress> {
        self.header_port().map(|_| self.client_address)
    }
    /// Whether another proxy serves this node, too: the agent serves only the Services of one proxy
    /// name. What it does not know is the other's. Its servers are off (port 0) unless they are
    /// given addresses, because the other proxy has the usual ones.
    pub fn is_canary(&self) -> bool {
        self.service_proxy_name.is_some()
    }
    /// Returns the initial sizes of the maps.
    pub fn sizes(&self) -> Capacities {
        let mut sizes = self.capacities.or(sizes_for(memory()));
        sizes.flows_v6 = sizes.flows;
        sizes
    }
    /// Returns the limits of kernel memory, in bytes: for the maps, and for the flow tables alone.
    pub fn map_memory_limits(&self) -> [u64; 2] {
        match u64::from(self.map_memory) << 20 {
            0 => [memory() / 4, 1 << 30],
            limit => [limit; 2],
        }
    }
}

/// Returns the number of the machine's processors, also of those that the agent may not use.
pub fn processors() -> u32 {
    let online = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    let online = online.and_then(|count| u32::try_from(count).ok());
    online.unwrap_or(1)
}

/// Returns the machine's memory in bytes. If the kernel does not report it, there is no limit.
fn memory() -> u64 {
    sysinfo().map_or(u64::MAX, |machine| machine.ram_total())
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            cluster_cidr: Vec::new(),
            hostname_override: None,
            masquerade_all: false,
            node_port_addresses: NodePortAddresses::Every,
            localhost_node_ports: true,
            local_detection: LocalDetection::None,
            idle_times: IdleTimes::DEFAULT,
            conntrack: Conntrack::default(),
            bind_address: Ipv4Addr::UNSPECIFIED.into(),
            bind_address_hard_fail: false,
            metrics_bind_address: (Ipv4Addr::LOCALHOST, 10249).into(),
            healthz_bind_address: (Ipv4Addr::UNSPECIFIED, 10256).into(),
            probe_bind_address: None,
            pin_directory: DEFAULT_PIN_DIR.into(),
            abandoned_after: 6 * 3600,
            socket_balancing: SocketBalancing::default(),
            socket_exceptions: Vec::new(),
            unallocated_cluster_ips: UnallocatedClusterIps::default(),
            answer_ping: false,
            serve_link_local: false,
            gateway_api: false,
            gateway_services: false,
            selection: Selection::default(),
            client_address: ClientAddress::default(),
            client_address_keys: None,
            client_address_port: HEADER_PORT,
            agents_service: None,
            gone_endpoints: GoneEndpoints::default(),
            own_addresses: Vec::new(),
            interfaces: Vec::new(),
            masquerade: Masquerade::default(),
            forwarding: Forwarding::default(),
            xdp: Xdp::default(),
            xdp_interfaces: Vec::new(),
            accept_forward: false,
            masquerade_ports: PortRanges::DEFAULT,
            marks: Marks::DEFAULT,
            capacities: Capacities::unset(),
            map_memory: 0,
            log_level: "info".to_owned(),
            log_format: LogFormat::default(),
            log_packets: false,
            services_with_metrics: 1_000,
            object_events: true,
            kubeconfig: None,
            unused: Vec::new(),
            ignored_flags: Vec::new(),
            ignored: Vec::new(),
            sources: BTreeMap::new(),
            node_ips: Vec::new(),
            service_proxy_name: None,
            cgroup_root: None,
        }
    }
}

/// Why the settings cannot be used, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration file {path}; check the path given to --config")]
    Unreadable {
        path: String,
        #[source]
        source: std::io::Error,
    },
    #[error("configuration file {path}, line {line}: {reason}; correct the file")]
    Malformed {
        path: String,
        line: u64,
        reason: String,
    },
    #[error("{key}: {value:?} {remedy}")]
    Invalid {
        key: &'static str,
        value: String,
        remedy: String,
    },
}
