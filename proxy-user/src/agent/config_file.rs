// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Follows the configuration file: what can change at once does; for the rest the agent ends, to be started anew. And what settings
//! mean for the datapath. Called by `agent::run` and `portolan check`.

use serde_json::json;

use super::{Ended, steps::Agent};
use crate::{
    config::{self, Config, LocalDetection, waits_for_start},
    datapath::Options,
    object::Warning,
    server::configz::Configz,
    telemetry,
    warnings::{Topic, Warnings},
};

impl Agent {
    /// Takes what the configuration file says if it has changed; whether the agent must start anew for it.
    pub(super) fn follow_config(&mut self) -> Option<Ended> {
        let file = self.file.as_mut()?;
        let read = file.look()?;
        let object = format!("configuration file {}", file.path().display());
        let config = match read {
            Ok(config) => config,
            Err(error) => {
                // Nothing else changes: a fault in the file must not take the node out of service.
                let reason = format!(
                    "it has changed and cannot be used: {error}; the settings before stay in force meanwhile"
                );
                let warning = Warning { object, reason };
                self.warnings.replace(Topic::ConfigFile, vec![warning]);
                return None;
            }
        };
        self.warnings.replace(Topic::ConfigFile, Vec::new());
        let changed = self.config.differing(&config);
        if changed.iter().any(|key| waits_for_start(key)) {
            tracing::info!(
                "{object} has changed {}; the agent starts anew, connections go on",
                changed.join(", ")
            );
            return Some(Ended::Outdated);
        }
        if !changed.is_empty() {
            tracing::info!("{object} has changed {}, in force now", changed.join(", "));
        }
        if config.conntrack != self.config.conntrack {
            tracing::info!(
                "the node's nf_conntrack is set when the pod starts again (`portolan init`)"
            );
        }
        self.use_config(config);
        None
    }

    fn use_config(&mut self, config: Config) {
        if config.log_level != self.config.log_level
            && let Err(error) = telemetry::set_level(&config.log_level)
        {
            tracing::warn!("{error:#}; the level before stays in force");
        }
        warn(&config, &self.warnings);
        show(&self.configz, &config);
        self.datapath.set_idle_times(config.idle_times);
        self.config = config;
        self.apply_node();
    }
}

/// How the datapath is opened.
pub(crate) fn options(config: &Config) -> Options {
    Options {
        pin_dir: config.pin_directory.clone(),
        capacities: config.sizes(),
        marks: config.marks,
        xdp: config.xdp_mode().filter(|_| !config.shadow),
        redirects: config.forwarding.redirects() && !config.shadow,
        shadow: config.shadow,
        log_packets: config.log_packets,
        ..Options::default()
    }
}

/// Shows the settings in force.
pub(super) fn show(configz: &Configz, config: &Config) {
    match config::document(config) {
        Ok(document) => configz.set(document, json!(config.sources)),
        Err(error) => tracing::warn!("/configz: {error:#}"),
    }
}

/// Warns of settings that mean nothing or that should be set.
pub(super) fn warn(config: &Config, warnings: &Warnings) {
    warnings.replace(Topic::Config, config_warnings(config));
}

/// Settings that mean nothing or that should be set.
pub(crate) fn config_warnings(config: &Config) -> Vec<Warning> {
    let mut about = Vec::new();
    if config.local_detection == LocalDetection::None {
        about.push(Warning {
            object: "detectLocalMode".to_owned(),
            reason: "pods are not distinguished from other clients, so connections to cluster IPs are not masqueraded and pods get only local endpoints of services with externalTrafficPolicy Local; set clusterCIDR to the pods' ranges".to_owned(),
        });
    }
    if !config.unused.is_empty() {
        about.push(Warning {
            object: "configuration".to_owned(),
            reason: format!(
                "{} have no effect in portolan and are ignored; they can be removed",
                config.unused.join(", "),
            ),
        });
    }
    about.extend(config.ignored.iter().cloned());
    about
}
