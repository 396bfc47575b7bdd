// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan controller`: writes for the whole cluster what no node may write.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use config::{ConfigFile, telemetry};
use source::api_server::{Access, Controller};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::sleep,
};

use super::{
    flags::SettingFlags,
    frame::runtime,
    names::in_cluster,
    run::{Given, converter, node_name},
};

/// Arguments of `portolan controller`.
#[derive(clap::Args, Clone, Debug)]
pub struct ControllerArgs {
    /// The configuration file, which may be the agents'.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub flags: SettingFlags,
}

/// How often to look whether the configuration file has changed.
const LOOK: Duration = Duration::from_secs(10);

/// Runs until SIGTERM, or until its configuration file has changed: the kubelet starts it anew.
pub(super) fn run(args: &ControllerArgs) -> Result<()> {
    let given = Given {
        config: args.config.clone(),
        flags: args.flags.clone(),
        ..Given::default()
    };
    let file = given.config_file();
    let config = given.settings()?;
    telemetry::start(&config.log_level, config.log_format)?;
    let server = in_cluster().filter(|_| config.kubeconfig.is_none());
    let controller = Controller {
        access: Access::new(config.kubeconfig.clone(), server.into_iter().collect())?,
        // KUBE: a pod has its name as its host name.
        name: node_name(None)?,
        gateway_services: config.gateway_services,
        object_events: config.object_events,
    };
    runtime()?.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        let stop = async {
            tokio::select! {
                _ = terminate.recv() => {}
                () = changed(file) => {}
            }
        };
        let ended = controller.run(|| converter(&config, ""), stop).await;
        ended.context("write for the cluster")
    })
}

/// Waits until the configuration file has a new text that can be used.
async fn changed(file: Option<ConfigFile>) {
    let Some(mut file) = file else {
        return std::future::pending().await;
    };
    while !matches!(file.look(), Some(Ok(_))) {
        sleep(LOOK).await;
    }
    let name = file.path().display();
    tracing::info!("{name} has changed; the controller ends, to be started anew");
}
