// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of settings. The file's keys, the flags, `--write-config-to`, `--help` and
//! docs/settings.md all come from it. A new setting needs a text in `settings.md`, its kind in
//! `kinds` and a field in `Config`.

mod kinds;

use std::{iter, sync::LazyLock};

use super::setting::{Group, Setting};

/// What is said of the settings.
pub(super) const TEXTS: &str = include_str!("settings.md");

/// The key of the setting that the flag `-v` sets.
pub(crate) const LOG_LEVEL: &str = "portolan.logLevel";

/// The keys that say what kind of file it is, with their only allowed values.
pub const HEADER: &[(&str, &str)] = &[
    ("apiVersion", "kubeproxy.config.k8s.io/v1alpha1"),
    ("kind", "KubeProxyConfiguration"),
];

/// Settings of kube-proxy that have no effect in portolan, for the same reason. They are accepted,
/// so that kube-proxy's file and command line work unchanged. The agent logs those that are given.
pub struct Unused {
    /// The keys in the file, with dots; a key may be that of an entire section.
    pub keys: Vec<&'static str>,
    /// The flags without their dashes.
    pub flags: Vec<&'static str>,
    pub why: String,
}

/// The settings whose values at the HTTP path `/configz` differ from kube-proxy's for the same
/// file, and why. A test compares all others.
pub const DIFFERENCES: &[(&str, &str)] =
    &[("logging.verbosity", "It is shown as `portolan.logLevel`.")];

/// What a key of the configuration file is.
#[derive(Clone, Copy)]
pub(super) enum Entry {
    /// A key of [`HEADER`], with its only allowed value.
    Header(&'static str, &'static str),
    Setting(&'static Setting),
    /// The key of a setting of kube-proxy that has no effect in portolan.
    Unused(&'static str),
    /// A mapping that contains more keys.
    Section,
}

/// Returns all settings that have an effect in portolan, in the order of docs/settings.md. They are
/// also read in this order: `mode` comes first, because the defaults of others depend on it.
pub fn groups() -> &'static [Group] {
    static ALL: LazyLock<Vec<Group>> =
        LazyLock::new(|| TEXTS.split("\n# ").skip(1).map(group).collect());
    &ALL
}

fn group(text: &'static str) -> Group {
    let mut parts = text.split("\n## ");
    let head = parts.next().unwrap_or_default();
    let (title, about) = head.split_once('\n').unwrap_or((head, ""));
    Group {
        title,
        about: in_one_line(about),
        settings: parts.filter_map(setting).collect(),
    }
}

/// Reads what is said of a setting; None if it has no kind.
fn setting(text: &'static str) -> Option<Setting> {
    let (names, text) = text.split_once('\n')?;
    let at_once = names.strip_suffix(", at once");
    let mut names = at_once.unwrap_or(names).split(" --");
    let key = names.next()?;
    let (value, text) = match text.strip_prefix("Value: ") {
        Some(text) => text.split_once('\n')?,
        None => ("", text),
    };
    let (what, unset) = text.split_once("\nDefault: ").unwrap_or((text, ""));
    Some(Setting {
        key,
        flag: names.next(),
        at_once: at_once.is_some(),
        kind: kinds::kind(key)?,
        value: value.split_once(", ").unwrap_or_default(),
        unset: Some(in_one_line(unset)).filter(|text| !text.is_empty()),
        what: in_one_line(what),
    })
}

fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns every setting that has an effect in portolan.
pub fn settings() -> impl Iterator<Item = &'static Setting> {
    groups().iter().flat_map(|group| &group.settings)
}

/// True if the setting's flag has no effect next to a configuration file. KUBE: kube-proxy ignores
/// all its flags then, except those for logs and the node's name.
pub fn flag_is_ignored_with_file(setting: &Setting) -> bool {
    let key = setting.key;
    let flag_holds = ["portolan", "logging", "hostnameOverride"];
    !flag_holds.iter().any(|path| is_within(key, path))
}

/// Returns kube-proxy's settings that have no effect in portolan.
pub fn unused() -> impl Iterator<Item = &'static Unused> {
    static ALL: LazyLock<Vec<Unused>> = LazyLock::new(|| {
        let parts = include_str!("unused.md").split("\n# ").skip(1);
        let unused = parts.map(|part| {
            let (names, why) = part.split_once('\n').unwrap_or((part, ""));
            let is_flag = |name: &&str| name.starts_with("--");
            let (flags, keys): (Vec<_>, _) = names.split(' ').partition(is_flag);
            let flags = flags.iter().map(|flag| flag.trim_start_matches("--"));
            Unused {
                keys,
                flags: flags.collect(),
                why: in_one_line(why),
            }
        });
        unused.collect()
    });
    ALL.iter()
}

/// Returns every key that the file may have, without its sections.
pub(super) fn keys() -> impl Iterator<Item = &'static str> {
    let header = HEADER.iter().map(|(key, _)| *key);
    let settings = settings().map(|setting| setting.key);
    let unused = unused().flat_map(|unused| unused.keys.iter().copied());
    header.chain(settings).chain(unused)
}

/// Returns the sections that the file may have, some of them more than once.
pub(super) fn sections() -> impl Iterator<Item = &'static str> {
    let outer = |key| Some(split(key).0).filter(|section| !section.is_empty());
    keys().flat_map(move |key| iter::successors(outer(key), move |key| outer(key)))
}

/// Returns what a path in the file is; None if the path is unknown.
pub(super) fn find(key: &str) -> Option<Entry> {
    let header = || HEADER.iter().find(|(name, _)| *name == key);
    let setting = || settings().find(|setting| setting.key == key);
    let unused = || {
        let mut keys = unused().flat_map(|unused| &unused.keys);
        keys.find(|name| **name == key)
    };
    None.or_else(|| header().map(|(key, value)| Entry::Header(key, value)))
        .or_else(|| setting().map(Entry::Setting))
        .or_else(|| unused().map(|name| Entry::Unused(name)))
        .or_else(|| sections().find(|name| *name == key).map(|_| Entry::Section))
}

/// Splits a key into section and name, `a.b.c` into `a.b` and `c`; the section may be empty.
pub(super) fn split(key: &str) -> (&str, &str) {
    key.rsplit_once('.').unwrap_or(("", key))
}

/// True if a key is this path, or is in the section with this path.
pub fn is_within(key: &str, path: &str) -> bool {
    let rest = key.strip_prefix(path);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns the key of a name in a section: `a.b` and `c` make `a.b.c`.
pub(super) fn join(section: &str, name: &str) -> String {
    match section {
        "" => name.to_owned(),
        section => format!("{section}.{name}"),
    }
}
