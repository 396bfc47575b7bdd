// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The node that is attacked: six client pods, a server pod, a client outside, and a service; and
//! who serves it: portolan with or without its running agent.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddrV4},
    path::Path,
};

use anyhow::{Context, Result};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    runtime::{Builder, Runtime},
};

use crate::{
    load::{
        manifests::{self, Port, endpoint},
        setup::{CLIENT_PARAMETERS, Setup},
    },
    node::{
        agent::{Agent, Options},
        bpffs,
        cgroup::Cgroup,
        layout::Layout,
        netns::NetNs,
        settings::SocketBalancing,
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

/// The server on this TCP port sends each byte back until the client closes.
const CLIENT_CLOSES: u16 = 8080;
/// The server on this TCP port sends one byte back and closes.
const SERVER_CLOSES: u16 = 8081;

/// The version of the Node object in the manifests that portolan reads.
const VERSION: u64 = 1;

/// The attacked node with its pods, connected; the servers in the pods answer.
pub struct World {
    pub(super) topology: Topology,
    /// A cgroup without processes: the socket hooks attached to it see no client, so every client
    /// is served on the packet path.
    cgroup: Cgroup,
    _servers: Runtime,
}

impl World {
    pub fn new() -> Result<Self> {
        bpffs::prepare()?;
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("raise the limit of open files")?;
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
        let topology = Topology::build(layout, Plumbing::Bridge)?;
        for client in topology.pods[..CLIENTS].iter().chain([&topology.outside]) {
            client.set(&CLIENT_PARAMETERS)?;
        }
        Ok(Self {
            _servers: serve(&topology.pods[CLIENTS])?,
            topology,
            cgroup: Cgroup::new()?,
        })
    }

    pub(super) fn clients(&self) -> &[NetNs] {
        &self.topology.pods[..CLIENTS]
    }
}

/// Who serves the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Proxy {
    /// portolan on the packet path.
    Portolan,
    /// The same after its agent has ended.
    PortolanAlone,
}

/// A node that a proxy serves; dropping this ends the proxy.
pub struct Served<'a> {
    pub(super) world: &'a World,
    _agent: Agent<'a>,
}

impl<'a> Served<'a> {
    /// Starts a proxy on the node and waits until it serves. `config` is portolan's, may be empty.
    pub fn start(world: &'a World, proxy: Proxy, binary: &Path, config: &str) -> Result<Self> {
        let node = &world.topology.node;
        Setup::Bare.apply(node)?;
        let options = Options {
            config,
            socket_balancing: SocketBalancing::Host,
            ..Options::new(binary, world.cgroup.path())
        };
        let objects = manifests(VERSION);
        let mut agent = Agent::start(node, &options, &objects)?;
        let started = agent.wait_for(VERSION);
        started.map_err(|error| error.context(agent.log_tail(5).join("\n")))?;
        if proxy == Proxy::PortolanAlone {
            agent.end();
        }
        Ok(Self {
            world,
            _agent: agent,
        })
    }
}

/// Returns manifests of the node, the service and its EndpointSlice.
fn manifests(version: u64) -> String {
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

/// How many clients may connect at once.
const BACKLOG: u32 = 4096;

/// Starts the servers. Dropping what is returned ends them.
fn serve(pod: &NetNs) -> Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    let threads = builder.worker_threads(2).enable_all().build();
    let runtime = threads.context("start the servers' threads")?;
    let here = runtime.enter();
    for port in [CLIENT_CLOSES, SERVER_CLOSES] {
        let listen = || -> io::Result<TcpListener> {
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseaddr(true)?;
            socket.bind((Ipv4Addr::UNSPECIFIED, port).into())?;
            socket.listen(BACKLOG)
        };
        let listener = pod.enter(listen)??;
        // The loop ends with the runtime. Every error concerns one client only, which reports it.
        tokio::spawn(async move {
            loop {
                if let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(answer(stream, port == SERVER_CLOSES));
                }
            }
        });
    }
    drop(here);
    Ok(runtime)
}

async fn answer(mut stream: TcpStream, once: bool) {
    let mut byte = [0];
    while stream.read_exact(&mut byte).await.is_ok() {
        if stream.write_all(&byte).await.is_err() || once {
            return;
        }
    }
}
