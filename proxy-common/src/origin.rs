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

    fn with(flags: u32) -> Settings {
        Settings {
            flags,
            ..Settings::EMPTY
        }
    }

    #[test]
    fn ranges_of_one_family_detect_no_pods_of_the_other() {
        let by_v4 = with(Settings::DETECTS_PODS_V4);
        let flags = ServiceFlags::new(FrontendKind::LoadBalancer);
        let v4 = origin_of_packet::<V4>(&by_v4, flags, || false, || true, || false);
        let v6 = origin_of_packet::<V6>(&by_v4, flags, || false, || true, || false);
        assert_eq!((v4, v6), (Origin::Pod, Origin::External));
        assert!(by_v4.policy::<V4>().detects_pods && !by_v4.policy::<V6>().detects_pods);
    }

    #[test]
    fn a_pods_socket_is_left_to_the_packet_path_if_source_ranges_apply() {
        let plain = ServiceFlags::new(FrontendKind::LoadBalancer);
        let ranges = plain.with(ServiceFlags::SOURCE_RANGES, true);
        for (detects, flags, is_node, expected) in [
            (Settings::DETECTS_PODS, ranges, false, None),
            (Settings::DETECTS_PODS, ranges, true, Some(Origin::Host)),
            (Settings::DETECTS_PODS, plain, false, Some(Origin::Pod)),
            (
                Settings::DETECTS_PODS_V4,
                plain,
                false,
                Some(Origin::External),
            ),
            (0, plain, false, Some(Origin::External)),
        ] {
            let origin = origin_of_socket::<V6>(&with(detects), flags, is_node);
            assert_eq!(origin, expected, "{detects} {flags:?} {is_node}");
        }
    }
}
