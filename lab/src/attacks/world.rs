// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The node that is attacked: six client pods, a server pod, a client outside, and a service.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use anyhow::{Context, Result};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;
use tokio::runtime::Runtime;

use super::servers::{self, CLIENT_CLOSES, SERVER_CLOSES};
use crate::{
    load::{
        manifests::{self, Port, endpoint},
        setup::CLIENT_PARAMETERS,
    },
    node::{
        bpffs,
        cgroup::Cgroup,
        layout::Layout,
        netns::NetNs,
        topology::{Plumbing, Topology},
    },
};

/// Number of client pods.
pub const CLIENTS: usize = 6;
const NODE: Ipv4Addr = Ipv4Addr::new(192, 168, 40, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 40, 1, 20);
const SERVICE: Ipv4Addr = Ipv4Addr::new(172, 30, 250, 1);

/// The client closes each connection first.
pub(super) const NODE_PORT: SocketAddrV4 = SocketAddrV4::new(NODE, 30_080);
/// The server closes each connection first.
pub(super) const NODE_PORT_SERVER_CLOSES: SocketAddrV4 = SocketAddrV4::new(NODE, 30_081);
pub(super) const CLUSTER_IP: SocketAddrV4 = SocketAddrV4::new(SERVICE, 80);

/// The attacked node with its pods, connected; the servers in the pods answer.
pub struct World {
    pub(super) topology: Topology,
    /// A cgroup without processes: the socket hooks attached to it see no client, so every client
    /// is served on the packet path.
    pub(super) cgroup: Cgroup,
    _servers: Runtime,
}

impl World {
    pub fn new(plumbing: Plumbing) -> Result<Self> {
        bpffs::prepare()?;
        raise_file_limit()?;
        let client = |last: usize| vec![IpAddr::from([10, 40, 1, 10 + last as u8])];
        let layout = Layout {
            node: vec![NODE.into()],
            pods: (0..CLIENTS)
                .map(client)
                .chain([vec![SERVER.into()]])
                .collect(),
            outside: [Ipv4Addr::new(203, 0, 113, 7).into()].into(),
            ..Layout::default()
        };
        let topology = Topology::build(layout, plumbing)?;
        for client in topology.pods[..CLIENTS].iter().chain([&topology.outside]) {
            client.set(&CLIENT_PARAMETERS)?;
        }
        let servers = servers::start(&topology.pods[CLIENTS])?;
        Ok(Self {
            topology,
            cgroup: Cgroup::new()?,
            _servers: servers,
        })
    }

    pub(super) fn clients(&self) -> &[NetNs] {
        &self.topology.pods[..CLIENTS]
    }
}

/// Returns manifests of the node, the service and its EndpointSlice.
pub(super) fn manifests(version: u64) -> String {
    let ports = [
        Port::new(("c", "TCP"), [80, CLIENT_CLOSES], Some(30_080)),
        Port::new(("s", "TCP"), [81, SERVER_CLOSES], Some(30_081)),
    ];
    let spec = json!({"type": "NodePort", "clusterIP": SERVICE});
    manifests::text(&[
        manifests::node(NODE, version),
        manifests::service("one", &ports, spec),
        manifests::slice("one", &ports, [endpoint(SERVER, "node-a")]),
    ])
}

/// Raises the limit of open files to the most that the kernel allows a process.
fn raise_file_limit() -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let allowed = std::fs::read_to_string("/proc/sys/fs/nr_open")?;
    let most = allowed.trim().parse().context("read fs.nr_open")?;
    // Raising the hard limit needs a capability that root in a container may lack.
    setrlimit(Resource::RLIMIT_NOFILE, most, most)
        .or_else(|_| setrlimit(Resource::RLIMIT_NOFILE, hard, hard))
        .context("raise the limit of open files")
}
