// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The differences between IPv4 and IPv6: where the objects store their addresses. Used by the
//! conversion of slices and by the planner.

use std::net::IpAddr;

use proxy_common::{Addr, V4, V6};

use super::{Endpoint, Endpoints, Role, Service};

/// An address family: where Kubernetes' objects store its addresses.
pub trait Family: Addr + Into<IpAddr> + Default {
    fn cluster_ip(service: &Service) -> Option<Self>;
    /// Returns a slice's endpoints; None if the slice is of the other family.
    fn endpoints(endpoints: &Endpoints) -> Option<&[Endpoint<Self>]>;
    fn of(address: IpAddr) -> Option<Self>;
    /// Whether the service is served in this family. KUBE: a Service is where it has a cluster IP.
    fn is_served(service: &Service) -> bool {
        Self::cluster_ip(service).is_some()
            || (service.role == Role::Gateway
                && service
                    .load_balancer_ips
                    .iter()
                    .any(|ip| Self::of(*ip).is_some()))
    }
}

macro_rules! families {
    ($($family:ident, $cluster_ip:ident;)*) => {
        $(impl Family for $family {
            fn cluster_ip(service: &Service) -> Option<Self> {
                service.$cluster_ip
            }
            fn endpoints(endpoints: &Endpoints) -> Option<&[Endpoint<Self>]> {
                match endpoints {
                    Endpoints::$family(endpoints) => Some(endpoints),
                    _ => None,
                }
            }
            fn of(address: IpAddr) -> Option<Self> {
                match address {
                    IpAddr::$family(address) => Some(address.into()),
                    _ => None,
                }
            }
        })*
    };
}
families! {
    V4, cluster_v4;
    V6, cluster_v6;
}
