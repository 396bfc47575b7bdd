// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Three real API servers of one etcd, each killed, hung and cut off in turn, and two at once: an
//! agent and many sources go on with changes, and what they ask of the others stays small.

use std::{
    fs,
    path::{Path, PathBuf},
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use control::{
    change::{Batch, Change},
    model::{Converter, Object},
};
use lab::node::{
    api_server::{AGENTS_ACCOUNT, ApiServer, requests},
    netns::NetNs,
};
use nix::sys::signal::Signal;
use source::{
    ObjectSource,
    api_server::{Access, ApiServer as Source},
};
use tokio::{runtime, sync::mpsc, task::JoinSet, time::sleep};

use crate::{
    agent::{Agent, send_signal},
    cluster::LIMIT,
    connection::beside,
    objects::{NAMESPACE, Service},
    server::Server,
    world::World,
};

/// The node's addresses, one for each server.
const ADDRESSES: [&str; 3] = ["10.40.0.1", "10.40.0.2", "10.40.0.3"];
/// How many sources follow the servers, each as of an agent of its own.
const SOURCES: u8 = 60;
/// How many of them each server that answers has at least: each source draws its next one.
const SHARE: usize = 5;

/// How a server fails.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Killed,
    Hung,
    CutOff,
}

impl Fault {
    fn begin(self, world: &World, server: &mut Server<'_>, address: &str) {
        match self {
            Self::Killed => server.0.kill(),
            Self::Hung => send_signal(server.0.pid(), Signal::SIGSTOP).expect("it runs"),
            Self::CutOff => world.nft(&format!(
                "table inet cut {{\n chain in {{ type filter hook input priority 0;\n\
                 ip saddr {address} tcp sport 6443 drop\n ip daddr {address} tcp dport 6443 drop\n }}\n}}\n"
            )),
        }
    }

    fn end(self, world: &World, server: &mut Server<'_>) {
        match self {
            Self::Killed => server.0.revive().expect("it is back"),
            Self::Hung => send_signal(server.0.pid(), Signal::SIGCONT).expect("it runs"),
            Self::CutOff => world.nft("delete table inet cut\n"),
        }
    }
}

/// Follows the servers with all sources until `done`; `seen` has the newest change of each.
fn follow(node: &NetNs, kubeconfig: &Path, seen: &Arc<[AtomicU32]>, done: &AtomicBool) {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let work = async {
        let mut tasks = JoinSet::new();
        for number in 0..SOURCES {
            let masters = ADDRESSES.map(|address| format!("https://{address}:6443"));
            let access = Access::new(Some(kubeconfig.to_owned()), masters.into());
            let source = Source::new(access.expect("addresses"), Converter::new("node-a"));
            let (sender, mut batches) = mpsc::channel(1);
            tasks.spawn(source.run(sender));
            let seen = Arc::clone(seen);
            tasks.spawn(async move {
                while let Some(batch) = batches.recv().await {
                    seen[usize::from(number)].fetch_max(newest(&batch), Relaxed);
                }
                Ok(())
            });
        }
        while !done.load(Relaxed) {
            sleep(Duration::from_millis(50)).await;
        }
    };
    // The runtime makes all of its sockets on this thread.
    let ran = node.enter(|| runtime.expect("a runtime").block_on(work));
    ran.expect("enter the node");
}

/// The number of the newest change in a batch; 0 without one.
fn newest(batch: &Batch) -> u32 {
    let numbers = batch.changes.iter().filter_map(|change| match change {
        Change::Upsert(Object::Service(service)) => {
            service.name.name.strip_prefix("change-")?.parse().ok()
        }
        _ => None,
    });
    numbers.max().unwrap_or(0)
}

struct Trial<'a> {
    world: &'a World,
    /// With their addresses. The first ones fail next, and the last one takes changes.
    servers: Vec<(&'static str, Server<'a>)>,
    agent: Agent,
    seen: Arc<[AtomicU32]>,
    /// The number of the last change.
    change: u32,
}

impl Trial<'_> {
    /// Makes a change, which reaches the agent and all sources in time.
    fn change(&mut self, what: &str) {
        self.change += 1;
        let (number, address) = (self.change, format!("172.30.3.{}", self.change));
        let (_, last) = self.servers.last().expect("a server");
        last.apply(Service::new(&format!("change-{number}"), &address));
        self.agent.within(LIMIT, what, || {
            let mut seen = self.seen.iter();
            seen.all(|seen| seen.load(Relaxed) >= number) && self.world.lists(&address)
        });
    }

    /// How often all slices were listed, and how often a server was too busy.
    fn asked(&self) -> (f64, f64) {
        let logs = self.servers.iter().map(|(_, server)| server.0.audit_log());
        let asked = logs.map(|log| requests(&fs::read_to_string(log).expect("an audit log")));
        asked.fold((0.0, 0.0), |sum, of_one| {
            (sum.0 + of_one.0, sum.1 + of_one.1)
        })
    }

    /// Whether sources are connected to each server but the first ones.
    fn is_spread(&self, failed: usize) -> bool {
        let words = "-tnpH state established dport = :6443";
        let open = self.world.tool("ss", words);
        let own = format!("pid={},", process::id());
        let mut servers = self.servers.iter().enumerate();
        servers.all(|(at, (address, _))| {
            let to = format!(" {address}:6443 ");
            let lines = open.lines().filter(|line| line.contains(&own));
            let count = lines.filter(|line| line.contains(&to)).count();
            if at < failed {
                count == 0
            } else {
                count >= SHARE
            }
        })
    }

    /// So many servers fail, and are back.
    fn fail(&mut self, fault: Fault, failed: usize) {
        let (before, _) = self.asked();
        for (address, server) in &mut self.servers[..failed] {
            fault.begin(self.world, server, address);
        }
        self.change(&format!("{failed} {fault:?}"));
        self.agent
            .within(LIMIT, "they are spread", || self.is_spread(failed));
        let (lists, refused) = self.asked();
        let is_small = lists - before <= f64::from(SOURCES) + 1.0 && refused < 1.0;
        assert!(is_small, "{fault:?}: {before} to {lists} lists, {refused}");
        for (_, server) in &mut self.servers[..failed] {
            fault.end(self.world, server);
        }
        self.wait_until_listed();
        self.servers.rotate_left(1);
    }

    /// Waits until all servers say that there are all of them.
    fn wait_until_listed(&self) {
        let listed = "get endpointslices kubernetes -o=jsonpath={.endpoints[*].addresses[*]}";
        self.agent.eventually("all are listed", || {
            let mut servers = self.servers.iter();
            servers.all(|(_, server)| {
                let listed = server.try_kubectl(listed).unwrap_or_default();
                ADDRESSES.iter().all(|address| listed.contains(address))
            })
        });
    }
}

/// Writes a kubeconfig for agents with the certificates of all servers: others are not learned
/// without. Each server has made its own.
fn verifying(servers: &[(&str, Server<'_>)]) -> PathBuf {
    let file = servers[0].1.0.agents_kubeconfig();
    let folder = |server: &Server<'_>| server.0.agents_kubeconfig().with_file_name("certs");
    let read = |(_, server): &(_, Server<'_>)| fs::read(folder(server).join("apiserver.crt"));
    let all: Result<Vec<_>, _> = servers.iter().map(read).collect();
    let authority = file.with_file_name("authority.crt");
    fs::write(&authority, all.expect("certificates").concat()).expect("written");
    let text = fs::read_to_string(&file).expect("a kubeconfig");
    let checked = format!("\"certificate-authority\":{authority:?}");
    let checked = text.replace("\"insecure-skip-tls-verify\":true", &checked);
    let file = file.with_file_name("verifying.kubeconfig");
    fs::write(&file, checked).expect("written");
    file
}

#[test]
fn changes_go_on_by_the_other_api_servers_and_no_server_is_overrun() {
    let world = World::build();
    world.ip("address add 10.40.0.2 dev lo\naddress add 10.40.0.3 dev lo");
    let started = ApiServer::start_several(world.node(), &ADDRESSES).expect("servers");
    let servers: Vec<_> = ADDRESSES
        .into_iter()
        .zip(started.into_iter().map(Server))
        .collect();
    let (_, first) = &servers[0];
    first.apply(NAMESPACE);
    first.0.make_node(ADDRESSES[0]).expect("the Node object");
    first.kubectl(&format!(
        "create clusterrolebinding agents --clusterrole=system:node-proxier --user={AGENTS_ACCOUNT}"
    ));
    // The agent is given the first server, and the sources all of them.
    let kubeconfig = verifying(&servers);
    let file = kubeconfig.display().to_string();
    let start = || {
        let agent = world.spawn_by(&[], &["--kubeconfig", &file]);
        agent.eventually("it serves", || agent.health().0 == 200);
        agent
    };
    let seen: Arc<[AtomicU32]> = (0..SOURCES).map(|_| AtomicU32::new(0)).collect();
    let mut trial = Trial {
        world: &world,
        servers,
        agent: start(),
        seen: Arc::clone(&seen),
        change: 0,
    };
    let node = world.node();
    beside(
        |done| follow(node, &kubeconfig, &seen, done),
        || {
            trial.wait_until_listed();
            trial.change("all follow");
            for fault in [Fault::Killed, Fault::Hung, Fault::CutOff] {
                for _ in ADDRESSES {
                    trial.fail(fault, 1);
                }
            }
            // The next agent knows the others by what this one has kept.
            trial.servers[0].1.0.kill();
            assert!(trial.agent.stop().success());
            trial.agent = start();
            trial.change("a start without the first server");
            trial.servers[0].1.0.revive().expect("it is back");
            trial.fail(Fault::Hung, 2);
        },
    );
}
