// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Settings as the file and the flags give them, unchecked: `file` and the command line's flags
//! fill them, and `check` makes a `Config` of them, by a draft that the entries of `table` fill.

use std::collections::BTreeMap;

use clap::ValueEnum;
use control::object::Warning;
use linux::interfaces::PodInterfaces;
use proxy_common::masquerade::Marks;

use super::{
    Config, ConfigError, LocalDetection, Mode, NodePortAddresses, UnallocatedClusterIps,
    setting::{Setting, Value},
    table,
    values::{self, Problem},
};

/// Settings as the file or the flags give them, unchecked; the others have their defaults.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RawConfig {
    /// The given values by their keys in `table`.
    pub(super) values: BTreeMap<&'static str, Value>,
    /// kube-proxy's settings that are given but have no effect in portolan.
    unused: Vec<String>,
    /// Flags that are given but have no effect, because there is a configuration file.
    ignored_flags: Vec<String>,
    /// Warnings about keys of the file that are unknown or given twice.
    pub(super) ignored: Vec<Warning>,
}

impl RawConfig {
    /// Returns settings in which only the log level is given: the one that klog's verbosity means.
    pub fn with_verbosity(verbosity: u32) -> Self {
        let level = Value::Text(values::level_of_verbosity(verbosity.into()).to_owned());
        Self {
            values: [(table::LOG_LEVEL, level)].into(),
            ..Self::default()
        }
    }

    pub fn set(&mut self, setting: &Setting, value: Value) {
        self.values.insert(setting.key, value);
    }

    pub fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    pub fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.values.keys().copied()
    }

    /// Removes the values of flags without effect beside a file, except for the keys in `kept`.
    #[must_use]
    pub fn drop_ignored_flags(mut self, kept: &[&str]) -> Self {
        let ignored = table::settings().filter(|setting| table::flag_is_ignored_with_file(setting));
        for setting in ignored.filter(|setting| !kept.contains(&setting.key)) {
            let flag = setting.flag.map(|flag| format!("--{flag}"));
            if let (Some(_), Some(flag)) = (self.values.remove(setting.key), flag)
                && !self.ignored_flags.contains(&flag)
            {
                self.ignored_flags.push(flag);
            }
        }
        self
    }

    /// Notes that a setting of kube-proxy is given that has no effect in portolan.
    pub fn add_unused(&mut self, name: String) {
        self.unused.push(name);
    }

    /// Merges the settings of both; those of `self` override those of `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let mut values = other.values;
        values.extend(self.values);
        Self {
            values,
            unused: [self.unused, other.unused].concat(),
            ignored_flags: [self.ignored_flags, other.ignored_flags].concat(),
            ignored: [self.ignored, other.ignored].concat(),
        }
    }

    /// Checks the settings and adds the defaults of missing ones.
    pub fn check(self) -> Result<Config, ConfigError> {
        let mut draft = Draft::default();
        for setting in table::settings() {
            if let Some(value) = self.values.get(setting.key) {
                setting.read(&mut draft, value)?;
            }
        }
        Ok(Config {
            unused: self.unused,
            ignored_flags: self.ignored_flags,
            ignored: self.ignored,
            ..draft.finish()?
        })
    }
}

/// A configuration while settings are read into it one by one, in the order of `table`. It also has
/// the settings that mean something only together.
#[derive(Default)]
pub struct Draft {
    pub config: Config,
    /// None: the mode is not set.
    pub mode: Option<Mode>,
    /// KUBE: kube-proxy has one `masqueradeBit` and one `masqueradeAll` for each of its modes.
    pub iptables_masquerade_bit: Option<i64>,
    pub nftables_masquerade_bit: Option<i64>,
    pub iptables_masquerade_all: bool,
    pub nftables_masquerade_all: bool,
    pub detect_local_mode: String,
    pub bridge_interface: String,
    pub interface_name_prefix: String,
}

impl Draft {
    /// Sets kube-proxy's mode and the defaults that depend on it. Later settings replace these.
    ///
    /// KUBE: in mode nftables, node ports are served on the primary addresses only, and packets to
    /// a cluster IP without a service are dropped.
    pub fn set_mode(&mut self, mode: &str) -> Result<(), Problem> {
        let Ok(known) = Mode::from_str(mode, false) else {
            let remedy =
                "is no mode; leave it out, or use iptables or nftables for what differs in them";
            return Err(Problem::new(mode, remedy));
        };
        self.mode = Some(known);
        if known == Mode::Nftables {
            self.config.node_port_addresses = NodePortAddresses::Primary;
            self.config.unallocated_cluster_ips = UnallocatedClusterIps::Drop;
        }
        Ok(())
    }

    /// Sets the proxy name whose Services are served; an empty one is none. KUBE: a label's value
    /// has up to 63 letters, digits, `-`, `_` and `.`, and begins and ends with a letter or digit.
    pub fn set_service_proxy_name(&mut self, name: &str) -> Result<(), Problem> {
        const INNER: [char; 3] = ['-', '_', '.'];
        let may_have = |one: char| one.is_ascii_alphanumeric() || INNER.contains(&one);
        let is_within = !name.starts_with(INNER) && !name.ends_with(INNER);
        if name.len() > 63 || !name.chars().all(may_have) || !is_within {
            let remedy = "cannot be a label's value; use up to 63 letters, digits, -, _ and .";
            return Err(Problem::new(name, remedy));
        }
        self.config.service_proxy_name = Some(name.to_owned()).filter(|name| !name.is_empty());
        Ok(())
    }

    /// Returns the configuration, after every setting has been read.
    pub fn finish(self) -> Result<Config, ConfigError> {
        let local_detection = self.local_detection()?;
        let marks = self.marks()?;
        Ok(Config {
            local_detection,
            marks,
            masquerade_all: self.masquerade_all(),
            mode: self.mode.unwrap_or_default(),
            ..self.config
        })
    }

    /// Whether all service traffic is masqueraded. KUBE: the mode selects which `masqueradeAll`
    /// counts. Without a mode, either one is enough.
    fn masquerade_all(&self) -> bool {
        match self.mode {
            Some(Mode::Nftables) => self.nftables_masquerade_all,
            Some(Mode::Iptables | Mode::Ipvs) => self.iptables_masquerade_all,
            None => self.iptables_masquerade_all || self.nftables_masquerade_all,
        }
    }

    /// Decides how to recognise pods. KUBE: ClusterCIDR without ranges is no error, and knows none.
    fn local_detection(&self) -> Result<LocalDetection, ConfigError> {
        use PodInterfaces::{Named, Prefix};
        let mode = self.detect_local_mode.as_str();
        let refuse = |remedy: &str| Problem::new(mode, remedy).with_key("detectLocalMode");
        let by = |key, name: &str, interfaces: fn(String) -> PodInterfaces| match name {
            "" => Err(refuse(&format!(
                "needs {key} to be set; set it or use another mode"
            ))),
            name => Ok(LocalDetection::Interface(interfaces(name.to_owned()))),
        };
        let (bridge, prefix) = (&self.bridge_interface, &self.interface_name_prefix);
        let has_ranges = !self.config.cluster_cidr.is_empty();
        match mode {
            "" | "ClusterCIDR" if !has_ranges => Ok(LocalDetection::None),
            "" | "ClusterCIDR" => Ok(LocalDetection::ClusterCidr),
            "NodeCIDR" => Ok(LocalDetection::NodeCidr),
            "BridgeInterface" => by("detectLocal.bridgeInterface", bridge, Named),
            "InterfaceNamePrefix" => by("detectLocal.interfaceNamePrefix", prefix, Prefix),
            _ => Err(refuse(
                "is no mode; use ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix",
            )),
        }
    }

    /// Returns the bits that mark packets. KUBE: the mode selects which `masqueradeBit` counts.
    /// Without a mode, the bit of iptables is used, or else the bit of nftables.
    fn marks(&self) -> Result<Marks, ConfigError> {
        const IPTABLES: &str = "iptables.masqueradeBit";
        const NFTABLES: &str = "nftables.masqueradeBit";
        let (iptables, nftables) = (self.iptables_masquerade_bit, self.nftables_masquerade_bit);
        let (key, bit) = match (self.mode, iptables) {
            (Some(Mode::Nftables), _) | (None, None) => (NFTABLES, nftables),
            (_, bit) => (IPTABLES, bit),
        };
        let Some(bit) = bit else {
            return Ok(Marks::DEFAULT);
        };
        let marks = u32::try_from(bit).ok().and_then(Marks::with_masquerade_bit);
        marks.ok_or_else(|| {
            let remedy = "is not a bit number; use 0 to 31 (14 is the default)";
            Problem::new(bit, remedy).with_key(key)
        })
    }
}
