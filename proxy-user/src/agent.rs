// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Composition root: opens the parts in order, joins them in one loop, and leaves programs and maps
//! in the kernel when it ends. Started by `cli::run`.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    time::Duration,
};

use anyhow::{Context, anyhow};
use proxy_common::Settings;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Config, LocalDetection},
    datapath::{Datapath, NodeAddress, Options},
    interfaces::{Interface, InterfaceKind, Interfaces},
    plan::Warning,
    server::{
        health::{self, AppliedNode, Health},
        serve, service_health,
    },
    syncer::Syncer,
    warnings::{Topic, Warnings},
    watch::{Batch, Source, SourceError},
};

/// How often idle flows are looked for.
const SWEEP: Duration = Duration::from_secs(1);
/// Batches that may wait while one is applied.
const BATCHES: usize = 16;

/// Runs until told to stop by SIGTERM or SIGINT.
pub async fn run(config: Config, node_name: &str, source: impl Source) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let warnings = Warnings::default();
    warn_of_config(&config, &warnings);

    let mut datapath = Datapath::open(&Options {
        pin_dir: config.pin_directory.clone(),
        capacities: config.capacities,
        ..Options::default()
    })?;
    datapath.set_idle_times(config.idle_times);
    let interfaces = Interfaces::open(&config.interfaces).await?;
    tracing::info!(
        node = node_name,
        pins = %config.pin_directory.display(),
        "portolan {} starts",
        env!("CARGO_PKG_VERSION"),
    );

    let stop = CancellationToken::new();
    let _stop_at_end = stop.clone().drop_guard();
    let health = Health::default();
    let address = config.healthz_bind_address;
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!(
            "answer /healthz on {address}; end what uses it or set healthzBindAddress to another"
        )
    })?;
    tokio::spawn(serve(
        listener,
        health::router(health.clone()),
        stop.clone(),
    ));
    let (health_updates, updates) = mpsc::unbounded_channel();
    tokio::spawn(service_health::run(
        updates,
        health.clone(),
        warnings.clone(),
        stop.clone(),
    ));

    let (sender, mut batches) = mpsc::channel(BATCHES);
    let mut source: JoinHandle<Result<(), SourceError>> = tokio::spawn(source.run(sender));
    let (snapshots, mut snapshot) = mpsc::channel(1);
    let mut agent = Agent {
        syncer: Syncer::new(node_name, warnings.clone()),
        node_name: node_name.to_owned(),
        config,
        datapath,
        health,
        health_updates,
        warnings,
        interfaces: interfaces.current().to_vec(),
        attached: BTreeMap::new(),
        failed_interfaces: BTreeSet::new(),
        applied: None,
        listed: false,
        retry: None,
    };
    let mut following = tokio::spawn(follow(interfaces, snapshots));
    let mut sweep = interval(SWEEP);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let retry = agent.retry;
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            Some(batch) = batches.recv() => {
                agent.take(batch);
                // What came meanwhile belongs to the same sync.
                while let Ok(batch) = batches.try_recv() {
                    agent.take(batch);
                }
                agent.sync();
            }
            Some(interfaces) = snapshot.recv() => agent.set_interfaces(interfaces),
            ended = &mut source => {
                ended.context("the source of objects broke down")??;
                return Err(anyhow!("the source of objects ended"));
            }
            ended = &mut following => {
                ended.context("following the interfaces broke down")??;
                return Err(anyhow!("following the interfaces ended"));
            }
            () = sleep_until(retry.unwrap_or_else(Instant::now)), if retry.is_some() => {
                agent.try_again();
            }
            _ = sweep.tick() => agent.sweep(),
        }
    }
    source.abort();
    following.abort();
    tracing::info!("portolan stops; programs and maps stay, services keep working");
    Ok(())
}

fn warn_of_config(config: &Config, warnings: &Warnings) {
    let mut about = Vec::new();
    if config.local_detection == LocalDetection::None {
        about.push(Warning {
            object: "localDetection".to_owned(),
            reason: "pods are not told from other clients, so connections to cluster IPs are not masqueraded and external policy Local is not short-circuited for pods; set clusterCIDR to the pods' ranges".to_owned(),
        });
    }
    warnings.replace(Topic::Config, about);
}

async fn follow(
    mut interfaces: Interfaces,
    snapshots: mpsc::Sender<Vec<Interface>>,
) -> anyhow::Result<()> {
    loop {
        let snapshot = interfaces.changed().await?.to_vec();
        if snapshots.send(snapshot).await.is_err() {
            return Ok(());
        }
    }
}

/// What the kernel was last told about the node.
#[derive(Clone, PartialEq, Debug)]
struct Applied {
    settings: Settings,
    addresses: Vec<NodeAddress>,
}

/// The parts, and what the loop remembers.
struct Agent {
    config: Config,
    node_name: String,
    syncer: Syncer,
    datapath: Datapath,
    health: Health,
    health_updates: mpsc::UnboundedSender<Vec<service_health::Update>>,
    warnings: Warnings,
    interfaces: Vec<Interface>,
    /// By index; empty until the first list is applied.
    attached: BTreeMap<u32, Interface>,
    failed_interfaces: BTreeSet<u32>,
    applied: Option<Applied>,
    /// The source has told all it could read.
    listed: bool,
    retry: Option<Instant>,
}

impl Agent {
    fn take(&mut self, batch: Batch) {
        self.health.set_pending();
        self.listed |= batch.listed;
        self.syncer.fold(batch);
    }

    /// Applies everything known, and at first attaches: clients find their services already there.
    fn sync(&mut self) {
        if !self.listed {
            return;
        }
        let started = std::time::Instant::now();
        self.apply_node();
        let synced = self.syncer.sync(&mut self.datapath);
        self.retry = synced.retry.map(|wait| Instant::now() + wait);
        if !synced.health.is_empty() {
            // Its receiver lives as long as the agent.
            _ = self.health_updates.send(synced.health);
        }
        let is_first = self.attached.is_empty();
        if is_first {
            self.attach_all();
        }
        let node = self.syncer.node();
        let eligible = node.is_none_or(|node| node.eligible);
        let applied = node.map(|node| AppliedNode {
            name: node.name.name.to_string(),
            resource_version: node.resource_version.to_string(),
        });
        let was_healthy = self.health.is_healthy();
        self.health.set_applied(applied, eligible);
        let (planned, written) = (synced.planned, synced.written);
        let elapsed = started.elapsed();
        if was_healthy {
            tracing::debug!(planned, written, ?elapsed, "synced");
        } else {
            let interfaces = self.attached.len();
            tracing::info!(planned, written, interfaces, ?elapsed, "ready");
        }
    }

    fn set_interfaces(&mut self, interfaces: Vec<Interface>) {
        self.interfaces = interfaces;
        if self.listed {
            // The node's addresses decide about source ranges, so plans may follow.
            self.sync();
            self.attach_all();
        }
    }

    fn try_again(&mut self) {
        self.syncer.retry();
        self.sync();
        self.attach_all();
    }

    fn sweep(&mut self) {
        if let Err(error) = self.datapath.sweep() {
            let warning = Warning {
                object: "flow tables".to_owned(),
                reason: format!(
                    "idle flows could not be removed: {}; it is tried again every second",
                    chain(&error),
                ),
            };
            self.warnings.replace(Topic::Flows, vec![warning]);
        } else {
            self.warnings.replace(Topic::Flows, Vec::new());
        }
    }

    /// Settings and addresses, where they differ from what the kernel was last told.
    fn apply_node(&mut self) {
        let mut faults = self.choose_fallback_ips();
        let wanted = self.wanted();
        if self.applied.as_ref() != Some(&wanted) {
            let told = self
                .datapath
                .set_node_addresses(&wanted.addresses)
                .and_then(|()| self.datapath.set_settings(&wanted.settings));
            match told {
                Ok(()) => self.applied = Some(wanted),
                Err(error) => {
                    self.applied = None;
                    faults.push(Warning {
                        object: format!("Node {}", self.node_name),
                        reason: format!(
                            "its settings and addresses could not be stored: {}; it is tried again with the next change",
                            chain(&error),
                        ),
                    });
                }
            }
        }
        self.warnings.replace(Topic::Node, faults);
    }

    fn wanted(&self) -> Applied {
        let internal_ips = &self.syncer.view().internal_ips;
        let mut settings = self.config.settings();
        for ip in internal_ips {
            match ip {
                IpAddr::V4(v4) => settings.internal_v4 = (*v4).into(),
                IpAddr::V6(v6) => settings.internal_v6 = (*v6).into(),
            }
        }
        let serve = &self.config.node_port_addresses;
        let address = |address: IpAddr| NodeAddress {
            address,
            node_ports: serve.serve(address, internal_ips),
        };
        let addresses: BTreeSet<_> = self
            .interfaces
            .iter()
            .flat_map(addresses_of_node)
            .map(address)
            .collect();
        Applied {
            settings,
            addresses: addresses.into_iter().collect(),
        }
    }

    /// For families of which the Node object names no InternalIP: the configured address, else the first
    /// global one in the order of the interfaces.
    fn choose_fallback_ips(&mut self) -> Vec<Warning> {
        let node = self.syncer.node();
        let named = [
            node.is_some_and(|node| node.internal_v4.is_some()),
            node.is_some_and(|node| node.internal_v6.is_some()),
        ];
        let mut fallback = Vec::new();
        let mut faults = Vec::new();
        for (v4, named) in [true, false].into_iter().zip(named) {
            if named {
                continue;
            }
            let of_family = |ip: &&IpAddr| ip.is_ipv4() == v4;
            if let Some(given) = self.config.node_ips.iter().find(of_family) {
                fallback.push(*given);
                continue;
            }
            let first = self.interfaces.iter().find_map(|interface| {
                let addresses = interface.addresses.iter().map(|net| net.addr());
                let mut global = addresses.filter(|ip| is_global(*ip));
                global
                    .find(|ip| ip.is_ipv4() == v4)
                    .map(|ip| (ip, interface))
            });
            if let Some((ip, interface)) = first {
                fallback.push(ip);
                faults.push(Warning {
                    object: format!("Node {}", self.node_name),
                    reason: format!(
                        "no {} InternalIP is known, so {ip} of {} is taken; name it in the Node object or with --node-ip",
                        if v4 { "IPv4" } else { "IPv6" },
                        interface.name,
                    ),
                });
            }
        }
        self.syncer.set_fallback_ips(fallback);
        faults
    }

    /// Attaches to what is new or changed, detaches from what is gone.
    fn attach_all(&mut self) {
        let wanted: HashMap<u32, &Interface> = self
            .interfaces
            .iter()
            .filter(|interface| interface.attach)
            .map(|interface| (interface.index, interface))
            .collect();
        let mut faults = Vec::new();
        if self.attached.is_empty() && self.failed_interfaces.is_empty() {
            // Pins of an earlier run may name interfaces that are gone.
            let all: Vec<Interface> = wanted.values().copied().cloned().collect();
            faults = self.datapath.attach_only(&all);
            let failed: BTreeSet<&str> = faults.iter().map(|f| f.object.as_str()).collect();
            for interface in all {
                if failed.contains(format!("interface {}", interface.name).as_str()) {
                    self.failed_interfaces.insert(interface.index);
                } else {
                    self.attached.insert(interface.index, interface);
                }
            }
        } else {
            let gone: Vec<u32> = self
                .attached
                .keys()
                .filter(|index| !wanted.contains_key(index))
                .copied()
                .collect();
            for index in gone {
                self.attached.remove(&index);
                if let Err(error) = self.datapath.detach(index) {
                    faults.push(interface_fault(
                        &format!("with index {index}"),
                        &chain(&error),
                    ));
                }
            }
            self.failed_interfaces
                .retain(|index| wanted.contains_key(index));
            for (index, interface) in wanted {
                if self.attached.get(&index) == Some(interface) {
                    continue;
                }
                match self.datapath.attach(interface) {
                    Ok(()) => {
                        self.failed_interfaces.remove(&index);
                        self.attached.insert(index, interface.clone());
                    }
                    Err(error) => {
                        self.attached.remove(&index);
                        self.failed_interfaces.insert(index);
                        faults.push(interface_fault(&interface.name, &chain(&error)));
                    }
                }
            }
        }
        if !self.failed_interfaces.is_empty() {
            let soon = Instant::now() + SWEEP;
            self.retry = Some(self.retry.map_or(soon, |retry| retry.min(soon)));
        }
        self.warnings.replace(Topic::Interfaces, faults);
    }
}

fn interface_fault(name: &str, error: &str) -> Warning {
    Warning {
        object: format!("interface {name}"),
        reason: format!(
            "services are not served to clients behind it: {error}; it is tried again every second",
        ),
    }
}

/// KUBE: every local address is the node's. The link-local addresses of pods' interfaces are left out:
/// nobody asks them for a node port, and there is one per pod.
fn addresses_of_node(interface: &Interface) -> impl Iterator<Item = IpAddr> + '_ {
    let of_pod = matches!(
        interface.kind,
        InterfaceKind::PodSide | InterfaceKind::BridgePort
    );
    let addresses = interface.addresses.iter().map(|net| net.addr());
    addresses.filter(move |ip| !(of_pod && is_link_local(*ip)))
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

fn is_global(address: IpAddr) -> bool {
    !(address.is_loopback() || is_link_local(address) || address.is_unspecified())
}

/// The whole chain of causes, as `anyhow` prints it.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<_> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}
