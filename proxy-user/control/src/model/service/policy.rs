// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The policies of a service: affinity, traffic policies, health check port. Called by the
//! conversion of `v1.Service`.

use clap::ValueEnum;
use k8s_openapi::{api::core::v1::ServiceSpec, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use proxy_common::Port;

use super::{super::annotation, Complaints, Service, parse};

/// KUBE: the default of `sessionAffinityConfig.clientIP.timeoutSeconds`.
const DEFAULT_AFFINITY_TIMEOUT: u32 = 10_800;
/// KUBE: the API server's limit of `timeoutSeconds`.
const MAX_AFFINITY_TIMEOUT: i32 = 86_400;

pub(super) fn affinity_timeout(spec: &ServiceSpec, complaints: &mut Complaints) -> u32 {
    match spec.session_affinity.as_deref() {
        None | Some("" | "None") => return 0,
        Some("ClientIP") => {}
        Some(other) => {
            complaints.add(format!(
                "sessionAffinity {other:?} is neither None nor ClientIP; there is no affinity, use one of the two",
            ));
            return 0;
        }
    }
    let given = spec
        .session_affinity_config
        .as_ref()
        .and_then(|config| config.client_ip.as_ref()?.timeout_seconds);
    match given {
        None => DEFAULT_AFFINITY_TIMEOUT,
        Some(seconds @ 1..=MAX_AFFINITY_TIMEOUT) => seconds.unsigned_abs(),
        Some(seconds) => {
            complaints.add(format!(
                "sessionAffinityConfig.clientIP.timeoutSeconds {seconds} is not between 1 and {MAX_AFFINITY_TIMEOUT}; the default of {DEFAULT_AFFINITY_TIMEOUT} is used, correct the number",
            ));
            DEFAULT_AFFINITY_TIMEOUT
        }
    }
}

/// How a new flow gets its backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Selection {
    /// Any of them, each node by its own random numbers.
    #[default]
    Random,
    /// By a hash of client and service, the same on every node.
    Maglev,
}

/// What the endpoint sees of a client that the policy masquerades.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum ClientAddress {
    /// The client's own address, where the endpoint is on this node or its node takes outer headers
    /// off ([`proxy_common::carried`]).
    Keep,
    /// The address of the node that the client meets.
    #[default]
    Masquerade,
}

/// A service's annotation and the setting that it overrides.
pub(super) type Override = (&'static str, &'static str);

pub(super) const SELECTION: Override = ("service.portolan.dev/selection", "portolan.selection");
pub(super) const CLIENT_ADDRESS: Override = (
    "service.portolan.dev/client-address",
    "portolan.clientAddress",
);

/// Returns which of two words the service's annotation has; None without a known one.
pub(super) fn choice<T: ValueEnum>(
    (name, setting): Override,
    metadata: &ObjectMeta,
    complaints: &mut Complaints,
) -> Option<T> {
    let given = annotation(metadata, name)?;
    let known = T::from_str(given, false);
    if known.is_err() {
        let words = T::value_variants().iter().filter_map(T::to_possible_value);
        let words: Vec<_> = words.map(|word| word.get_name().to_owned()).collect();
        complaints.add(format!(
            "annotation {name} {given:?} is neither {}; the setting {setting} counts, use one of the two",
            words.join(" nor "),
        ));
    }
    known.ok()
}

/// True if a traffic policy is Local. KUBE: the default is Cluster.
pub(super) fn is_local(field: &str, policy: Option<&str>, complaints: &mut Complaints) -> bool {
    match policy {
        Some("Local") => true,
        None | Some("" | "Cluster") => false,
        Some(other) => {
            complaints.add(format!(
                "{field} {other:?} is neither Cluster nor Local; Cluster is used, set one of the two",
            ));
            false
        }
    }
}

/// True if the external traffic policy is Local. KUBE: `externalTrafficPolicy` applies to the types
/// NodePort and LoadBalancer, and to a ClusterIP service with external IPs.
pub(super) fn is_external_local(spec: &ServiceSpec, complaints: &mut Complaints) -> bool {
    let local = is_local(
        "externalTrafficPolicy",
        spec.external_traffic_policy.as_deref(),
        complaints,
    );
    let has_external_ips = spec
        .external_ips
        .as_ref()
        .is_some_and(|ips| !ips.is_empty());
    local
        && match spec.type_.as_deref() {
            Some("LoadBalancer" | "NodePort") => true,
            None | Some("" | "ClusterIP") => has_external_ips,
            Some(_) => false,
        }
}

/// Reads the health check node port; None if the service has none. KUBE: only services of type
/// LoadBalancer with external policy Local have one.
pub(super) fn health_check_node_port(
    spec: &ServiceSpec,
    service: &Service,
    complaints: &mut Complaints,
) -> Option<u16> {
    if spec.type_.as_deref() != Some("LoadBalancer") || !service.external_local {
        return None;
    }
    let number = spec.health_check_node_port.filter(|number| *number != 0)?;
    let port = parse::port(number).map(Port::host);
    if port.is_none() {
        complaints.add(format!(
            "healthCheckNodePort {number} is not between 1 and 65535; health checks get no answer, correct the number",
        ));
    }
    port
}
