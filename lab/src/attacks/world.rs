// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The node that is attacked: a client pod, an attacker's and a server's, a host outside, and a
//! service that portolan serves.

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
        setup::Setup,
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

const NODE: Ipv4Addr = Ipv4Addr::new(192, 168, 40, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 40, 1, 20);
const SERVICE: Ipv4Addr = Ipv4Addr::new(172, 30, 250, 1);
/// The server on this TCP port sends each byte back.
const PORT: u16 = 8080;

pub const NODE_PORT: SocketAddrV4 = SocketAddrV4::new(NODE, 30_080);
pub const CLUSTER_IP: SocketAddrV4 = SocketAddrV4::new(SERVICE, 80);

/// The version of the Node object in the manifests that portolan reads.
const VERSION: u64 = 1;

/// The attacked node with its pods, connected; the server in its pod answers.
pub struct World {
    /// The pods are the client's, the attacker's and the server's.
    pub topology: Topology,
    /// A cgroup without processes: the socket hooks attached to it see no client, so every client
    /// is served on the packet path.
    cgroup: Cgroup,
    _server: Runtime,
}

impl World {
    pub fn new() -> Result<Self> {
        bpffs::prepare()?;
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("raise the limit of open files")?;
        let pods = [10_u8, 11, 20].map(|last| vec![IpAddr::from([10, 40, 1, last])]);
        let layout = Layout {
            node: vec![NODE.into()],
            pods: pods.into(),
            outside: [Ipv4Addr::new(203, 0, 113, 7).into()].into(),
            ..Layout::default()
        };
        let topology = Topology::build(layout, Plumbing::Bridge)?;
        Ok(Self {
            _server: serve(&topology.pods[2])?,
            topology,
            cgroup: Cgroup::new()?,
        })
    }

    /// Starts portolan with this configuration, and waits until it serves. `alone`: its agent has
    /// ended then.
    pub fn start(&self, binary: &Path, config: &str, alone: bool) -> Result<Agent<'_>> {
        let node = &self.topology.node;
        Setup::Bare.apply(node)?;
        let options = Options {
            config,
            socket_balancing: SocketBalancing::Host,
            ..Options::new(binary, self.cgroup.path())
        };
        let mut agent = Agent::start(node, &options, &manifests())?;
        let started = agent.wait_for(VERSION);
        started.map_err(|error| error.context(agent.log_tail(5).join("\n")))?;
        if alone {
            agent.end();
        }
        Ok(agent)
    }
}

/// Returns manifests of the node, the service and its EndpointSlice.
fn manifests() -> String {
    let ports = [Port::new(("c", "TCP"), [80, PORT], Some(30_080))];
    let spec = json!({"type": "NodePort", "clusterIP": SERVICE});
    manifests::text(&[
        manifests::node(NODE, VERSION),
        manifests::service("one", &ports, spec),
        manifests::slice("one", &ports, [endpoint(SERVER, "node-a")]),
    ])
}

/// How many clients may connect at once.
const BACKLOG: u32 = 4096;

/// Starts the server. Dropping what is returned ends it.
fn serve(pod: &NetNs) -> Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    let threads = builder.worker_threads(2).enable_all().build();
    let runtime = threads.context("start the server's threads")?;
    let here = runtime.enter();
    let listen = || -> io::Result<TcpListener> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind((Ipv4Addr::UNSPECIFIED, PORT).into())?;
        socket.listen(BACKLOG)
    };
    let listener = pod.enter(listen)??;
    // The loop ends with the runtime. Every error concerns one client only, which reports it.
    tokio::spawn(async move {
        loop {
            if let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream));
            }
        }
    });
    drop(here);
    Ok(runtime)
}

async fn answer(mut stream: TcpStream) {
    let mut byte = [0];
    while stream.read_exact(&mut byte).await.is_ok() {
        if stream.write_all(&byte).await.is_err() {
            return;
        }
    }
}
