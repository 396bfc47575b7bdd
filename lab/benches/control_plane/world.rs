// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node with a client's pod and a server's pod. The server has two addresses and answers with the
//! one that was called.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use lab::{
    load::records::{PORT, TARGETS},
    node::{cgroup::Cgroup, netns::NetNs, pod::plug},
};

const PATIENCE: Duration = Duration::from_secs(120);
const CONNECT: Duration = Duration::from_millis(100);

pub(crate) struct World {
    node: NetNs,
    client: NetNs,
    _server: NetNs,
    cgroup: Cgroup,
}

impl World {
    pub(crate) fn build() -> Result<Self> {
        let [node, client, server] = ["node", "client", "server"].map(NetNs::new);
        let (node, client, server) = (node?, client?, server?);
        node.ip("link set lo up\naddress add 10.40.0.1/32 dev lo\n")?;
        node.set(&[("ipv4/ip_forward", "1"), ("ipv4/conf/all/rp_filter", "0")])?;
        plug(&node, &client, &["10.40.1.10"])?;
        plug(&node, &server, &TARGETS)?;
        let listener = server.enter(|| TcpListener::bind(("0.0.0.0", PORT)))??;
        thread::spawn(move || listener.incoming().flatten().for_each(answer));
        Ok(Self {
            node,
            client,
            _server: server,
            cgroup: Cgroup::new()?,
        })
    }

    pub(crate) fn node(&self) -> &NetNs {
        &self.node
    }
    pub(crate) fn cgroup(&self) -> &Path {
        self.cgroup.path()
    }

    /// Waits until a service answers.
    pub(crate) fn wait_for_answer(&self, to: SocketAddr) -> Result<()> {
        self.until(to, |_| true)
    }
    /// Waits until a service answers and the answering pod's address is `TARGETS[target]`.
    pub(crate) fn wait_for(&self, to: SocketAddr, target: usize) -> Result<()> {
        let wanted: IpAddr = TARGETS[target].parse().context("an address")?;
        self.until(to, |by| by == wanted)
    }
    fn until(&self, to: SocketAddr, wanted: impl Fn(IpAddr) -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        self.client.enter(|| {
            loop {
                match ask(to) {
                    Ok(by) if wanted(by) => return Ok(()),
                    // A pause: the agent and the server need the processors as well.
                    _ => thread::sleep(Duration::from_micros(200)),
                }
                if Instant::now() > deadline {
                    bail!("{to} does not answer as it should");
                }
            }
        })?
    }
}

/// Connects to a service and returns the address by which it called the pod.
fn ask(to: SocketAddr) -> Result<IpAddr> {
    let mut stream = TcpStream::connect_timeout(&to, CONNECT)?;
    stream.set_read_timeout(Some(CONNECT))?;
    let mut by = String::new();
    stream.read_to_string(&mut by)?;
    Ok(by.parse()?)
}

fn answer(mut stream: TcpStream) {
    if let Ok(own) = stream.local_addr() {
        // It does not matter if the client has gone.
        _ = stream.write_all(own.ip().to_string().as_bytes());
    }
}
