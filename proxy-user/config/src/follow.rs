// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks whether the configuration file has changed, and names the settings that can change while
//! the agent runs. Used by `agent`.

use std::{fs, path::PathBuf};

use super::{Config, ConfigError, table};

/// Settings whose changes the agent adopts while it runs. All others take effect at its next start.
pub const AT_ONCE: &[&str] = &[
    "clusterCIDR",
    "nodePortAddresses",
    "iptables.localhostNodePorts",
    "iptables.masqueradeAll",
    "nftables.masqueradeAll",
    "conntrack.tcpEstablishedTimeout",
    "conntrack.tcpCloseWaitTimeout",
    "conntrack.udpTimeout",
    "conntrack.udpStreamTimeout",
    "conntrack.maxPerCore",
    "conntrack.min",
    "conntrack.tcpBeLiberal",
    "portolan.masqueradePorts",
    "portolan.connectionsOfGoneEndpoints",
    "portolan.maps.memory",
    table::LOG_LEVEL,
];

/// Reads the configuration file and the flags again.
type Read = Box<dyn Fn() -> Result<Config, ConfigError> + Send>;

/// The configuration file, and its text when it was last read.
pub struct ConfigFile {
    path: PathBuf,
    read: Read,
    /// The text when the file was last read; None: it was not readable.
    known: Option<String>,
    /// A new text that the last look found, Some(None) if the file was unreadable. The text may be
    /// half written, so the settings are not read from it yet.
    fresh: Option<Option<String>>,
}

impl ConfigFile {
    /// Create this before the file is first read, so that no change is missed.
    pub fn new(path: PathBuf, read: Read) -> Self {
        Self {
            known: fs::read_to_string(&path).ok(),
            path,
            read,
            fresh: None,
        }
    }

    /// Returns the settings, or why they cannot be used, if the file has a new text that was the
    /// same at the previous look; else None. This compares texts and not times, because the files
    /// of a ConfigMap volume are links that are replaced.
    pub fn look(&mut self) -> Option<Result<Config, ConfigError>> {
        let text = fs::read_to_string(&self.path).ok();
        if text == self.known {
            self.fresh = None;
            return None;
        }
        if self.fresh.as_ref() != Some(&text) {
            self.fresh = Some(text);
            return None;
        }
        self.fresh = None;
        self.known = text;
        Some((self.read)())
    }

    pub fn path(&self) -> &std::path::Path {
        &self.path
    }
}

impl Config {
    /// Returns the keys of the settings that have another value in `other`.
    pub fn differing(&self, other: &Self) -> Vec<&'static str> {
        let settings = table::settings();
        let differing = settings.filter(|setting| setting.write(self) != setting.write(other));
        differing.map(|setting| setting.key).collect()
    }
}

/// True if a setting takes effect only at the agent's next start.
pub fn waits_for_start(key: &str) -> bool {
    !AT_ONCE.contains(&key)
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
