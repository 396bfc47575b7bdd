// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether the configuration file has changed, and whether a running agent adopts a setting.

use std::{fs, path::PathBuf};

use super::{Config, ConfigError, table};

/// Reads the configuration file and the flags again.
type Read = Box<dyn Fn() -> Result<Config, ConfigError> + Send>;

/// The configuration file, and its text when it was last read.
pub struct ConfigFile {
    path: PathBuf,
    read: Read,
    /// The text of which the settings were last read; None: the file was not readable.
    known: Option<String>,
    /// The text that the last look found. A new one may be half written, and is not read yet.
    last: Option<String>,
}

impl ConfigFile {
    /// Create this before the file is first read, so that no change is missed.
    pub fn new(path: PathBuf, read: Read) -> Self {
        let known = fs::read_to_string(&path).ok();
        Self {
            last: known.clone(),
            known,
            path,
            read,
        }
    }

    /// Returns the settings, or why they cannot be used, if the file has a new text that was the
    /// same at the previous look; else None. This compares texts and not times, because the files
    /// of a ConfigMap volume are links that are replaced.
    pub fn look(&mut self) -> Option<Result<Config, ConfigError>> {
        let text = fs::read_to_string(&self.path).ok();
        let last = std::mem::replace(&mut self.last, text);
        if self.last != last || self.last == self.known {
            return None;
        }
        self.known = last;
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
    !table::settings().any(|setting| setting.key == key && setting.at_once)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::RawConfig;

    fn file(path: &Path) -> ConfigFile {
        let again = path.to_owned();
        let read = move || RawConfig::read(&again)?.check();
        ConfigFile::new(path.to_owned(), Box::new(read))
    }

    fn write(path: &Path, text: &str) {
        let header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
        fs::write(path, format!("{header}{text}")).expect("a file");
    }

    #[test]
    fn a_changed_text_is_read_once_when_it_has_settled() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config.yaml");
        write(&path, "hostnameOverride: a\n");
        let mut file = file(&path);
        let settled = |file: &mut ConfigFile| {
            assert!(file.look().is_none(), "it has just changed");
            file.look().expect("settled")
        };
        assert!(file.look().is_none() && file.look().is_none(), "the same");

        write(&path, "hostnameOve");
        assert!(file.look().is_none(), "it may be half written");
        write(&path, "hostnameOverride: b\n");
        let config = settled(&mut file).expect("valid");
        assert_eq!(config.hostname_override.as_deref(), Some("b"));
        assert!(file.look().is_none(), "once");

        // The kubelet replaces a ConfigMap's files in this way.
        let other = folder.path().join("other.yaml");
        write(&other, "hostnameOverride: c\n");
        fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink(&other, &path).expect("a link");
        let config = settled(&mut file).expect("valid");
        assert_eq!(config.hostname_override.as_deref(), Some("c"));

        fs::write(&other, "# emptied\n").expect("a file");
        let error = settled(&mut file).expect_err("no settings");
        assert!(error.to_string().contains("this is missing"), "{error}");

        fs::remove_file(&other).expect("removed");
        let error = settled(&mut file).expect_err("unreadable");
        let begins = format!("cannot read the configuration file {};", path.display());
        assert!(error.to_string().starts_with(&begins), "{error}");
        assert!(file.look().is_none(), "once");
    }

    #[test]
    fn changed_settings_are_listed_by_key() {
        let parse = |text| RawConfig::parse_part("f", text).and_then(RawConfig::check);
        let config = |text| parse(text).expect("valid");
        let before = config("{}");
        let after = config("{nodePortAddresses: [primary], portolan: {answerPing: true}}");
        let changed = before.differing(&after);
        assert_eq!(changed, ["nodePortAddresses", "portolan.answerPing"]);
        assert!(!waits_for_start("nodePortAddresses") && waits_for_start("portolan.answerPing"));
        assert_eq!(before.differing(&config("udpIdleTimeout: 3")), [""; 0]);
        let ranges = before.differing(&config("clusterCIDR: 10.0.0.0/8"));
        assert_eq!(ranges, ["clusterCIDR"], "the mode is the same");
    }
}
