// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks whether the configuration file has changed, and which settings can change while the agent
//! runs. Used by `agent`.

use std::{fs, path::PathBuf};

use super::{Config, ConfigError, table};

/// Settings that the agent replaces while it runs. All others hold from its next start.
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
    "portolan.maps.memory",
    table::LOG_LEVEL,
];

/// Reads file and flags anew.
type Read = Box<dyn Fn() -> Result<Config, ConfigError> + Send>;

/// The configuration file, and what it held when it was last read.
pub struct ConfigFile {
    path: PathBuf,
    read: Read,
    /// None: not readable.
    known: Option<String>,
    /// Another text, seen at the last look: it may be half written.
    fresh: Option<Option<String>>,
}

impl ConfigFile {
    /// To be made before the file is first read, so that no change is missed.
    pub fn new(path: PathBuf, read: Read) -> Self {
        Self {
            known: fs::read_to_string(&path).ok(),
            path,
            read,
            fresh: None,
        }
    }

    /// The settings, if the file has another text than when it was last read, and had the same at
    /// the look before. A text is compared, not a time: the files of a ConfigMap volume are links
    /// that are replaced.
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
    /// The keys whose values differ.
    pub fn differing(&self, other: &Self) -> Vec<&'static str> {
        let settings = table::settings();
        let differing = settings.filter(|setting| setting.write(self) != setting.write(other));
        differing.map(|setting| setting.key).collect()
    }
}

/// Whether a setting holds from the agent's next start only.
pub fn waits_for_start(key: &str) -> bool {
    !AT_ONCE.contains(&key)
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
