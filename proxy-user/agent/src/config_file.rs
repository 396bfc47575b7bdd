// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Follows the configuration file: settings that can change at run time do; for others the agent
//! exits, to be restarted. Also turns settings into options of the datapath. Called by `agent::run`
//! and `portolan check`.

use config::{Config, Forwarding, LocalDetection, Xdp, telemetry, waits_for_start};
use control::{
    model::ClientAddress,
    object::Warning,
    warnings::{Topic, Warnings},
};
use datapath::{Options, is_realtime};
use serde_json::json;

use super::{Ended, agent::Agent};
use crate::server::metrics::Configz;

impl Agent {
    /// Applies the configuration file if it has changed. Returns `Outdated` if the agent must
    /// restart for that; None if it need not, or nothing has changed.
    pub(super) fn follow_config(&mut self) -> Option<Ended> {
        let file = self.file.as_mut()?;
        let read = file.look()?;
        let object = format!("configuration file {}", file.path().display());
        let config = match read {
            Ok(config) => config,
            Err(error) => {
                // The old settings stay in force: a fault in the file must not take the node out of
                // use.
                let reason = format!(
                    "it has changed and cannot be used: {error}; the settings before stay in force meanwhile"
                );
                let warning = Warning { object, reason };
                self.shared
                    .warnings
                    .replace(Topic::ConfigFile, vec![warning]);
                return None;
            }
        };
        self.shared.warnings.replace(Topic::ConfigFile, Vec::new());
        let changed = self.shared.config.differing(&config);
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
        if config.conntrack != self.shared.config.conntrack {
            tracing::info!(
                "the node's nf_conntrack is set when the pod starts again (`portolan init`)"
            );
        }
        self.use_config(config);
        None
    }

    fn use_config(&mut self, config: Config) {
        if config.log_level != self.shared.config.log_level
            && let Err(error) = telemetry::set_level(&config.log_level)
        {
            tracing::warn!("{error:#}; the level before stays in force");
        }
        warn(&config, &self.shared.warnings);
        show(&self.configz, &config);
        self.shared.datapath.set_idle_times(config.idle_times);
        self.shared.config = config;
        self.apply_node();
    }
}

/// Returns the options with which the datapath is opened.
pub fn options(config: &Config) -> Options {
    Options {
        pin_dir: config.pin_directory.clone(),
        capacities: config.sizes(),
        marks: config.marks,
        xdp: config.xdp_mode(),
        redirects: config.forwarding == Forwarding::Auto,
        header_port: config.header_port(),
        log_packets: config.log_packets,
        ..Options::default()
    }
}

/// Puts the settings in force into the answer of `/configz`.
pub(super) fn show(configz: &Configz, config: &Config) {
    match config::document(config) {
        Ok(document) => configz.set(document, json!(config.sources)),
        Err(error) => tracing::warn!("/configz: {error:#}"),
    }
}

/// Warns of settings that have no effect, that should be set, or that break something; and of an
/// unsupported kernel.
pub(super) fn warn(config: &Config, warnings: &Warnings) {
    let mut about = config_warnings(config);
    about.extend(kernel_warning(is_realtime()));
    warnings.replace(Topic::Config, about);
}

/// Returns a warning if the kernel is a real-time one (PREEMPT_RT), on which the programs are not
/// safe.
pub fn kernel_warning(is_realtime: bool) -> Option<Warning> {
    is_realtime.then(|| Warning {
        object: "kernel".to_owned(),
        reason: "PREEMPT_RT is not supported: programs at tc can interrupt each other on a CPU there (from Linux 6.18 on), and packets may be translated wrongly; use a kernel without PREEMPT_RT".to_owned(),
    })
}

/// Returns warnings about settings that have no effect, that should be set, or that break
/// something.
pub fn config_warnings(config: &Config) -> Vec<Warning> {
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
    if !config.ignored_flags.is_empty() {
        about.push(Warning {
            object: "command line".to_owned(),
            reason: format!(
                "beside a configuration file {} have no effect, as with kube-proxy; set them in the file, or remove them",
                config.ignored_flags.join(", "),
            ),
        });
    }
    if config.xdp != Xdp::Off && config.forwarding == Forwarding::Stack {
        about.push(Warning {
            object: "portolan.xdp".to_owned(),
            reason: "it has no effect with portolan.forwarding: stack, because XDP takes only what the stack has let pass before; set portolan.forwarding to auto".to_owned(),
        });
    }
    let takes_part = config.header_port().is_some() && config.agents_service.is_some();
    if config.client_address == ClientAddress::Keep && !takes_part {
        about.push(Warning {
            object: "portolan.clientAddress".to_owned(),
            reason: "clients do not keep their addresses: that needs portolan.clientAddressKeys, portolan.agentsService and portolan.masquerade: full".to_owned(),
        });
    }
    if (1..600).contains(&config.abandoned_after) {
        about.push(Warning {
            object: "portolan.abandonedAfter".to_owned(),
            reason: "it is less than 10 minutes, so the programs may stop serving what is new while an agent starts anew; set it to 10m or more, or to 0s for never".to_owned(),
        });
    }
    about.extend(config.ignored.iter().cloned());
    about
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_do_not_fit_and_flags_that_a_file_overrides_give_one_warning_each() {
        let usual = || Config {
            local_detection: LocalDetection::ClusterCidr,
            ..Config::default()
        };
        let xdp = |forwarding| Config {
            xdp: Xdp::Native,
            forwarding,
            ..usual()
        };
        let after = |abandoned_after| Config {
            abandoned_after,
            ..usual()
        };
        let flags = Config {
            ignored_flags: vec!["--cluster-cidr".to_owned(), "--proxy-mode".to_owned()],
            ..usual()
        };
        let keep = Config {
            client_address: ClientAddress::Keep,
            ..usual()
        };
        let overridden = "command line: beside a configuration file --cluster-cidr, --proxy-mode have no effect, as with kube-proxy; set them in the file, or remove them";
        for (config, expected) in [
            (usual(), None),
            (xdp(Forwarding::Auto), None),
            (xdp(Forwarding::Stack), Some("portolan.xdp: ")),
            (after(0), None),
            (after(599), Some("portolan.abandonedAfter: ")),
            (flags, Some(overridden)),
            (keep, Some("portolan.clientAddress: ")),
        ] {
            let warnings = config_warnings(&config);
            assert_eq!(warnings.len(), usize::from(expected.is_some()));
            for (warning, expected) in warnings.iter().zip(expected) {
                assert!(warning.to_string().starts_with(expected), "{warning}");
            }
        }
    }

    #[test]
    fn a_realtime_kernel_is_named_as_not_supported() {
        assert!(kernel_warning(false).is_none());
        let warning = kernel_warning(true).expect("a warning");
        assert!(warning.reason.starts_with("PREEMPT_RT is not supported"));
    }
}
