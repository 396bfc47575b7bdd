// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Services and settings as text, for the files of stored sequences.

use std::{fmt, str::FromStr};

use proxy_common::{EndpointSet, FrontendKind};

use crate::{
    kept::parsed,
    operations::{PROTOCOLS, name_of, named},
    services::{Backend, Frontend, NodeSettings, Service},
};

const KINDS: [(FrontendKind, &str); 4] = [
    (FrontendKind::ClusterIp, "cluster-ip"),
    (FrontendKind::ExternalIp, "external-ip"),
    (FrontendKind::LoadBalancer, "balancer"),
    (FrontendKind::NodePort, "node-port"),
];

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, name_of(&PROTOCOLS, self.protocol))?;
        for Frontend { kind, at, local } in &self.frontends {
            let local = if *local { "/local" } else { "" };
            write!(f, " {}={at}{local}", name_of(&KINDS, *kind))?;
        }
        for Backend { at, sets, weight } in &self.backends {
            write!(f, " backend={at}/{}", sets.0)?;
            if *weight != 1 {
                write!(f, "*{weight}")?;
            }
        }
        if self.affinity > 0 {
            write!(f, " affinity={}", self.affinity)?;
        }
        if self.is_maglev {
            write!(f, " selection=maglev")?;
        }
        self.sources
            .iter()
            .try_for_each(|range| write!(f, " source={range}"))
    }
}

impl FromStr for Service {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let (Some(name), Some(protocol)) = (words.next(), words.next()) else {
            return Err("a service is: NAME PROTOCOL [PART ...]".into());
        };
        let mut service = Self {
            name: name.into(),
            protocol: named(&PROTOCOLS, protocol)?,
            frontends: Vec::new(),
            backends: Vec::new(),
            affinity: 0,
            is_maglev: false,
            sources: Vec::new(),
        };
        for word in words {
            let (part, value) = word.split_once('=').ok_or("a part is NAME=VALUE")?;
            match part {
                "affinity" => service.affinity = parsed(value)?,
                "selection" => service.is_maglev = value == "maglev",
                "source" => service.sources.push(parsed(value)?),
                "backend" => {
                    let (at, sets) = value.split_once('/').ok_or("a backend is AT/SETS")?;
                    let (sets, weight) = sets.split_once('*').unwrap_or((sets, "1"));
                    service.backends.push(Backend {
                        at: parsed(at)?,
                        sets: EndpointSet(parsed(sets)?),
                        weight: parsed(weight)?,
                    });
                }
                kind => {
                    let (at, local) = value.split_once('/').unwrap_or((value, ""));
                    service.frontends.push(Frontend {
                        kind: named(&KINDS, kind)?,
                        at: parsed(at)?,
                        local: local == "local",
                    });
                }
            }
        }
        Ok(service)
    }
}

impl fmt::Display for NodeSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, is) in [
            ("masquerade-all", self.masquerade_all),
            ("no-detection", !self.detects_pods),
            ("by-interface", self.by_interface),
            ("mark-only", self.mark_only),
            ("no-resets", !self.resets),
            ("ping", self.answer_ping),
            ("allocated", self.allocated),
        ] {
            if is {
                write!(f, " {name}")?;
            }
        }
        write!(f, " ports={}-{}", self.ports.0, self.ports.1)
    }
}

impl FromStr for NodeSettings {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut settings = Self::default();
        for word in text.split_whitespace() {
            match word.split_once('=').unwrap_or((word, "")) {
                ("masquerade-all", _) => settings.masquerade_all = true,
                ("no-detection", _) => settings.detects_pods = false,
                ("by-interface", _) => settings.by_interface = true,
                ("mark-only", _) => settings.mark_only = true,
                ("no-resets", _) => settings.resets = false,
                ("ping", _) => settings.answer_ping = true,
                ("allocated", _) => settings.allocated = true,
                ("ports", range) => {
                    let (low, high) = range.split_once('-').ok_or("a range is LOW-HIGH")?;
                    settings.ports = (parsed(low)?, parsed(high)?);
                }
                _ => return Err(format!("unknown setting {word}")),
            }
        }
        Ok(settings)
    }
}
