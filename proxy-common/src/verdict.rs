// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The complete service policy as one table-like function: the executable specification of which
//! client may reach which endpoints. Called by the kernel programs for the first packet of a flow,
//! and by host tests.

use crate::{FrontendKind, Origin, ServiceFlags};

/// The policy's answer for the first packet of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Forward to a backend of the external block, or of the internal one if `external` is false.
    /// With `masquerade` the packet leaves with the node's address.
    Forward { external: bool, masquerade: bool },
    /// Reject with an answer, so that the client knows at once that nothing serves there.
    Reject,
    /// Drop without an answer: the policy is Local and no local endpoint serves.
    DropNoLocalEndpoint,
    /// Drop without an answer: the source is outside the service's ranges.
    DropSource,
}

/// The node's settings that the policy depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Policy {
    /// KUBE: `masqueradeAll`, for cluster IPs.
    pub masquerade_all: bool,
    /// Pods are detected; KUBE: without `detectLocalMode` no client of a cluster IP is masqueraded.
    pub detects_pods: bool,
}

/// Returns the verdict for a new flow to a frontend.
///
/// `internal` and `external` say whether the record's blocks have any slot; `source_allowed`
/// matters for frontends with source ranges only.
///
/// KUBE: `syncProxyRules` of the iptables proxier, Kubernetes 1.36; hairpin is decided after
/// selection ([`is_hairpin`]).
#[inline(always)]
pub const fn decide(
    flags: ServiceFlags,
    origin: Origin,
    policy: Policy,
    internal: bool,
    external: bool,
    source_allowed: bool,
) -> Verdict {
    let kind = flags.kind();
    if matches!(kind, FrontendKind::Unserved) || !flags.has(ServiceFlags::HAS_ENDPOINTS) {
        return Verdict::Reject;
    }
    if matches!(kind, FrontendKind::ClusterIp) {
        if !internal {
            return Verdict::DropNoLocalEndpoint;
        }
        let outsider = policy.detects_pods && !matches!(origin, Origin::Pod);
        return Verdict::Forward {
            external: false,
            masquerade: policy.masquerade_all || outsider,
        };
    }
    if flags.has(ServiceFlags::SOURCE_RANGES) && !source_allowed {
        return Verdict::DropSource;
    }
    if !flags.has(ServiceFlags::EXTERNAL_LOCAL) {
        return Verdict::Forward {
            external: true,
            masquerade: true,
        };
    }
    // KUBE: pods and the node itself get the cluster's endpoints, as if their packets had gone out
    // to the balancer and come back. The node's own source may be the balancer's address, so it is
    // masqueraded.
    match origin {
        Origin::Pod | Origin::Host if internal => Verdict::Forward {
            external: false,
            masquerade: matches!(origin, Origin::Host),
        },
        _ if external => Verdict::Forward {
            external: true,
            masquerade: false,
        },
        _ => Verdict::DropNoLocalEndpoint,
    }
}

/// Whether a client is sent to itself. Then the source must be masqueraded, or the answer would not
/// come back to this node.
#[inline(always)]
pub fn is_hairpin<A: PartialEq>(client: A, backend: A) -> bool {
    client == backend
}
