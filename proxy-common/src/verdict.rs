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
        Origin::Pod if internal => Verdict::Forward {
            external: false,
            masquerade: false,
        },
        Origin::Host if internal => Verdict::Forward {
            external: false,
            masquerade: true,
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

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const DETECTS: Policy = Policy {
        masquerade_all: false,
        detects_pods: true,
    };
    const ALL: Policy = Policy {
        masquerade_all: true,
        detects_pods: true,
    };
    const NONE: Policy = Policy {
        masquerade_all: false,
        detects_pods: false,
    };

    fn flags(kind: FrontendKind, bits: u32) -> ServiceFlags {
        ServiceFlags(ServiceFlags::new(kind).0 | bits)
    }

    const INTERNAL: Verdict = Verdict::Forward {
        external: false,
        masquerade: false,
    };
    const INTERNAL_MASQUERADED: Verdict = Verdict::Forward {
        external: false,
        masquerade: true,
    };
    const EXTERNAL: Verdict = Verdict::Forward {
        external: true,
        masquerade: false,
    };
    const EXTERNAL_MASQUERADED: Verdict = Verdict::Forward {
        external: true,
        masquerade: true,
    };

    #[rstest]
    #[case(Origin::Pod, DETECTS, true, INTERNAL)]
    #[case(Origin::External, DETECTS, true, INTERNAL_MASQUERADED)]
    #[case(Origin::Host, DETECTS, true, INTERNAL_MASQUERADED)]
    #[case(Origin::Pod, ALL, true, INTERNAL_MASQUERADED)]
    #[case(Origin::External, NONE, true, INTERNAL)]
    #[case(Origin::Pod, DETECTS, false, Verdict::DropNoLocalEndpoint)]
    fn a_cluster_ip_masquerades_by_origin_and_drops_without_a_local_endpoint(
        #[case] origin: Origin,
        #[case] policy: Policy,
        #[case] internal: bool,
        #[case] expected: Verdict,
    ) {
        let flags = flags(FrontendKind::ClusterIp, ServiceFlags::HAS_ENDPOINTS);
        assert_eq!(
            decide(flags, origin, policy, internal, internal, true),
            expected
        );
    }

    #[rstest]
    #[case(FrontendKind::NodePort)]
    #[case(FrontendKind::LoadBalancer)]
    #[case(FrontendKind::ExternalIp)]
    fn under_cluster_policy_all_clients_of_external_addresses_are_masqueraded(
        #[case] kind: FrontendKind,
    ) {
        let flags = flags(kind, ServiceFlags::HAS_ENDPOINTS);
        for origin in [Origin::Pod, Origin::Host, Origin::External] {
            assert_eq!(
                decide(flags, origin, DETECTS, true, true, true),
                EXTERNAL_MASQUERADED
            );
        }
    }

    #[rstest]
    #[case(Origin::Pod, true, true, INTERNAL)]
    #[case(Origin::Pod, true, false, INTERNAL)]
    #[case(Origin::Host, true, false, INTERNAL_MASQUERADED)]
    #[case(Origin::External, true, true, EXTERNAL)]
    #[case(Origin::External, true, false, Verdict::DropNoLocalEndpoint)]
    fn local_policy_short_circuits_pods_and_the_node(
        #[case] origin: Origin,
        #[case] internal: bool,
        #[case] external: bool,
        #[case] expected: Verdict,
    ) {
        let bits = ServiceFlags::HAS_ENDPOINTS | ServiceFlags::EXTERNAL_LOCAL;
        for kind in [
            FrontendKind::NodePort,
            FrontendKind::LoadBalancer,
            FrontendKind::ExternalIp,
        ] {
            assert_eq!(
                decide(flags(kind, bits), origin, DETECTS, internal, external, true),
                expected
            );
        }
    }

    #[test]
    fn without_endpoints_packets_are_rejected_even_outside_the_source_ranges() {
        for kind in [
            FrontendKind::ClusterIp,
            FrontendKind::LoadBalancer,
            FrontendKind::NodePort,
        ] {
            let flags = flags(
                kind,
                ServiceFlags::SOURCE_RANGES | ServiceFlags::EXTERNAL_LOCAL,
            );
            assert_eq!(
                decide(flags, Origin::External, DETECTS, false, false, false),
                Verdict::Reject
            );
        }
    }

    #[test]
    fn a_source_outside_the_source_ranges_is_dropped_for_every_origin() {
        let flags = flags(
            FrontendKind::LoadBalancer,
            ServiceFlags::HAS_ENDPOINTS | ServiceFlags::SOURCE_RANGES,
        );
        for origin in [Origin::Pod, Origin::Host, Origin::External] {
            assert_eq!(
                decide(flags, origin, DETECTS, true, true, false),
                Verdict::DropSource
            );
        }
    }

    #[test]
    fn an_unserved_port_is_rejected() {
        let flags = flags(FrontendKind::Unserved, 0);
        assert_eq!(
            decide(flags, Origin::Pod, DETECTS, false, false, true),
            Verdict::Reject
        );
    }
}
