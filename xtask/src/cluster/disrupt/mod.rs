// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask cluster disrupt`: restarts, kills and replaces the proxy while clients on a node,
//! in a pod and outside of the nodes send requests, and counts the failed requests.

pub(super) mod client;

use std::{
    env,
    fmt::Write as _,
    process::{Child, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{
    control::{apply, kubectl, start_server},
    daemon::{self, inside, stop},
    layout::{CONTROL, NODES},
    proxy::{self, Proxy, Serving},
    tools::Tools,
};
use crate::fs;

/// How long clients run before and after each scenario's disruption.
const LEAD: Duration = Duration::from_secs(5);
const NODE_PORT: u16 = 31_080;
const NODE_PORT_UDP: u16 = 31_081;

const OBJECTS: &str = "apiVersion: apps/v1
kind: DaemonSet
metadata: {name: load-server, namespace: default}
spec:
  selector: {matchLabels: {app: load-server}}
  template:
    metadata: {labels: {app: load-server}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
        - name: server
          image: registry.k8s.io/e2e-test-images/agnhost:2.63.0
          args: [netexec, --http-port=8080, --udp-port=8081]
---
apiVersion: v1
kind: Pod
metadata: {name: load-client, namespace: default}
spec:
  nodeName: node-a
  terminationGracePeriodSeconds: 0
  containers: [{name: client, image: \"registry.k8s.io/e2e-test-images/agnhost:2.63.0\"}]
---
apiVersion: v1
kind: Service
metadata: {name: load-server, namespace: default}
spec:
  type: NodePort
  selector: {app: load-server}
  ports:
    - {name: tcp, port: 80, targetPort: 8080, nodePort: 31080, protocol: TCP}
    - {name: udp, port: 80, targetPort: 8081, nodePort: 31081, protocol: UDP}
";

/// A disruption of the proxy: its name, and what causes it while clients send requests.
type Scenario = (&'static str, fn(&Tools) -> Result<()>);

/// All scenarios, in this order: each begins with the proxy that the one before has left.
const SCENARIOS: [Scenario; 7] = [
    ("nothing", |_| Ok(())),
    ("rolling update of the DaemonSet", |tools| {
        proxy::restart(tools)?;
        proxy::wait_for_portolan(tools)
    }),
    ("its pods are killed", |tools| {
        let kill = "delete pods -l app=portolan --grace-period=0 --force";
        proxy::system(tools, kill)?;
        proxy::wait_for_portolan(tools)
    }),
    ("the API server is killed and started again", |tools| {
        stop(&CONTROL, "kube-apiserver")?;
        sleep(LEAD);
        start_server(tools)
    }),
    ("portolan gives way to kube-proxy nftables", |tools| {
        proxy::install(tools, &Serving::new(Proxy::KubeProxyNftables, ""))
    }),
    ("kube-proxy is killed and started again", |tools| {
        proxy::start_kube_proxy(tools, "nftables")
    }),
    ("kube-proxy nftables gives way to portolan", |tools| {
        proxy::install(tools, &Serving::new(Proxy::Portolan, "all"))
    }),
];

/// Runs all scenarios and prints a table. The first needs portolan, and the last ends with it.
pub(super) fn run(tools: &Tools) -> Result<()> {
    ensure!(
        proxy::current().proxy == Proxy::Portolan,
        "the first scenario needs portolan; run `cargo xtask cluster up` before"
    );
    let clients = Clients::new(tools)?;
    clients.ready()?;
    let mut rows = Vec::new();
    for (name, act) in SCENARIOS {
        eprintln!("disrupt: {name}");
        let mut took = Duration::ZERO;
        let results = clients.during(&mut || {
            let before = Instant::now();
            let done = act(tools);
            took = before.elapsed();
            done
        });
        rows.push((name, took.as_secs_f64(), results.context(name)?));
    }
    println!("{}", table(&rows));
    clients.remove()
}

/// Where each client runs, and its counts as JSON: done, failed and first error by kind of request.
pub(super) type Results = Vec<(&'static str, Value)>;

/// Adds up one count, "done" or "failed", of all clients and kinds of requests.
pub(super) fn sum(results: &Results, count: &str) -> u64 {
    let all = results.iter().flat_map(|(_, kinds)| kinds.as_object());
    let counts = all.flat_map(|kinds| kinds.values().map(|kind| &kind[count]));
    counts.filter_map(Value::as_u64).sum()
}

/// A service in the cluster, and its clients on a node, in a pod and outside of the nodes.
pub(super) struct Clients<'a> {
    tools: &'a Tools,
    address: String,
}

impl<'a> Clients<'a> {
    pub(super) fn new(tools: &'a Tools) -> Result<Self> {
        apply(tools, OBJECTS)?;
        let get = "get service load-server -o jsonpath={.spec.clusterIP}";
        let address = kubectl(tools, get)?;
        Ok(Self { tools, address })
    }

    /// Returns the service's cluster IP.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Waits until the service's servers on all nodes and the client's pod run.
    pub(super) fn ready(&self) -> Result<()> {
        let servers = "rollout status daemonset/load-server --timeout=60s";
        kubectl(self.tools, servers)?;
        let client = "wait --for=condition=Ready pod/load-client --timeout=60s";
        kubectl(self.tools, client).map(drop)
    }

    /// Runs the three clients from five seconds before `act` until five seconds after it.
    pub(super) fn during(&self, act: &mut dyn FnMut() -> Result<()>) -> Result<Results> {
        let client = |place| client(self.tools, place, &self.address);
        let clients = [
            ("process of the node", client(Where::Node)?),
            ("pod", client(Where::Pod)?),
            ("outside, by a node port", client(Where::Outside)?),
        ];
        sleep(LEAD);
        let done = act();
        sleep(LEAD);
        let mut results = Vec::new();
        for (name, mut client) in clients {
            // A client ends when its stdin is closed.
            drop(client.stdin.take());
            let output = client.wait_with_output().context("wait for a client")?;
            let counts = serde_json::from_slice(&output.stdout)
                .with_context(|| format!("{name}: {}", String::from_utf8_lossy(&output.stdout)))?;
            results.push((name, counts));
        }
        done.map(|()| results)
    }

    pub(super) fn remove(&self) -> Result<()> {
        for what in [
            "daemonset/load-server",
            "pod/load-client",
            "service/load-server",
        ] {
            kubectl(self.tools, &format!("delete {what} --wait=false"))?;
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Where {
    Node,
    Pod,
    Outside,
}

fn client(tools: &Tools, place: Where, address: &str) -> Result<Child> {
    let node = &NODES[0];
    let service = format!("{address}:80");
    let other_node = NODES[1].place.address;
    let (mut command, tcp, udp) = match place {
        Where::Node => (inside(&node.place)?, service.clone(), service),
        Where::Pod => {
            let id = "jsonpath={.status.containerStatuses[0].containerID}";
            let id = kubectl(tools, &format!("get pod load-client -o {id}"))?;
            let id = id.trim_start_matches("containerd://");
            let cgroup = node.place.cgroup()?.join("k8s.io").join(id);
            let members = fs::read_to_string(cgroup.join("cgroup.procs"))?;
            let process = members.lines().next().context("the pod has no process")?;
            let command = daemon::inside_of(&cgroup, &[format!("--net=/proc/{process}/ns/net")]);
            (command, service.clone(), service)
        }
        Where::Outside => (
            inside(&CONTROL)?,
            format!("{other_node}:{NODE_PORT}"),
            format!("{other_node}:{NODE_PORT_UDP}"),
        ),
    };
    command
        .arg(env::current_exe().context("find this program")?)
        .args(["cluster", "client", "--tcp", &tcp, "--udp", &udp])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("start a client")
}

fn table(rows: &[(&str, f64, Results)]) -> String {
    let kinds = [
        "new connections",
        "open connections",
        "new sockets",
        "open sockets",
    ];
    let mut text =
        "| what happens | took | client | new connections failed | open connections broken | answers lost by new sockets | by open sockets |\n| --- | ---: | --- | ---: | ---: | ---: | ---: |\n"
            .to_owned();
    for (name, seconds, results) in rows {
        for (place, counts) in results {
            let cells = kinds.map(|kind| {
                let count = &counts[kind];
                format!("{} of {}", count["failed"], count["done"])
            });
            let cells = cells.join(" | ");
            _ = writeln!(text, "| {name} | {seconds:.1} s | {place} | {cells} |");
            for kind in kinds {
                if let Some(error) = counts[kind]["error"].as_str() {
                    eprintln!("{name}, {place}, {kind}: {error}");
                }
            }
        }
    }
    text
}
