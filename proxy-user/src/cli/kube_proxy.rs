// SPDX-License-Identifier: Apache-2.0 OR MIT
//! kube-proxy's flags that mean nothing here: accepted, so that its command line works as it is, and
//! named in one line. Part of `cli::run`'s arguments.

macro_rules! unused_flags {
    ($($flag:ident,)*) => {
        /// Flags of kube-proxy's that are read and not used.
        #[derive(clap::Args, Clone, Debug, Default)]
        pub struct UnusedFlags {
            $(
                #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true", value_name = "VALUE")]
                pub $flag: Option<String>,
            )*
        }

        impl UnusedFlags {
            /// Those that were given and say something.
            pub(super) fn given(&self) -> Vec<String> {
                let flags = [$((stringify!($flag), &self.$flag),)*];
                flags
                    .into_iter()
                    .filter(|(_, value)| value.as_deref().is_some_and(|value| !matches!(value, "" | "false" | "0" | "0s")))
                    .map(|(flag, _)| format!("--{}", flag.replace('_', "-")))
                    .collect()
            }
        }
    };
}

unused_flags! {
    bind_address, bind_address_hard_fail, config_sync_period, conntrack_max_per_core, conntrack_min,
    conntrack_tcp_be_liberal, feature_gates, init_only, iptables_localhost_nodeports,
    iptables_min_sync_period, iptables_sync_period, ipvs_exclude_cidrs, ipvs_min_sync_period,
    ipvs_scheduler, ipvs_strict_arp, ipvs_sync_period, ipvs_tcp_timeout, ipvs_tcpfin_timeout, ipvs_udp_timeout,
    kube_api_burst, kube_api_content_type, kube_api_qps,
    log_flush_frequency, log_json_info_buffer_size, log_json_split_stream, log_text_info_buffer_size,
    log_text_split_stream, logging_format, oom_score_adj, profiling, proxy_port_range,
    show_hidden_metrics_for_version, vmodule,
}
