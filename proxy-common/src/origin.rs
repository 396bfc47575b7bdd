// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The origin of a connection: a pod, this node, or elsewhere. Decided for a packet by its
//! interface and source, for a socket by its network namespace.

use crate::{Addr, ServiceFlags, Settings};

/// The kind of client that sends a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A pod, by its address or interface (never where pods are not detected).
    Pod,
    /// This node.
    Host,
    External,
}

/// Returns the origin of a packet. The functions return whether the packet came in by an interface
/// with pods behind it, whether its source lies in the pod ranges, and whether its source is an
/// address of this node. Each is called only where its answer matters: the last only for
/// `externalTrafficPolicy: Local`, so other packets of the node count as external.
#[inline(always)]
pub fn origin_of_packet<A: Addr>(
    settings: &Settings,
    flags: ServiceFlags,
    by_pod_interface: impl FnOnce() -> bool,
    from_pod_range: impl FnOnce() -> bool,
    from_node_address: impl FnOnce() -> bool,
) -> Origin {
    let is_pod = if settings.has(Settings::PODS_BY_INTERFACE) {
        by_pod_interface()
    } else {
        settings.detects_pods::<A>() && from_pod_range()
    };
    if is_pod {
        Origin::Pod
    } else if flags.has(ServiceFlags::EXTERNAL_LOCAL) && from_node_address() {
        Origin::Host
    } else {
        Origin::External
    }
}

/// Returns the origin of a process that connects a socket; `is_node`: it is a process of the node,
/// not of a pod. `None` leaves the socket to the packet path: source ranges need a pod's address,
/// which a connecting socket does not have yet.
#[inline(always)]
pub const fn origin_of_socket<A: Addr>(
    settings: &Settings,
    flags: ServiceFlags,
    is_node: bool,
) -> Option<Origin> {
    if is_node {
        Some(Origin::Host)
    } else if flags.has(ServiceFlags::SOURCE_RANGES) {
        None
    } else if settings.detects_pods::<A>() {
        Some(Origin::Pod)
    } else {
        Some(Origin::External)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FrontendKind, V4, V6};

    fn flags_of_balancer(bits: u32) -> ServiceFlags {
        ServiceFlags(ServiceFlags::new(FrontendKind::LoadBalancer).0 | bits)
    }

    #[test]
    fn ranges_of_one_family_detect_no_pods_of_the_other() {
        let by_v4 = Settings {
            flags: Settings::DETECTS_PODS_V4,
            ..Settings::EMPTY
        };
        let flags = flags_of_balancer(0);
        let in_range = |settings: &Settings| {
            [
                origin_of_packet::<V4>(settings, flags, || false, || true, || false),
                origin_of_packet::<V6>(settings, flags, || false, || true, || false),
            ]
        };
        assert_eq!(in_range(&by_v4), [Origin::Pod, Origin::External]);
        assert!(by_v4.policy::<V4>().detects_pods && !by_v4.policy::<V6>().detects_pods);
        let socket = origin_of_socket::<V6>(&by_v4, flags, false);
        assert_eq!(socket, Some(Origin::External));
    }

    #[test]
    fn a_pods_socket_is_left_to_the_packet_path_if_source_ranges_apply() {
        let detects = Settings {
            flags: Settings::DETECTS_PODS,
            ..Settings::EMPTY
        };
        let ranges = flags_of_balancer(ServiceFlags::SOURCE_RANGES);
        assert_eq!(origin_of_socket::<V4>(&detects, ranges, false), None);
        assert_eq!(
            origin_of_socket::<V4>(&detects, ranges, true),
            Some(Origin::Host)
        );
        let plain = flags_of_balancer(0);
        assert_eq!(
            origin_of_socket::<V4>(&detects, plain, false),
            Some(Origin::Pod)
        );
        let external = origin_of_socket::<V4>(&Settings::EMPTY, plain, false);
        assert_eq!(external, Some(Origin::External));
    }
}
