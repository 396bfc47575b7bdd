// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan run`: the agent's flags, which override the configuration file.

use std::{net::IpAddr, path::PathBuf};

use anyhow::{Context, bail};

use super::{cleanup, kube_proxy::UnusedFlags};
use crate::{
    agent,
    config::{
        self, Config, Conntrack, MasqueradeBits, RawConfig, SocketBalancing, UnallocatedClusterIps,
    },
    model::Converter,
    telemetry,
    warnings::Warnings,
    watch::{
        self,
        api_server::{Access, ApiServer},
        manifests::Manifests,
    },
};

/// Arguments of `portolan run`; flags that kube-proxy has keep its names.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct RunArgs {
    /// Folder of Service, EndpointSlice and Node manifests (YAML, JSON) to serve and follow.
    #[arg(long, value_name = "DIR")]
    pub manifests: Option<PathBuf>,
    /// Credentials and address of the API server to follow.
    #[arg(long, value_name = "FILE", conflicts_with = "manifests")]
    pub kubeconfig: Option<PathBuf>,
    /// The API server's own address, not that of its service; overrides the kubeconfig's.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "manifests")]
    pub master: Option<String>,
    /// Configuration file; flags override it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The node's name, where it differs from the host name.
    #[arg(long, value_name = "NODE")]
    pub hostname_override: Option<String>,
    /// The node's addresses, one per family, where its Node object names no InternalIP.
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    pub node_ip: Vec<IpAddr>,
    /// Ranges of all pods of the cluster: clients outside are masqueraded.
    #[arg(long, value_name = "CIDRS")]
    pub cluster_cidr: Option<String>,
    /// Directory on a BPF file system in which maps and programs are pinned.
    #[arg(long, value_name = "DIR")]
    pub pin_dir: Option<PathBuf>,
    /// Root of the cgroup2 hierarchy, where the socket hooks belong.
    #[arg(long, value_name = "DIR")]
    pub cgroup_root: Option<PathBuf>,
    /// Address and port of the metrics server.
    #[arg(long, value_name = "ADDRESS")]
    pub metrics_bind_address: Option<String>,
    /// Address and port of /healthz and /livez.
    #[arg(long, value_name = "ADDRESS")]
    pub healthz_bind_address: Option<String>,
    /// Masquerade every connection to a cluster IP.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub masquerade_all: Option<bool>,
    /// Bit of the packet mark that says what is to be masqueraded, 0 to 31, where the mode is not nftables.
    #[arg(long, value_name = "BIT")]
    pub iptables_masquerade_bit: Option<i64>,
    /// kube-proxy's mode, for the defaults that differ by it: iptables or nftables.
    #[arg(long, value_name = "MODE")]
    pub proxy_mode: Option<String>,
    /// How pods are told from other clients: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix.
    #[arg(long, value_name = "MODE")]
    pub detect_local_mode: Option<String>,
    /// For BridgeInterface: the bridge that pods are on.
    #[arg(long, value_name = "NAME")]
    pub pod_bridge_interface: Option<String>,
    /// For InterfaceNamePrefix: how the names of pods' interfaces begin.
    #[arg(long, value_name = "PREFIX")]
    pub pod_interface_name_prefix: Option<String>,
    /// How long an established TCP connection may be idle, like 24h0m0s.
    #[arg(long, value_name = "DURATION")]
    pub conntrack_tcp_timeout_established: Option<String>,
    /// How long a TCP connection that one side has closed may be idle.
    #[arg(long, value_name = "DURATION")]
    pub conntrack_tcp_timeout_close_wait: Option<String>,
    /// How long an unanswered UDP flow may be idle.
    #[arg(long, value_name = "DURATION")]
    pub conntrack_udp_timeout: Option<String>,
    /// How long an answered UDP flow may be idle.
    #[arg(long, value_name = "DURATION")]
    pub conntrack_udp_timeout_stream: Option<String>,
    /// Ranges of node addresses that serve node ports, or `primary`.
    #[arg(long, value_name = "CIDRS", value_delimiter = ',')]
    pub nodeport_addresses: Option<Vec<String>>,
    /// Whose connections are translated at the socket.
    #[arg(long, value_enum)]
    pub socket_balancing: Option<SocketBalancing>,
    /// What to log: error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Log every packet of a service, too; to look into a fault, not for every day.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub log_packets: Option<bool>,
    /// kube-proxy's way to say how much to log: 4 and more is debug, 6 and more trace.
    #[arg(short = 'v', long = "v", value_name = "LEVEL")]
    pub verbosity: Option<u8>,
    /// Write the settings that hold, from flags, file and defaults, to a file, and end.
    #[arg(long, value_name = "FILE")]
    pub write_config_to: Option<PathBuf>,
    /// Remove every trace of portolan from this node, and end: as `portolan cleanup`.
    #[arg(long)]
    pub cleanup: bool,
    #[command(flatten)]
    pub unused: UnusedFlags,
}

impl RunArgs {
    /// The settings, from flags and file.
    pub fn settings(&self) -> anyhow::Result<Config> {
        let file = match &self.config {
            Some(path) => RawConfig::read(path)?,
            None => RawConfig::default(),
        };
        let flags = RawConfig {
            mode: self.proxy_mode.clone().filter(|mode| !mode.is_empty()),
            cluster_cidr: self.cluster_cidr.clone(),
            hostname_override: self.hostname_override.clone(),
            masquerade_all: self.masquerade_all,
            masquerade_bits: MasqueradeBits {
                iptables: self.iptables_masquerade_bit,
                nftables: None,
            },
            node_port_addresses: self.nodeport_addresses.clone(),
            metrics_bind_address: self.metrics_bind_address.clone(),
            healthz_bind_address: self.healthz_bind_address.clone(),
            pin_directory: self.pin_dir.clone(),
            socket_balancing: self.socket_balancing,
            log_level: self.log_level.clone().or(self.verbosity.map(level)),
            kubeconfig: self.kubeconfig.clone(),
            detect_local_mode: self.detect_local_mode.clone(),
            pod_bridge_interface: self.pod_bridge_interface.clone(),
            pod_interface_name_prefix: self.pod_interface_name_prefix.clone(),
            conntrack: Conntrack {
                tcp_established_timeout: self.conntrack_tcp_timeout_established.clone(),
                tcp_close_wait_timeout: self.conntrack_tcp_timeout_close_wait.clone(),
                udp_timeout: self.conntrack_udp_timeout.clone(),
                udp_stream_timeout: self.conntrack_udp_timeout_stream.clone(),
            },
            unused: self.unused.given(),
            log_packets: self.log_packets,
            ..RawConfig::default()
        };
        let mut config = flags.or(file).check()?;
        config.node_ips.clone_from(&self.node_ip);
        config.cgroup_root.clone_from(&self.cgroup_root);
        Ok(config)
    }
}

/// klog's verbosity as a level.
fn level(verbosity: u8) -> String {
    match verbosity {
        0..4 => "info",
        4..6 => "debug",
        6.. => "trace",
    }
    .to_owned()
}

/// Runs the agent until it is told to stop.
pub(super) fn run(args: &RunArgs) -> anyhow::Result<()> {
    let config = args.settings()?;
    if let Some(file) = &args.write_config_to {
        return std::fs::write(file, config::render(&config)?)
            .with_context(|| format!("write the settings to {}", file.display()));
    }
    if args.cleanup {
        return cleanup::remove(&config.pin_directory, false);
    }
    telemetry::start(&config.log_level)?;
    let node_name = node_name(config.hostname_override.as_deref())?;
    match &args.manifests {
        Some(folder) => {
            let source = Manifests::new(folder, Converter::new(&node_name));
            run_with(config, &node_name, source, Warnings::default())
        }
        None => {
            let access = Access::new(config.kubeconfig.clone(), args.master.clone())?;
            let service_cidrs = config.unallocated_cluster_ips == UnallocatedClusterIps::Drop;
            let (warnings, reports) = Warnings::reported();
            let source = ApiServer::new(access, &node_name)
                .with_service_cidrs(service_cidrs)
                .with_events(reports);
            run_with(config, &node_name, source, warnings)
        }
    }
}

fn run_with(
    config: Config,
    node_name: &str,
    source: impl watch::Source,
    warnings: Warnings,
) -> anyhow::Result<()> {
    // The agent's own loop has the main thread; this one answers health checks meanwhile.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("start the runtime")?;
    let ended = runtime.block_on(agent::run(config, node_name, source, warnings));
    // Connections that clients keep open must not keep the agent.
    runtime.shutdown_background();
    ended
}

/// KUBE: a node's name is the host's in lower case unless it is overridden.
fn node_name(given: Option<&str>) -> anyhow::Result<String> {
    let host;
    let name = match given {
        Some(name) => name,
        None => {
            host = std::fs::read_to_string("/proc/sys/kernel/hostname")
                .context("read the host name; give the node's with --hostname-override")?;
            &host
        }
    };
    let name = name.trim().to_lowercase();
    if name.is_empty() {
        bail!("the node has no name; give it with --hostname-override");
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rstest::rstest;

    use super::*;
    use crate::config::{LocalDetection, NodePortAddresses};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        run: RunArgs,
    }

    fn config(flags: &str) -> Config {
        let line = Line::try_parse_from(format!("portolan {flags}").split_whitespace());
        line.expect("flags").run.settings().expect("valid")
    }

    #[test]
    fn flags_have_kube_proxys_names_and_meaning() {
        let config = config(
            "--hostname-override node-a --cluster-cidr 10.40.0.0/16,fd00:40::/48 --pin-dir /p --masquerade-all --iptables-masquerade-bit 7 --nodeport-addresses 10.0.0.0/8,fd00::/8 --socket-balancing host --cgroup-root /c --node-ip 10.0.0.1,fd00::1 --metrics-bind-address 127.0.0.1:1 --healthz-bind-address [::1]:2",
        );
        assert_eq!(config.hostname_override.as_deref(), Some("node-a"));
        assert_eq!(config.cluster_cidr.len(), 2);
        assert_eq!(config.local_detection, LocalDetection::ClusterCidr);
        assert!(config.masquerade_all);
        assert_eq!(config.marks.masquerade, 1 << 7);
        assert!(matches!(config.node_port_addresses, NodePortAddresses::Within(r) if r.len() == 2));
        assert_eq!(config.socket_balancing, SocketBalancing::Host);
        assert_eq!(config.node_ips.len(), 2);
        assert_eq!(config.healthz_bind_address.port(), 2);
    }

    #[rstest]
    #[case("", false)]
    #[case("--masquerade-all", true)]
    #[case("--masquerade-all=false", false)]
    fn masquerade_all_may_have_a_value(#[case] flags: &str, #[case] expected: bool) {
        assert_eq!(config(flags).masquerade_all, expected);
    }

    #[test]
    fn kube_proxys_own_command_line_is_understood() {
        let config = config(
            "--proxy-mode=nftables --conntrack-max-per-core=0 --iptables-min-sync-period 1s --profiling -v 4 --detect-local-mode=NodeCIDR --conntrack-udp-timeout 40s --kubeconfig /etc/kube --bind-address=0.0.0.0 --feature-gates=A=true",
        );
        assert_eq!(config.local_detection, LocalDetection::NodeCidr);
        assert_eq!(config.idle_times.udp, 40);
        assert_eq!(config.log_level, "debug");
        assert_eq!(config.kubeconfig.as_deref(), Some("/etc/kube".as_ref()));
        let unused = [
            "--bind-address",
            "--feature-gates",
            "--iptables-min-sync-period",
            "--profiling",
        ];
        assert_eq!(config.node_port_addresses, NodePortAddresses::Primary);
        assert_eq!(config.unused, unused);
    }

    #[test]
    fn a_nodes_name_is_in_lower_case_and_is_the_hosts_if_not_given() {
        assert_eq!(node_name(Some(" Node-A ")).expect("a name"), "node-a");
        assert!(node_name(Some(" ")).is_err());
        assert!(!node_name(None).expect("the host's").is_empty());
    }
}
