// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that the table of settings is complete: anything that an entry lacks fails here.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    super::{
        setting::{Kind, Read, Setting, Value},
        table,
    },
    *,
};

/// Returns a value of the setting that is not its default.
fn sample(setting: &Setting) -> Value {
    let text = |text: &str| Value::Text(text.to_owned());
    match (setting.kind, setting.key) {
        (Kind::Bool(_), _) | (_, "nftables.masqueradeAll" | "iptables.masqueradeAll") => {
            Value::Bool(setting.default() != "true")
        }
        (Kind::Choice(_), _) => {
            let words = setting.kind.words();
            let other = words.iter().find(|word| {
                let default = setting.write(&Config::default());
                default != Some(text(word.get_name()))
            });
            text(other.expect("another word").get_name())
        }
        (Kind::Seconds(_), _) | (_, "portolan.abandonedAfter") => text("77s"),
        (Kind::Entries(_) | Kind::Connections(..), _) => Value::Number(77),
        (Kind::Address(_), _) | (_, "portolan.probeBindAddress") => text("127.0.0.7:77"),
        (Kind::Patterns(_), _) => Value::list(&["a*", "!b"]),
        (_, "mode") => text("nftables"),
        (_, "bindAddress") => text("::1"),
        (_, "logging.verbosity") => Value::Number(4),
        (_, "portolan.logLevel") => text("trace"),
        (_, "clusterCIDR") => text("10.7.0.0/16,fd07::/48"),
        (_, "detectLocal.clusterCIDRs") => Value::list(&["10.7.0.0/16", "fd07::/48"]),
        (_, "detectLocalMode") => text("NodeCIDR"),
        (_, "nodePortAddresses") => Value::list(&["10.7.0.0/16"]),
        (_, "iptables.masqueradeBit" | "nftables.masqueradeBit") => Value::Number(7),
        (
            _,
            "portolan.maps.memory" | "portolan.clientAddressPort" | "portolan.servicesWithMetrics",
        ) => Value::Number(77),
        (_, "portolan.agentsService") => text("kube-system/agents"),
        (_, "portolan.ownAddresses") => Value::list(&["169.254.20.10"]),
        (_, "portolan.masqueradePorts") => Value::list(&["1024-2047"]),
        (Kind::Special(Read::Any(_), _), _) | (_, "portolan.serviceProxyName") => text("other"),
        (_, key) => panic!("{key} is new and special: name a value here that is not its default"),
    }
}

/// Returns another setting, as YAML, without which this one has no effect; empty if none is needed.
fn companion(setting: &Setting) -> &'static str {
    match setting.key {
        "detectLocal.bridgeInterface" => "detectLocalMode: BridgeInterface",
        "detectLocal.interfaceNamePrefix" => "detectLocalMode: InterfaceNamePrefix",
        _ => "",
    }
}

/// Returns the configuration in which only this setting and its companion are given.
fn changed_by(setting: &Setting) -> Config {
    let mut raw = RawConfig::parse_part("f", companion(setting)).expect(setting.key);
    raw.set(setting, sample(setting));
    raw.check().expect(setting.key)
}

/// Returns the fields of a configuration, with their values in debug format.
fn fields(config: &Config) -> BTreeMap<String, String> {
    let text = format!("{config:#?}").replace("\n     ", " ");
    let fields = text.lines().filter_map(|line| line.split_once(": "));
    let owned = |(name, value): (&str, &str)| (name.trim().to_owned(), value.to_owned());
    fields.map(owned).collect()
}

#[test]
fn every_field_of_the_configuration_is_changed_by_a_setting() {
    let default = fields(&Config::default());
    assert!(default.contains_key("idle_times"), "{default:?}");
    let changed = table::settings().map(|setting| fields(&changed_by(setting)));
    let changed: Vec<_> = changed.collect();
    let others = "unused ignored_flags ignored sources node_ips cgroup_root";
    for (name, value) in &default {
        let is_other = others.split(' ').any(|other| other == name);
        let is_changed = changed.iter().any(|config| config.get(name) != Some(value));
        assert!(is_other || is_changed, "no entry of the table sets {name}");
    }
}

#[test]
fn every_setting_has_an_effect_and_survives_writing_and_reading() {
    let shown = document(&Config::default()).expect("written");
    for setting in table::settings() {
        let key = setting.key;
        let changed = changed_by(setting);
        assert_ne!(changed, Config::default(), "{key} changes nothing");
        let pointer = format!("/{}", key.replace('.', "/"));
        assert!(shown.pointer(&pointer).is_some(), "{key}");
        let written = render(&changed).expect(key);
        assert_eq!(config(&written).expect(&written), changed, "{key}");
    }
}

#[test]
fn an_empty_text_and_the_written_defaults_are_the_default_configuration() {
    assert_eq!(config("").expect("valid"), Config::default());
    let written = render(&Config::default()).expect("written");
    assert_eq!(config(&written).expect(&written), Config::default());
}

#[test]
fn the_settings_table_has_each_key_once_and_no_key_is_a_section() {
    let mut keys = BTreeSet::new();
    for key in table::keys() {
        assert!(keys.insert(key), "{key} stands twice");
    }
    let texts = table::TEXTS.matches("\n## ").count();
    assert_eq!(table::settings().count(), texts, "a setting without a kind");
    for section in table::sections() {
        assert!(!keys.contains(section), "{section} is a key and a section");
    }
}

#[test]
fn only_flags_that_set_two_settings_are_in_the_table_twice() {
    let mut flags = BTreeSet::new();
    let settings = table::settings().filter_map(|setting| setting.flag);
    let unused = table::unused().flat_map(|unused| unused.flags.iter().copied());
    let twice = settings.chain(unused).filter(|flag| !flags.insert(*flag));
    let twice: Vec<_> = twice.collect();
    assert_eq!(twice, ["cluster-cidr", "masquerade-all"]);
}

#[test]
fn every_text_of_the_settings_table_ends_with_a_full_stop() {
    let settings = table::settings().map(|setting| &setting.what);
    let groups = table::groups().iter().map(|group| &group.about);
    let unused = table::unused().map(|unused| &unused.why);
    for text in settings.chain(groups).chain(unused) {
        assert!(text.ends_with('.') && !text.contains("  "), "{text}");
    }
}

/// Settings, the key that is unknown, and the nearest known one.
const UNKNOWN: &str = include_str!("unknown.txt");

#[test]
fn an_unknown_keys_warning_names_a_known_key_that_is_near() {
    for [text, key, nearest] in rows(UNKNOWN) {
        let correct = match &*nearest {
            "" => String::new(),
            nearest => format!("correct it to {nearest:?}, or "),
        };
        let expected = format!("unknown key {key:?} is ignored; {correct}remove it");
        let ignored = config(&text).expect("valid").ignored;
        let reasons: Vec<_> = ignored.iter().map(|warning| &*warning.reason).collect();
        assert_eq!(reasons, [expected]);
    }
}
