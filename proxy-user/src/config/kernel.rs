// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel programs and the interfaces need of the configuration. Used by `agent`.

use ipnet::IpNet;
use proxy_common::{Prefix, Settings, V4, V6, settings::RANGES};

use super::{Config, LocalDetection, Masquerade, SocketBalancing};
use crate::interfaces::Patterns;

impl Config {
    /// What the kernel programs need to know, but for the node's addresses.
    pub fn settings(&self) -> Settings {
        let mut settings = Settings {
            masquerade_ports: self.masquerade_ports,
            ..Settings::EMPTY
        };
        if self.masquerade_all {
            settings.flags |= Settings::MASQUERADE_ALL;
        }
        if self.masquerade == Masquerade::Mark {
            settings.flags |= Settings::MARK_ONLY;
        }
        if self.socket_balancing == SocketBalancing::All {
            settings.flags |= Settings::POD_SOCKETS;
        }
        if !self.socket_exceptions.is_empty() {
            settings.flags |= Settings::SOCKET_EXCEPTIONS;
        }
        if self.reserve_node_ports {
            settings.flags |= Settings::RESERVE_NODE_PORTS;
        }
        match &self.local_detection {
            LocalDetection::ClusterCidr => set_pods(&mut settings, &self.cluster_cidr),
            // The node's object may come later.
            LocalDetection::NodeCidr => set_pods(&mut settings, &[]),
            LocalDetection::Interface(_) => {
                settings.flags |= Settings::DETECTS_PODS | Settings::PODS_BY_INTERFACE;
            }
            LocalDetection::None => {}
        }
        settings
    }
    /// What interfaces are told by.
    pub fn interface_patterns(&self) -> Patterns {
        Patterns {
            attach: self.interfaces.clone(),
            pods: match &self.local_detection {
                LocalDetection::Interface(pods) => Some(pods.clone()),
                _ => None,
            },
        }
    }
}

/// Has pods told from other clients by these ranges, of which as many of a family count as the settings have room for.
pub fn set_pods(settings: &mut Settings, ranges: &[IpNet]) {
    settings.flags |= Settings::DETECTS_PODS;
    fill(&mut settings.pods_v4, &mut settings.pods_v6, ranges);
}

/// Has what is sent to addresses in these ranges dropped where no service has them; as many count as in [`set_pods`].
pub fn set_allocated(settings: &mut Settings, ranges: &[IpNet]) {
    fill(
        &mut settings.allocated_v4,
        &mut settings.allocated_v6,
        ranges,
    );
}

fn fill(all_v4: &mut [Prefix<V4>; RANGES], all_v6: &mut [Prefix<V6>; RANGES], ranges: &[IpNet]) {
    let v4 = ranges.iter().filter_map(|range| match range {
        IpNet::V4(range) => Some(Prefix::<V4> {
            address: range.network().into(),
            mask: range.netmask().into(),
        }),
        IpNet::V6(_) => None,
    });
    let v6 = ranges.iter().filter_map(|range| match range {
        IpNet::V6(range) => Some(Prefix::<V6> {
            address: range.network().into(),
            mask: range.netmask().into(),
        }),
        IpNet::V4(_) => None,
    });
    all_v4.iter_mut().zip(v4).for_each(|(to, from)| *to = from);
    all_v6.iter_mut().zip(v6).for_each(|(to, from)| *to = from);
}
