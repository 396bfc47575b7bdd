// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The metrics of kube-proxy that portolan lacks, and why. Used for docs/metrics.md, and by the
//! test that compares the names with kube-proxy's.

/// Groups of kube-proxy's metrics that portolan lacks, each with the reason. A group has patterns
/// of the metrics' names; `*` at the end stands for any characters.
pub(super) const ABSENT: &[(&[&str], &str)] = &[
    (
        &[
            "kubeproxy_sync_full_proxy_rules_duration_seconds",
            "kubeproxy_sync_partial_proxy_rules_duration_seconds",
        ],
        "Every sync writes only what differs: `kubeproxy_sync_proxy_rules_duration_seconds`.",
    ),
    (
        &[
            "kubeproxy_iptables_*",
            "kubeproxy_sync_proxy_rules_iptables_*",
        ],
        "There are no rules. `portolan_map_entries` says how many entries the maps hold, `portolan_packets_total` what became of packets.",
    ),
    (
        &[
            "rest_client_exec_plugin_*",
            "rest_client_rate_limiter_duration_seconds",
            "rest_client_request_size_bytes",
            "rest_client_response_size_bytes",
            "rest_client_transport_*",
        ],
        "They measure client-go's inside. `portolan_watch_last_byte_timestamp_seconds` says when each watch was last heard of.",
    ),
    (
        &[
            "go_*",
            "kubernetes_build_info",
            "kubernetes_feature_enabled",
            "apiserver_*",
            "aggregator_discovery_*",
            "cardinality_enforcement_unexpected_categorizations_total",
            "disabled_metrics_total",
            "hidden_metrics_total",
            "registered_metrics_total",
        ],
        "They measure Go's and Kubernetes' libraries. `process_*` and `portolan_build_info` are here.",
    ),
];
