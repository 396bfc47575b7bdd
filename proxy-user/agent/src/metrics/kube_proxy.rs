// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The metrics of kube-proxy that portolan lacks, and why. Used for docs/metrics.md, and by the
//! test that compares the names with kube-proxy's.

/// A group of kube-proxy's metrics that portolan lacks for the same reason, `why`.
pub(super) struct Absent {
    /// Patterns of the metrics' names; `*` at the end stands for any characters.
    pub(super) names: &'static [&'static str],
    pub(super) why: &'static str,
}

pub(super) const ABSENT: &[Absent] = &[
    Absent {
        names: &["kubeproxy_sync_full_proxy_rules_duration_seconds"],
        why: "No sync writes everything: each writes only what differs. See `kubeproxy_sync_proxy_rules_duration_seconds`.",
    },
    Absent {
        names: &["kubeproxy_sync_partial_proxy_rules_duration_seconds"],
        why: "Every sync is one. See `kubeproxy_sync_proxy_rules_duration_seconds`.",
    },
    Absent {
        names: &[
            "kubeproxy_iptables_*",
            "kubeproxy_sync_proxy_rules_iptables_*",
        ],
        why: "There are no iptables rules. `portolan_map_entries` says how many entries the maps hold, \
            `portolan_packets_total` what became of packets, and `portolan_services_failed` which services could not be written.",
    },
    Absent {
        names: &["rest_client_rate_limiter_duration_seconds"],
        why: "Requests are not limited: there are a few watches and hardly any other.",
    },
    Absent {
        names: &[
            "rest_client_exec_plugin_*",
            "rest_client_request_size_bytes",
            "rest_client_response_size_bytes",
            "rest_client_transport_*",
        ],
        why: "They measure client-go's inside. `rest_client_requests_total` and `rest_client_request_duration_seconds` are here, and \
            `portolan_watch_last_byte_timestamp_seconds` says when each watch was last heard of.",
    },
    Absent {
        names: &["go_*"],
        why: "portolan is no Go program. `process_*` has its memory and processor time.",
    },
    Absent {
        names: &["kubernetes_build_info"],
        why: "The version is not Kubernetes' but portolan's: `portolan_build_info`.",
    },
    Absent {
        names: &["kubernetes_feature_enabled"],
        why: "There are no feature gates.",
    },
    Absent {
        names: &["apiserver_*", "aggregator_discovery_*"],
        why: "They measure code of the API server that is linked into kube-proxy.",
    },
    Absent {
        names: &[
            "cardinality_enforcement_unexpected_categorizations_total",
            "disabled_metrics_total",
            "hidden_metrics_total",
            "registered_metrics_total",
        ],
        why: "They measure Kubernetes' own metrics library.",
    },
];
