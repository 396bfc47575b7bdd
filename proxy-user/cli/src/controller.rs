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
                () = changed(file, LOOK) => {}
            }
        };
        let ended = controller.run(|| converter(&config, ""), stop).await;
        ended.context("write for the cluster")
    })
}

/// Waits until the configuration file has other settings, which can be used.
async fn changed(file: Option<ConfigFile>, look: Duration) {
    let Some(mut file) = file else {
        return std::future::pending().await;
    };
    loop {
        sleep(look).await;
        let name = file.path().display().to_string();
        match file.look() {
            Some(Ok(_)) => {
                tracing::info!("{name} has changed: the controller ends, to be started anew");
                return;
            }
            Some(Err(error)) => {
                tracing::warn!("{name} has changed and cannot be used: {error}; correct it");
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tokio::time::timeout;

    use super::*;

    #[test]
    fn a_changed_file_ends_the_controller_unless_it_cannot_be_used() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let write = |text: &str| {
            let header =
                "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
            fs::write(file.path(), format!("{header}{text}")).expect("written");
        };
        let ends = |text: &str| {
            write("");
            let given = Given {
                config: Some(file.path().to_owned()),
                ..Given::default()
            };
            let following = given.config_file();
            write(text);
            let changed = async {
                let changed = changed(following, Duration::from_millis(1));
                timeout(Duration::from_millis(500), changed).await.is_ok()
            };
            runtime().expect("a runtime").block_on(changed)
        };
        assert!(!ends("") && !ends("mode: userspace"));
        assert!(ends("hostnameOverride: a"));
    }
}
