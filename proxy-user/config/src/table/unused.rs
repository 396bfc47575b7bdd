// SPDX-License-Identifier: Apache-2.0 OR MIT
//! kube-proxy's settings that have no effect in portolan. They are accepted, so that kube-proxy's
//! file and command line work unchanged. The agent logs those that are given.

/// Settings of kube-proxy that have no effect in portolan, for the same reason.
pub struct Unused {
    /// The keys in the file, with dots; a key may be that of an entire section.
    pub keys: &'static [&'static str],
    /// The flags without their dashes.
    pub flags: &'static [&'static str],
    pub why: &'static str,
}

/// A setting whose value at the HTTP path `/configz` differs from what kube-proxy shows there.
pub struct Difference {
    pub key: &'static str,
    pub why: &'static str,
}

/// The settings whose values at `/configz` differ from kube-proxy's for the same file. A test
/// compares all others.
pub const DIFFERENCES: &[Difference] = &[Difference {
    key: "logging.verbosity",
    why: "It is shown as `portolan.logLevel`.",
}];

pub(super) const UNUSED: &[Unused] = &[
    Unused {
        keys: &[],
        flags: &["healthz-port", "metrics-port"],
        why: "kube-proxy ignores them too where the address has a port. Use `healthzBindAddress` and `metricsBindAddress`.",
    },
    Unused {
        keys: &["portRange"],
        flags: &["proxy-port-range"],
        why: "No proxy runs in user space, so it needs no ports.",
    },
    Unused {
        keys: &["featureGates"],
        flags: &["feature-gates"],
        why: "kube-proxy's feature gates switch code that is not in portolan.",
    },
    Unused {
        keys: &["ipvs"],
        flags: &[
            "ipvs-exclude-cidrs",
            "ipvs-min-sync-period",
            "ipvs-scheduler",
            "ipvs-strict-arp",
            "ipvs-sync-period",
            "ipvs-tcp-timeout",
            "ipvs-tcpfin-timeout",
            "ipvs-udp-timeout",
        ],
        why: "IPVS is not used. The idle times are in the section `conntrack`.",
    },
    Unused {
        keys: &[
            "iptables.syncPeriod",
            "iptables.minSyncPeriod",
            "nftables.syncPeriod",
            "nftables.minSyncPeriod",
            "configSyncPeriod",
        ],
        flags: &[
            "iptables-min-sync-period",
            "iptables-sync-period",
            "config-sync-period",
        ],
        why: "A change is written when it arrives, and only the maps' entries that differ.",
    },
    Unused {
        keys: &[
            "clientConnection.acceptContentTypes",
            "clientConnection.contentType",
            "clientConnection.qps",
            "clientConnection.burst",
        ],
        flags: &["kube-api-burst", "kube-api-content-type", "kube-api-qps"],
        why: "The agent holds a few watches and sends hardly any other request, so it needs no limit. It speaks JSON.",
    },
    Unused {
        keys: &["enableProfiling"],
        flags: &["profiling"],
        why: "The agent has no profiling endpoint.",
    },
    Unused {
        keys: &[
            "logging.flushFrequency",
            "logging.vmodule",
            "logging.options",
        ],
        flags: &[
            "log-flush-frequency",
            "log-json-info-buffer-size",
            "log-json-split-stream",
            "log-text-info-buffer-size",
            "log-text-split-stream",
            "vmodule",
            "boot-id-file",
            "machine-id-file",
        ],
        why: "The log goes to standard error, line by line. `portolan.logLevel` takes a filter by module.",
    },
    Unused {
        keys: &["oomScoreAdj"],
        flags: &["oom-score-adj"],
        why: "The agent does not change its own OOM score. Set it where the process is started; in a pod, the \
            priority class does.",
    },
    Unused {
        keys: &["showHiddenMetricsForVersion"],
        flags: &["show-hidden-metrics-for-version"],
        why: "There are no hidden metrics.",
    },
    Unused {
        keys: &["winkernel", "windowsRunAsService"],
        flags: &[],
        why: "These are for Windows.",
    },
    Unused {
        keys: &[],
        flags: &["init-only"],
        why: "`portolan init` is the privileged first run: it mounts a BPF file system and sets nf_conntrack.",
    },
];
