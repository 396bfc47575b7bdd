// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Composition root: opens the parts in order, joins them in one loop, and leaves programs and maps
//! in the kernel when it ends. Started by `cli::run`.

mod attachments;
mod node;
mod sockets;

use std::time::Duration;

use anyhow::{Context, anyhow};
use k8s_openapi::jiff::Timestamp;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tokio_util::sync::CancellationToken;

use self::{attachments::Attachments, node::NodeSettings, sockets::SocketHooks};

use crate::{
    config::{Config, LocalDetection},
    datapath::{self, Datapath, Occupancy, Options},
    interfaces::{Interface, Interfaces},
    metrics::Metrics,
    model::Kind,
    plan::Warning,
    server::{
        self,
        health::{self, AppliedNode, Health},
        listen, serve, service_health,
    },
    syncer::Syncer,
    warnings::{Topic, Warnings},
    watch::{Batch, Source, SourceError},
};

/// How often what did not work is tried again, and walks through the flow tables go on.
const SWEEP: Duration = Duration::from_secs(1);
/// How long after the end of a walk another one begins: short beside every idle time.
const REST: Duration = Duration::from_secs(5);
/// How often the kernel programs' lines are read where there may be many: 128 KiB of them can wait.
const PACKET_LINES: Duration = Duration::from_millis(20);
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
        log_packets: config.log_packets,
        ..Options::default()
    })?;
    datapath.set_idle_times(config.idle_times);
    let every = if config.log_packets {
        PACKET_LINES
    } else {
        SWEEP
    };
    tokio::spawn(datapath.program_log(Box::new(log_line))?.follow(every));
    let netns = datapath::network_namespace()
        .context("ask for this network namespace's cookie, which Linux 5.14 and newer tell")?;
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
    let metrics = Metrics::new(
        config.pin_directory.clone(),
        warnings.clone(),
        config.per_service_metrics,
    );
    let address = config.healthz_bind_address;
    let listener = listen(address).with_context(|| {
        format!(
            "answer /healthz on {address}; end what uses it or set healthzBindAddress to another"
        )
    })?;
    tokio::spawn(serve(
        listener,
        health::router(health.clone(), metrics.health.clone()),
        stop.clone(),
    ));
    serve_metrics(&config, &metrics, &warnings, &stop);
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
        hooks: SocketHooks::new(config.cgroup_root.clone(), config.socket_exceptions.clone()),
        netns,
        config,
        datapath,
        health,
        health_updates,
        metrics,
        triggers: Vec::new(),
        warnings,
        interfaces: interfaces.current().to_vec(),
        attachments: Attachments::default(),
        applied: None,
        listed: false,
        retry: None,
        walk_at: Instant::now(),
        flows: Occupancy::default(),
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

/// KUBE: an address that another process has keeps nobody from being served (`bindAddressHardFail` is not set).
fn serve_metrics(
    config: &Config,
    metrics: &Metrics,
    warnings: &Warnings,
    stop: &CancellationToken,
) {
    let address = config.metrics_bind_address;
    match listen(address) {
        Ok(listener) => {
            let router = server::metrics::router(metrics.clone());
            tokio::spawn(serve(listener, router, stop.clone()));
        }
        Err(error) => {
            let warning = Warning {
                object: format!("metrics on {address}"),
                reason: format!(
                    "not shown: {error}; end what uses the address or set metricsBindAddress to another, and start again"
                ),
            };
            warnings.replace(Topic::Metrics, vec![warning]);
        }
    }
}

fn log_line(fault: bool, line: &str) {
    if fault {
        tracing::error!("{line}; the maps contradict each other: restart the agent and report it");
    } else {
        tracing::info!("{line}");
    }
}

fn warn_of_config(config: &Config, warnings: &Warnings) {
    let mut about = Vec::new();
    if config.local_detection == LocalDetection::None {
        about.push(Warning {
            object: "detectLocalMode".to_owned(),
            reason: "pods are not told from other clients, so connections to cluster IPs are not masqueraded and external policy Local is not short-circuited for pods; set clusterCIDR to the pods' ranges".to_owned(),
        });
    }
    if !config.unused.is_empty() {
        about.push(Warning {
            object: "configuration".to_owned(),
            reason: format!(
                "{} mean nothing here and are ignored; they can be left out",
                config.unused.join(", "),
            ),
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

/// The parts, and what the loop remembers.
struct Agent {
    config: Config,
    node_name: String,
    syncer: Syncer,
    datapath: Datapath,
    health: Health,
    health_updates: mpsc::UnboundedSender<Vec<service_health::Update>>,
    metrics: Metrics,
    /// When endpoints changed of which changes tell that are not in the maps yet.
    triggers: Vec<Timestamp>,
    warnings: Warnings,
    interfaces: Vec<Interface>,
    attachments: Attachments,
    hooks: SocketHooks,
    /// The cookie of the node's own network namespace.
    netns: u64,
    /// What the kernel was last told about the node.
    applied: Option<NodeSettings>,
    /// The source has told all it could read.
    listed: bool,
    retry: Option<Instant>,
    /// When to go on with the walk through the flow tables.
    walk_at: Instant,
    flows: Occupancy,
}

impl Agent {
    fn take(&mut self, mut batch: Batch) {
        self.health.set_pending();
        let of_kind = |kind| {
            let changes = batch.changes.iter();
            changes.filter(|change| change.kind() == kind).count()
        };
        let (services, slices) = (of_kind(Kind::Service), of_kind(Kind::EndpointSlice));
        self.metrics.sync.queued(services, slices);
        self.triggers.append(&mut batch.triggers);
        self.listed |= batch.listed;
        for (_, warnings) in batch
            .warnings
            .iter()
            .filter(|(topic, _)| *topic == Topic::ApiServer)
        {
            self.health
                .set_source_fault(warnings.first().map(ToString::to_string));
        }
        self.syncer.fold(batch);
    }

    /// Applies everything known, then attaches: clients find their services already there.
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
        self.attach();
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
        let triggers = std::mem::take(&mut self.triggers);
        self.metrics.sync.done(elapsed, &triggers);
        let [internal, external] = self.syncer.no_local_endpoints();
        let served = self.syncer.served();
        self.metrics.sync.set_services(served, internal, external);
        if was_healthy {
            tracing::debug!(planned, written, ?elapsed, "synced");
        } else {
            let interfaces = self.attachments.len();
            tracing::info!(planned, written, interfaces, ?elapsed, "ready");
        }
    }

    fn set_interfaces(&mut self, interfaces: Vec<Interface>) {
        self.interfaces = interfaces;
        // The node's addresses decide about source ranges, so plans may follow.
        self.sync();
    }

    fn try_again(&mut self) {
        self.syncer.retry();
        self.sync();
    }

    /// Once a second: idle flows, and what failed without a time of its own to be tried again.
    fn sweep(&mut self) {
        if Instant::now() >= self.walk_at {
            self.walk();
        }
        self.metrics.set_fill(&self.flows, &self.datapath.fill());
        if self.listed && self.applied.is_none() {
            self.sync();
        } else if self.listed {
            self.attach();
        }
    }

    fn walk(&mut self) {
        let fault = match self.datapath.sweep() {
            Ok(flows) => {
                if flows.walked {
                    self.walk_at = Instant::now() + REST;
                }
                self.flows = flows;
                None
            }
            Err(error) => Some(Warning {
                object: "flow tables".to_owned(),
                reason: format!(
                    "idle flows could not be removed: {}; it is tried again every second",
                    chain(&error),
                ),
            }),
        };
        self.warnings.replace(Topic::Flows, Vec::from_iter(fault));
    }

    /// Settings and addresses, where they differ from what the kernel was last told.
    fn apply_node(&mut self) {
        let (config, interfaces) = (&self.config, &self.interfaces);
        let node = self.syncer.node();
        let (ips, guessed) =
            node::fallback_ips(&self.node_name, node, &config.node_ips, interfaces);
        self.syncer.set_fallback_ips(ips);
        let mut faults = Vec::from_iter(guessed);
        let wanted = NodeSettings::new(
            config,
            self.netns,
            self.syncer.node(),
            &self.syncer.view().internal_ips,
            interfaces,
        );
        if self.applied.as_ref() != Some(&wanted) {
            let told = self
                .datapath
                .set_node_addresses(&wanted.addresses)
                .and_then(|()| self.datapath.set_settings(&wanted.settings));
            self.applied = match told {
                Ok(()) => Some(wanted),
                Err(error) => {
                    faults.push(Warning {
                        object: format!("Node {}", self.node_name),
                        reason: format!(
                            "its settings and addresses could not be stored: {}; it is tried again every second",
                            chain(&error),
                        ),
                    });
                    None
                }
            };
        }
        self.warnings.replace(Topic::Node, faults);
    }

    fn attach(&mut self) {
        let faults = self
            .attachments
            .update(&mut self.datapath, &self.interfaces);
        self.warnings.replace(Topic::Interfaces, faults);
        let faults = self.hooks.update(&mut self.datapath);
        self.warnings.replace(Topic::Sockets, faults);
    }
}

/// The whole chain of causes, as `anyhow` prints it.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<_> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}
