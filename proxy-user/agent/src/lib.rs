// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agent: opens its parts in order and runs them in one loop. It gets a configuration, a source
//! of Kubernetes objects and the node's interfaces. When it ends, programs and maps stay in the
//! kernel. Started by `cli::run`.
#![deny(unsafe_code)]

mod agent;
mod attachments;
mod config_file;
mod growth;
pub mod metrics;
mod node;
mod routes;
pub mod server;
mod services;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, anyhow};
use config::{Config, ConfigFile};
use control::{
    syncer::Syncer,
    warnings::{Topic, Warnings},
};
use datapath::Datapath;
use linux::interfaces::{Interface, Interfaces, follow_neighbours};
use source::{ObjectSource, SourceError};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    task::{JoinHandle, yield_now},
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tokio_util::sync::CancellationToken;

use self::{
    agent::{Agent, Shared},
    attachments::{Attachments, PinWatch, raise_descriptor_limit},
    growth::Growth,
    node::Node,
    services::Services,
};
use crate::{
    metrics::Metrics,
    server::{
        Site,
        health::{self, Health},
        listen,
        metrics::Configz,
        service_health,
    },
};

pub use self::{
    attachments::SocketHooks,
    config_file::{config_warnings, kernel_warning, options},
    growth::{Decision, ServiceCounts, decide},
    node::contradictions::{
        half_seen, misjudged_pods, pod_ranges, unserved_interfaces, unserved_node_ports,
    },
};

/// Time between two ticks: failed attempts are repeated, and the walk through the flow tables goes
/// on.
const SWEEP: Duration = Duration::from_secs(1);
/// How often the eBPF programs' log lines are read if they log packets: the kernel keeps 128 KiB of
/// lines.
const PACKET_LINES: Duration = Duration::from_millis(20);
/// How many batches of changed objects may wait while one is applied.
const BATCHES: usize = 16;

/// Why an agent ends without an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// SIGTERM or SIGINT has come.
    Stopped,
    /// The configuration file has changed settings that need a restart.
    Outdated,
}

/// Runs the agent until SIGTERM or SIGINT, or until a change of the configuration file needs a
/// restart. `file` is `None` if there are only flags.
pub async fn run(
    config: Config,
    file: Option<ConfigFile>,
    node_name: &str,
    source: impl ObjectSource,
    warnings: Warnings,
) -> anyhow::Result<Ended> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    config_file::warn(&config, &warnings);
    raise_descriptor_limit();

    let options = options(&config);
    // An agent that cannot begin leaves no maps behind.
    source.check().await?;
    let netns = linux::network_namespace()
        .context("get this network namespace's cookie, which needs Linux 5.14 or newer")?;
    let interfaces = Interfaces::open(config.interface_patterns()).await?;
    let datapath = Datapath::open(&options)?;
    if let Some(name) = &config.service_proxy_name {
        tracing::info!("only services of the proxy {name} are served");
    }
    tracing::info!(
        node = node_name,
        pins = %config.pin_directory.display(),
        "portolan {} starts",
        env!("CARGO_PKG_VERSION"),
    );

    let stop = CancellationToken::new();
    let _stop_at_end = stop.clone().drop_guard();
    let health = Health::default();
    let mut syncer = Syncer::new(node_name, warnings.clone());
    syncer.state.view.answer_ping = config.answer_ping;
    syncer.state.view.selection = config.selection;
    syncer.state.view.client_address = config.client_addresses();
    syncer.state.agents.clone_from(&config.agents_service);
    let metrics = Metrics::new(
        config.pin_directory.clone(),
        warnings.clone(),
        &source.requests(),
        config.services_with_metrics,
        syncer.ready.clone(),
    );
    let configz = Configz::default();
    config_file::show(&configz, &config);
    for site in Site::all(&config) {
        let router = match site.topic {
            Topic::Metrics => {
                server::metrics::router(metrics.clone(), configz.clone(), warnings.clone())
            }
            _ => health::router(health.clone(), metrics.health.clone()),
        };
        let listener = listen(site.address);
        // KUBE: the agent serves services even if another process uses this address, unless this is
        // set.
        if let (true, Err(error)) = (config.bind_address_hard_fail, &listener) {
            datapath.give_up();
            return Err(anyhow!(
                "{} (bindAddressHardFail is set)",
                site.warning(error)
            ));
        }
        tokio::spawn(site.serve(listener, router, warnings.clone(), stop.clone()));
    }
    let (health_updates, updates) = mpsc::unbounded_channel();
    let (health_addresses, addresses) = watch::channel(BTreeSet::new());
    tokio::spawn(service_health::run(
        updates,
        addresses,
        health.clone(),
        warnings.clone(),
        stop.clone(),
    ));

    let (sender, mut batches) = mpsc::channel(BATCHES);
    let mut source: JoinHandle<Result<(), SourceError>> = tokio::spawn(source.run(sender));
    let (snapshots, mut snapshot) = mpsc::channel(1);
    let (grown, mut larger) = mpsc::channel(1);
    let (foreign_answers, mut foreign_answer) = mpsc::unbounded_channel();
    let hands_to_pods = options.redirects && datapath::counts_at_peers();
    if options.redirects && !hands_to_pods {
        tracing::info!(
            "packets to pods of this node take the routes, not their links: this kernel would not count them at the pods' own interfaces"
        );
    }
    let (pin_watch, mut pins_gone) = PinWatch::start(vec![config.pin_directory.clone()]);
    let routes_followed = options.xdp.is_some();
    let is_new = datapath.service_count() == 0;
    let mut agent = Agent {
        services: Services::new(syncer, health_updates, !is_new),
        attachments: Attachments::new(&config, hands_to_pods, pin_watch),
        node: Node::new(netns, health_addresses, foreign_answers),
        growth: Growth::new(grown),
        shared: Shared {
            config,
            node_name: node_name.to_owned(),
            options,
            datapath,
            interfaces: interfaces.current().to_vec(),
            health,
            metrics,
            warnings,
        },
        first_waits: false,
        unreported: None,
        file,
        configz,
        program_log: None,
    };
    agent.node.look(&agent.shared);
    agent.begin_with_maps();
    agent.serve_pinned();
    let mut following = tokio::spawn(follow(interfaces, snapshots));
    let (notices, mut routes_changed) = mpsc::channel(1);
    if routes_followed {
        tokio::spawn(routes::follow(notices));
    }
    let (tables, mut neighbours) = mpsc::channel(1);
    if hands_to_pods {
        tokio::spawn(follow_neighbours(tables));
    }
    let mut sweep = interval(SWEEP);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ended = loop {
        agent.shared.health.turn();
        let retry = agent.services.syncer.retry_at();
        tokio::select! {
            _ = terminate.recv() => break Ended::Stopped,
            _ = interrupt.recv() => break Ended::Stopped,
            Some(batch) = batches.recv() => agent.turn("changes", |agent| {
                agent.take(batch);
                // Further batches that have arrived meanwhile are applied in the same sync.
                while let Ok(batch) = batches.try_recv() {
                    agent.take(batch);
                }
                agent.sync();
            }),
            Some(answer) = foreign_answer.recv() => {
                agent.turn("foreign-connections", |agent| agent.hear_of_foreign(&answer));
            }
            Some(()) = pins_gone.recv() => agent.turn("pins-gone", |agent| {
                agent.attachments.repair(&mut agent.shared, &mut agent.services, true);
            }),
            Some(interfaces) = snapshot.recv() => {
                agent.turn("interfaces", |agent| agent.set_interfaces(interfaces));
            }
            Some(found) = neighbours.recv() => agent.turn("neighbours", |agent| {
                agent.attachments.set_neighbours(&mut agent.shared, found);
            }),
            ended = &mut source => {
                if !agent.services.listed {
                    agent.shared.datapath.give_up();
                }
                ended.context("the source of objects failed")??;
                return Err(anyhow!("the source of objects ended"));
            }
            ended = &mut following => {
                ended.context("following the interfaces failed")?;
                return Err(anyhow!("following the interfaces ended"));
            }
            () = sleep_until(retry.map_or_else(Instant::now, Instant::from_std)), if retry.is_some() => {
                agent.turn("retry", Agent::try_again);
            }
            Some(larger) = larger.recv() => {
                agent.turn("larger-maps", |agent| {
                    agent.growth.use_larger(&agent.shared, &agent.services, larger);
                });
            }
            _ = sweep.tick() => {
                let ended = agent.turn("second", |agent| {
                    agent.tick();
                    agent.follow_config()
                });
                if let Some(ended) = ended {
                    break ended;
                }
            }
            Some(()) = routes_changed.recv() => {
                agent.turn("routes-changed", Agent::routes_have_changed);
            }
            // Long work is done in turns, so that other events are handled in between.
            () = yield_now(), if agent.has_more_to_attach() => {
                agent.turn("more-to-attach", Agent::attach_more);
            }
            () = yield_now(), if agent.services.may_go_on(&agent.growth) => {
                agent.turn("more-to-apply", Agent::go_on);
            }
            () = yield_now(), if agent.growth.is_filling() => {
                agent.turn("more-to-fill", Agent::fill_larger);
            }
        }
    };
    source.abort();
    following.abort();
    if !agent.services.listed {
        agent.shared.datapath.give_up();
    }
    tracing::info!("portolan stops; programs and maps stay, services keep working");
    Ok(ended)
}

async fn follow(mut interfaces: Interfaces, snapshots: mpsc::Sender<Vec<Interface>>) {
    loop {
        let snapshot = interfaces.changed().await.to_vec();
        if snapshots.send(snapshot).await.is_err() {
            return;
        }
    }
}
