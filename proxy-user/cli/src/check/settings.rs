// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What kube-proxy's settings mean to portolan, from the table of docs/settings.md; and which
//! parameters of nf_conntrack differ from the settings.

use agent::config_warnings;
use config::{Config, Mode, processors, table};
use datapath::maps::pins::generations;

use crate::{
    conntrack::{self, Due},
    finding::{Finding, Level},
};

/// Returns findings about settings that have no effect, or another meaning than in kube-proxy.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let unused = config.unused.iter();
    let unused = unused.map(|name| Finding::of("unused-setting", &[name, &why_unused(name)]));
    let mut found: Vec<_> = unused.collect();
    // The unused settings have been reported one by one above.
    let others = Config {
        unused: Vec::new(),
        ..config.clone()
    };
    found.extend(config_warnings(&others).into_iter().map(Finding::from));
    found.extend((config.mode == Mode::Ipvs).then(|| Finding::of("mode-ipvs", &[])));
    let differences = table::DIFFERENCES.iter();
    found.extend(differences.map(|(key, why)| Finding::new(Level::Note, *key, *why)));
    found
}

fn why_unused(name: &str) -> &'static str {
    let flag = name.strip_prefix("--");
    let is_it = |unused: &&table::Unused| match flag {
        Some(flag) => unused.flags.contains(&flag),
        None => unused.keys.iter().any(|key| table::is_within(name, key)),
    };
    table::unused().find(is_it).map_or("", |unused| &unused.why)
}

/// Returns notes about parameters of nf_conntrack that differ from the settings. None on a node
/// without portolan's maps, because another program sets the parameters there.
pub(super) fn conntrack(config: &Config) -> Vec<Finding> {
    let is_here = generations(&config.pin_directory).is_ok_and(|all| !all.is_empty());
    if !is_here || !conntrack::is_loaded() {
        return Vec::new();
    }
    let due = conntrack::due(&config.conntrack, processors());
    // A parameter that cannot be read does not exist on this node.
    let differ = due.filter_map(|(name, due)| {
        let Due { now, wanted, .. } = due.ok()?;
        Some(Finding::of("conntrack-differs", &[&name, &now, &wanted]))
    });
    differ.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::LocalDetection;

    fn texts(config: &Config) -> Vec<String> {
        let found = findings(config).into_iter();
        let texts = found.map(|one| format!("{}: {}", one.about, one.found));
        texts.collect()
    }

    #[test]
    fn settings_without_effect_are_named_with_the_reason() {
        let usual = Config {
            local_detection: LocalDetection::ClusterCidr,
            ..Config::default()
        };
        let plain = texts(&usual).len();
        let texts = texts(&Config {
            unused: vec!["ipvs.scheduler".into(), "--feature-gates".into()],
            mode: Mode::Ipvs,
            ..usual
        });
        assert_eq!(texts.len(), plain + 3);
        assert!(texts[0].starts_with("ipvs.scheduler: has no effect. IPVS is not used"));
        assert!(texts[1].starts_with("--feature-gates: has no effect. kube-proxy's feature gates"));
        assert!(texts[2].starts_with("mode ipvs: means the same as iptables"));
    }

    #[test]
    fn every_unused_setting_has_a_reason() {
        for unused in table::unused() {
            let flags = unused.flags.iter().map(|flag| format!("--{flag}"));
            let keys = unused.keys.iter().map(|key| (*key).to_owned());
            for name in flags.chain(keys) {
                assert_eq!(why_unused(&name), unused.why, "{name}");
            }
        }
    }

    #[test]
    fn warnings_of_the_configuration_are_findings() {
        let texts = texts(&Config::default());
        let mut about = texts.iter().map(|text| text.split(':').next());
        assert!(about.any(|key| key == Some("detectLocalMode")), "{texts:?}");
    }
}
