// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of settings. The file's keys, the flags, `--write-config-to`, `--help` and
//! docs/settings.md all come from it. A new setting needs an entry here and a field in `Config`.

mod limits;
mod node;
mod services;
mod unused;

use super::setting::{Group, Setting};

pub(super) use limits::LOG_LEVEL;
pub use unused::{DIFFERENCES, Unused};

/// All settings that have an effect in portolan, in the order of docs/settings.md. They are also
/// read in this order: `mode` comes first, because the defaults of others depend on it.
pub const GROUPS: &[Group] = &[
    node::NODE,
    node::LISTENING,
    node::PODS,
    services::SERVICES,
    services::SOCKETS,
    services::FORWARDING,
    limits::TIMES,
    limits::MAPS,
    limits::LOGS,
];

/// The keys that say what kind of file it is, with their only allowed values.
pub const HEADER: &[(&str, &str)] = &[
    ("apiVersion", "kubeproxy.config.k8s.io/v1alpha1"),
    ("kind", "KubeProxyConfiguration"),
];

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

/// Returns every setting that has an effect in portolan.
pub fn settings() -> impl Iterator<Item = &'static Setting> {
    GROUPS.iter().flat_map(|group| group.settings)
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
    unused::UNUSED.iter()
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
    keys().flat_map(move |key| std::iter::successors(outer(key), move |key| outer(key)))
}

/// Returns what a path in the file is; None if the path is unknown.
pub(super) fn find(key: &str) -> Option<Entry> {
    let header = || HEADER.iter().find(|(name, _)| *name == key);
    let setting = || settings().find(|setting| setting.key == key);
    let unused = || {
        unused()
            .flat_map(|unused| unused.keys)
            .find(|name| **name == key)
    };
    None.or_else(|| header().map(|(key, value)| Entry::Header(key, value)))
        .or_else(|| setting().map(Entry::Setting))
        .or_else(|| unused().map(|name| Entry::Unused(name)))
        .or_else(|| sections().find(|name| *name == key).map(|_| Entry::Section))
}

/// Splits a key into section and name: `a.b.c` into `a.b` and `c`. Outside of sections, the section
/// is empty.
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
