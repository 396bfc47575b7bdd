// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The metrics of kube-proxy that portolan lacks, and why. Used for docs/metrics.md, and by the
//! test that compares the names with kube-proxy's.

/// Groups of kube-proxy's metrics that portolan lacks, each with the reason. A group has patterns
/// of the metrics' names; `*` at the end stands for any characters.
pub(super) const ABSENT: &[(&[&str], &str)] = &[
    (
        &["kubeproxy_sync_full_proxy_rules_duration_seconds"],
        "No sync writes everything: each writes only what differs. See `kubeproxy_sync_proxy_rules_duration_seconds`.",
    ),
    (
        &["kubeproxy_sync_partial_proxy_rules_duration_seconds"],
        "Every sync is one. See `kubeproxy_sync_proxy_rules_duration_seconds`.",
    ),
    (
        &[
            "kubeproxy_iptables_*",
            "kubeproxy_sync_proxy_rules_iptables_*",
        ],
        "There are no iptables rules. `portolan_map_entries` says how many entries the maps hold, \
            `portolan_packets_total` what became of packets, and `portolan_services_failed` which services could not be written.",
    ),
    (
        &["rest_client_rate_limiter_duration_seconds"],
        "Requests are not limited: there are a few watches and hardly any other.",
    ),
    (
        &[
            "rest_client_exec_plugin_*",
            "rest_client_request_size_bytes",
            "rest_client_response_size_bytes",
            "rest_client_transport_*",
        ],
        "They measure client-go's inside. `rest_client_requests_total` and `rest_client_request_duration_seconds` are here, and \
            `portolan_watch_last_byte_timestamp_seconds` says when each watch was last heard of.",
    ),
    (
        &["go_*"],
        "portolan is no Go program. `process_*` has its memory and processor time.",
    ),
    (
        &["kubernetes_build_info"],
        "The version is not Kubernetes' but portolan's: `portolan_build_info`.",
    ),
    (
        &["kubernetes_feature_enabled"],
        "There are no feature gates.",
    ),
    (
        &["apiserver_*", "aggregator_discovery_*"],
        "They measure code of the API server that is linked into kube-proxy.",
    ),
    (
        &[
            "cardinality_enforcement_unexpected_categorizations_total",
            "disabled_metrics_total",
            "hidden_metrics_total",
            "registered_metrics_total",
        ],
        "They measure Kubernetes' own metrics library.",
    ),
];
