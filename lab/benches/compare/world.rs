// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The nodes that are compared, equal except for the proxy. Each has a pod with the client and two
//! pods with servers, a pod on another node, and a client outside. Also a few services with their
//! objects, which the proxies serve in addition to the many.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::json;

use lab::{
    load::{
        manifests::{self, Port, endpoint},
        proxy::Proxy,
        records::{PORT, TARGETS},
        server::{self, Sink},
        setup::{CLIENT_PARAMETERS, Setup, config},
    },
    node::{
        agent::{Agent, Options},
        cgroup::Cgroup,
        kube_proxy::{CLUSTER_CIDR, KubeProxy},
        layout::Layout,
        netns::NetNs,
        topology::{Plumbing, Topology},
    },
};

use crate::plan::{Cell, Measure, Program};

pub(crate) const NODE: Ipv4Addr = Ipv4Addr::new(192, 168, 40, 2);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 40, 1, 10);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 40, 1, 20);
const REMOTE: Ipv4Addr = Ipv4Addr::new(10, 40, 2, 10);
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);

/// The names that the servers in the two pods answer with.
pub(crate) const NAMES: [u8; 2] = [20, 21];
/// The port at which the pods of the many services answer clients that call them directly.
pub(crate) const PORT_DIRECTLY: u16 = PORT + 1;
/// Ports of the servers behind the services, and other ports (`DIRECTLY`) for direct calls, so that
/// no two connections have the same addresses and ports.
const ECHO: u16 = PORT + 10;
const ECHO_DIRECTLY: u16 = PORT + 11;
const CROWD: u16 = PORT + 20;
const CROWD_DIRECTLY: u16 = PORT + 21;
const SINK: u16 = PORT + 30;
const SINK_DIRECTLY: u16 = PORT + 31;
const NODE_PORT_CROWD: u16 = 30_003;
const NODE_PORT_LOCAL: u16 = 30_001;
const NODE_PORT_REMOTE: u16 = 30_002;

const fn at(address: Ipv4Addr, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(address), port)
}

/// Returns the destinations of an operation: a pod's own address, for calls without a service, and
/// the service's: a cluster IP, for the sinks a node port.
pub(crate) const fn destinations(measure: Measure) -> [SocketAddr; 2] {
    match measure {
        Measure::Crowd => [at(SERVER, CROWD_DIRECTLY), at(cluster_ip(2), 80)],
        Measure::NodePortCrowd => [at(SERVER, CROWD_DIRECTLY), at(NODE, NODE_PORT_CROWD)],
        Measure::NodePortLocal => [at(SERVER, SINK_DIRECTLY), at(NODE, NODE_PORT_LOCAL)],
        Measure::NodePortRemote => [at(REMOTE, SINK_DIRECTLY), at(NODE, NODE_PORT_REMOTE)],
        _ => [at(SERVER, ECHO_DIRECTLY), at(cluster_ip(1), 53)],
    }
}

/// Returns the services of [`destinations`] and their EndpointSlices, as manifests.
pub(crate) fn objects() -> String {
    let (tcp, udp) = (("tcp", "TCP"), ("udp", "UDP"));
    let echo = [tcp, udp].map(|names| Port::new(names, [53, ECHO], None));
    let crowd = [Port::new(tcp, [80, CROWD], Some(NODE_PORT_CROWD))];
    let sink = [Port::new(udp, [80, SINK], Some(NODE_PORT_LOCAL))];
    let far = [Port::new(udp, [80, SINK], Some(NODE_PORT_REMOTE))];
    let (here, elsewhere) = ((SERVER, "node-a"), (REMOTE, "node-b"));
    let services = [
        (1, "echo", "ClusterIP", &echo[..], here),
        (2, "crowd", "NodePort", &crowd[..], here),
        (4, "sink", "NodePort", &sink[..], here),
        (5, "far", "NodePort", &far[..], elsewhere),
    ];
    let objects = services.map(|(number, name, kind, ports, (pod, node))| {
        let spec = json!({"type": kind, "clusterIP": cluster_ip(number)});
        [
            manifests::service(name, ports, spec),
            manifests::slice(name, ports, [endpoint(pod, node)]),
        ]
    });
    manifests::text(objects.as_flattened())
}

const fn cluster_ip(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(172, 30, 250, number)
}

/// Paths of the proxies' programs.
pub(crate) struct Programs {
    pub(crate) portolan: PathBuf,
    pub(crate) kube_proxy: PathBuf,
}

/// One node with its pods and the hosts around it. Servers run in the pods.
pub(crate) struct World {
    pub(crate) topology: Topology,
    pub(crate) cgroup: Cgroup,
    sinks: [Sink; 4],
}

impl World {
    pub(crate) fn new(plumbing: Plumbing) -> Result<Self> {
        let [first, second] = TARGETS.map(str::parse::<IpAddr>);
        let layout = Layout {
            node: vec![NODE.into()],
            pods: vec![vec![CLIENT.into()], vec![first?], vec![second?]],
            remote: [REMOTE.into()].into(),
            outside: [OUTSIDE.into()].into(),
            ..Layout::default()
        };
        let topology = Topology::build(layout, plumbing)?;
        topology.node.ip("link set lo up\n")?;
        for client in [&topology.pods[0], &topology.outside] {
            client.set(&CLIENT_PARAMETERS)?;
        }
        let cgroup = Cgroup::new()?;
        for (pod, name) in topology.pods[1..].iter().zip(NAMES) {
            server::serve(pod, &cgroup, &[PORT, PORT_DIRECTLY], name)?;
        }
        let pod = &topology.pods[1];
        server::serve(pod, &cgroup, &[ECHO, ECHO_DIRECTLY], NAMES[0])?;
        for port in [CROWD, CROWD_DIRECTLY] {
            server::serve_many(pod, &cgroup, port, NAMES[0])?;
        }
        let sinks = [
            Sink::new(pod, SINK)?,
            Sink::new(pod, SINK_DIRECTLY)?,
            Sink::new(&topology.remote, SINK)?,
            Sink::new(&topology.remote, SINK_DIRECTLY)?,
        ];
        Ok(Self {
            topology,
            cgroup,
            sinks,
        })
    }

    /// Removes the rules of an earlier proxy, which kube-proxy leaves however it ends, and the
    /// connections that conntrack knows: they would apply to later ones from the same ports.
    pub(crate) fn set_up(&self, setup: Setup) -> Result<()> {
        setup.apply(self.node())?;
        self.node().feed("conntrack", &["-F"], "").map(drop)
    }

    /// Starts the cell's proxy, which reads the objects of the API server of a kubeconfig.
    pub(crate) fn start(&self, cell: &Cell, programs: &Programs, file: &Path) -> Result<Proxy<'_>> {
        let node = self.node();
        Ok(match cell.proxy.program() {
            Program::None => Proxy::None,
            Program::Portolan(socket_balancing, forwarding) => {
                let options = Options {
                    cluster_cidrs: &[CLUSTER_CIDR.parse().context("a range")?],
                    config: &config(forwarding),
                    socket_balancing,
                    kubeconfig: Some(file),
                    ..Options::new(&programs.portolan, self.cgroup.path())
                };
                Proxy::Portolan(Agent::start(node, &options, "")?)
            }
            Program::KubeProxy(mode, period) => {
                let program = &programs.kube_proxy;
                let started = KubeProxy::start(node, program, mode, period, file)?;
                Proxy::KubeProxy(started)
            }
        })
    }

    pub(crate) fn node(&self) -> &NetNs {
        &self.topology.node
    }
    pub(crate) fn client(&self) -> &NetNs {
        &self.topology.pods[0]
    }

    /// Empties the sinks. Returns how many datagrams they had received in total.
    pub(crate) fn empty_sinks(&self) -> u32 {
        self.sinks.iter().map(Sink::empty).sum()
    }
}
