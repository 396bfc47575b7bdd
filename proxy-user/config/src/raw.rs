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

/// Settings as read, unchecked. A missing setting has its default.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RawConfig {
    /// The values by their keys in the table.
    values: BTreeMap<&'static str, Value>,
    /// Names of kube-proxy's settings that are given but mean nothing here.
    unused: Vec<String>,
    /// Flags that have no effect next to a configuration file.
    ignored_flags: Vec<String>,
    /// Keys that are unknown or given twice.
    ignored: Vec<Warning>,
}

impl RawConfig {
    /// Returns the log level that corresponds to klog's verbosity.
    pub fn with_verbosity(verbosity: u32) -> Self {
        let level = Value::Text(values::level_of_verbosity(verbosity.into()).to_owned());
        Self {
            values: [(table::LOG_LEVEL, level)].into(),
            ..Self::default()
        }
    }

    /// Sets a setting of the table.
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

    /// Removes a setting, or all settings of a section.
    pub fn forget(&mut self, path: &str) {
        self.values.retain(|key, _| !table::is_within(key, path));
    }

    /// Removes the flags that have no effect next to a configuration file, unless they are among
    /// `kept`.
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

    /// Notes a setting of kube-proxy that means nothing here.
    pub fn add_unused(&mut self, name: String) {
        self.unused.push(name);
    }

    /// Merges both; the settings of `self` override those of `other`.
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
