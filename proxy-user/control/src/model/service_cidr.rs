// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ranges of cluster IPs, and the conversion from `networking.k8s.io/v1.ServiceCIDR`.

use ipnet::IpNet;
use k8s_openapi::api::networking::v1 as networking;

use super::{Complaints, Converted, Converter, Kind, parse};
use crate::object::{ObjectName, Warning};

/// Ranges from which the API server allocates cluster IPs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceCidr {
    /// The namespace is empty, because ServiceCIDRs have none.
    pub name: ObjectName,
    pub ranges: Box<[IpNet]>,
}

impl Converter {
    /// Converts a ServiceCIDR; fails only if it has no name.
    ///
    /// KUBE: an object that is being deleted or not ready yet counts like any other.
    pub fn service_cidr(
        &mut self,
        object: &networking::ServiceCIDR,
    ) -> Result<Converted<ServiceCidr>, Warning> {
        let name = self.object_name(Kind::ServiceCidr, &object.metadata)?;
        let mut complaints = Complaints::about(Kind::ServiceCidr, &name);
        let texts = object.spec.iter().flat_map(|s| s.cidrs.iter().flatten());
        let ranges = parse::ranges("spec.cidrs", texts, parse::IGNORED, &mut complaints);
        Ok((ServiceCidr { name, ranges }, complaints.into_warnings()))
    }
}
