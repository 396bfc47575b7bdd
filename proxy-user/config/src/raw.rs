// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Settings as the file and the flags give them, unchecked. `file` and the command line's flags
//! fill them, and `check` makes a `Config` of them.

use std::collections::BTreeMap;

use control::object::Warning;

use super::{
    Config, ConfigError,
    draft::Draft,
    setting::{Setting, Value},
    table, values,
};

/// Settings as the file or the flags give them, unchecked. A setting that is not given has its
/// default.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RawConfig {
    /// The given values by their keys in `table`.
    values: BTreeMap<&'static str, Value>,
    /// kube-proxy's settings that are given but have no effect in portolan.
    unused: Vec<String>,
    /// Flags that are given but have no effect, because there is a configuration file.
    ignored_flags: Vec<String>,
    /// Warnings about keys of the file that are unknown or given twice.
    ignored: Vec<Warning>,
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

    /// Gives a setting a value.
    pub fn set(&mut self, setting: &Setting, value: Value) {
        self.values.insert(setting.key, value);
    }

    /// True if a setting is given.
    pub fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// Returns the keys of the settings that are given.
    pub fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.values.keys().copied()
    }

    /// Removes the value of the setting with this key, or of all settings of the section with this
    /// path.
    pub fn forget(&mut self, path: &str) {
        self.values.retain(|key, _| !table::is_within(key, path));
    }

    /// Removes the values that come from flags without effect next to a configuration file, except
    /// for the keys in `kept`.
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

    /// Notes a warning about an unknown or repeated key of the file.
    pub fn ignore(&mut self, warning: Warning) {
        self.ignored.push(warning);
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
