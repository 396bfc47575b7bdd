// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node with a client, a pod, an API server and an agent. What happens on it makes every series
//! of the agent's metrics appear.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    thread::{self, sleep},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use ipnet::IpNet;
use k8s_openapi::jiff::Timestamp;
use lab::node::{
    agent::{Agent, Manifests, Options},
    api_server::ApiServer,
    cgroup::Cgroup,
    http,
    netns::NetNs,
    options::HEALTH,
    pod::plug,
    settings::SocketBalancing,
};

const PATIENCE: Duration = Duration::from_secs(120);
const NODE: &str = "10.40.0.1";
const POD: &str = "10.40.1.20";
const CLIENT: &str = "10.40.1.10";
const SERVICE: &str = "172.30.1.1:80";

const OBJECTS: &str = "
apiVersion: v1
kind: Node
metadata: {name: node-a}
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: default}
spec: {clusterIP: 172.30.1.1, clusterIPs: [172.30.1.1], ports: [{port: 80, targetPort: 8080}]}
";

/// Returns the service's EndpointSlice, as if its pod had changed just now.
fn slice() -> String {
    format!(
        "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: cart-a
  namespace: default
  labels: {{kubernetes.io/service-name: cart}}
  annotations: {{endpoints.kubernetes.io/last-change-trigger-time: \"{}\"}}
addressType: IPv4
endpoints: [{{addresses: [{POD}], nodeName: node-a, conditions: {{ready: true}}}}]
ports: [{{name: \"\", port: 8080, protocol: TCP}}]
",
        Timestamp::now()
    )
}

pub(crate) struct World<'a> {
    node: &'a NetNs,
    client: NetNs,
    _pod: NetNs,
    server: ApiServer<'a>,
    agent: Option<Agent<'a>>,
    cgroup: Cgroup,
}

impl<'a> World<'a> {
    pub(crate) fn node() -> Result<NetNs> {
        let node = NetNs::new("node")?;
        node.ip(&format!("link set lo up\naddress add {NODE}/32 dev lo\n"))?;
        node.set(&[
            ("ipv4/ip_forward", "1"),
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv6/conf/all/forwarding", "1"),
        ])?;
        Ok(node)
    }

    /// Starts an agent while its API server does not run, and waits until /healthz reports that.
    pub(crate) fn build(node: &'a NetNs, binary: &Path) -> Result<Self> {
        let [client, pod] = [NetNs::new("client")?, NetNs::new("pod")?];
        plug(node, &client, &[CLIENT])?;
        plug(node, &pod, &[POD])?;
        let listener = pod.enter(|| TcpListener::bind((POD, 8080)))??;
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                _ = stream.write_all(b"!");
            }
        });
        let mut server = ApiServer::start(node, NODE)?;
        server.apply(OBJECTS)?;
        let status =
            format!(r#"{{"status":{{"addresses":[{{"type":"InternalIP","address":"{NODE}"}}]}}}}"#);
        let patch = ["patch", "node", "node-a", "--subresource=status"];
        let how = ["--type=merge", "--patch", &status];
        server.kubectl(&[&patch[..], &how].concat())?;
        server.kill();

        let cgroup = Cgroup::new()?;
        let pods: [IpNet; 1] = ["10.40.0.0/16".parse()?];
        let kubeconfig = server.kubeconfig();
        let options = Options {
            binary,
            node_name: "node-a",
            cluster_cidrs: &pods,
            config: "",
            socket_balancing: SocketBalancing::All,
            kubeconfig: Some(&kubeconfig),
            cgroup_root: cgroup.path(),
        };
        let agent = Agent::start(node, &options, &Manifests::Text(""))?;
        let world = Self {
            node,
            client,
            _pod: pod,
            server,
            agent: Some(agent),
            cgroup,
        };
        world.wait_for_health(503)?;
        Ok(world)
    }

    /// Starts the API server again, and waits until a client reaches the service on the packet
    /// path.
    pub(crate) fn serve(&mut self) -> Result<()> {
        self.server.revive()?;
        self.wait_for_health(200)?;
        self.server.apply(&slice())?;
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = self.connect() {
            ensure!(Instant::now() < deadline, "the service: {error:#}");
            sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    /// For `time`, makes connections on the packet path and at sockets, some of them rejected, and
    /// changes the service's endpoints.
    pub(crate) fn have_load(&self, time: Duration) -> Result<()> {
        let begin = Instant::now();
        let nobody = "172.30.1.1:81".parse()?;
        for round in 0_u32.. {
            if begin.elapsed() > time {
                break;
            }
            self.connect()?;
            let of_node = || self.node.enter(|| TcpStream::connect(SERVICE));
            self.cgroup.inside(of_node)???;
            let refused = || TcpStream::connect_timeout(&nobody, Duration::from_secs(1));
            if round % 3 == 0 && self.client.enter(refused)?.is_ok() {
                bail!("somebody serves {nobody}");
            }
            if round % 50 == 0 {
                self.server.apply(&slice())?;
            }
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Ends the agent; its programs and maps stay in the kernel.
    pub(crate) fn end_agent(&mut self) {
        if let Some(agent) = &mut self.agent {
            agent.end();
        }
    }

    /// Connects to the service with a socket that the socket hooks do not see: this thread is not
    /// in the cgroup of the node.
    fn connect(&self) -> Result<()> {
        let to = SERVICE.parse()?;
        let patience = Duration::from_secs(2);
        let stream = self
            .client
            .enter(|| TcpStream::connect_timeout(&to, patience))?;
        let mut answer = [0; 1];
        stream?.read_exact(&mut answer).context("an answer")
    }

    fn wait_for_health(&self, wanted: u16) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = http::get(self.node, HEALTH.ip(), HEALTH, "/healthz");
            if answer.as_ref().is_ok_and(|(status, _)| *status == wanted) {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "/healthz does not become {wanted}: {answer:?}"
            );
            sleep(Duration::from_millis(100));
        }
    }
}
