// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Settings of the agent that tests and benchmarks vary.

/// Where connections are translated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum SocketBalancing {
    /// At the sockets of pods and node processes.
    All,
    /// At the sockets of node processes; pods' connections per packet.
    Host,
}

impl SocketBalancing {
    pub const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Host => "host",
        }
    }
}

/// Whether XDP takes packets of known flows at the uplink.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Xdp {
    Off,
    Native,
    Generic,
}

impl Xdp {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }
}

/// How translated packets leave the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Forwarding {
    /// By its stack.
    Stack,
    /// Past it, where it has let packets of the same connection pass.
    Auto,
}

impl Forwarding {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stack => "stack",
            Self::Auto => "auto",
        }
    }
}

/// Returns the text of a configuration file: the header, `settings`, and each setting (name, value)
/// of `more` whose name is not in `settings`.
pub fn config_file(settings: &str, more: &[(&str, String)]) -> String {
    let header = [
        ("apiVersion", "kubeproxy.config.k8s.io/v1alpha1".to_owned()),
        ("kind", "KubeProxyConfiguration".to_owned()),
    ];
    let more = header.iter().chain(more);
    let lines = more.filter(|(key, _)| !settings.contains(key));
    let lines = lines.map(|(key, value)| format!("{key}: {value}"));
    let lines: Vec<_> = lines.collect();
    match settings.trim_start().strip_prefix('{') {
        Some(rest) => format!("{{{}, {rest}\n", lines.join(", ")),
        // The other settings are at the end of the file: a test counts the lines of its own.
        None => format!("{}\n{}\n", settings.trim_end(), lines.join("\n")),
    }
}
