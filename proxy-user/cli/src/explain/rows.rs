// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rows of the report of `portolan explain`: the service, its endpoints.

use datapath::read::{MatchedFrontend, Share};
use serde::Serialize;

use super::words;
use crate::backends::percent;

/// The frontend that the packet's destination matches, with its service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ServiceRow {
    /// The service's namespace and name.
    pub(super) service: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) port_name: String,
    pub(super) kind: &'static str,
    /// The frontend's address and port; the address is `*` for a node port, the port is `*` for the
    /// ports that a cluster IP does not serve.
    pub(super) frontend: String,
    pub(super) policies: Vec<String>,
    pub(super) service_id: u32,
}

/// An endpoint of the service port, as the report lists it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EndpointRow {
    pub(super) address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pod: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<String>,
    pub(super) can_answer: bool,
    /// The endpoint's share of new connections by this policy; `None` if it cannot answer, or if
    /// all that can have about the same share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) share: Option<Share>,
    /// Why the endpoint cannot answer; empty if it can.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) because: String,
    /// What to do about it; empty if there is nothing to do.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) remedy: String,
}

impl ServiceRow {
    pub(super) fn new(frontend: &MatchedFrontend) -> Self {
        let address = match frontend.address {
            None => "*".to_owned(),
            Some(address) if address.is_ipv6() => format!("[{address}]"),
            Some(address) => address.to_string(),
        };
        let port = match frontend.port {
            0 => "*".to_owned(),
            port => port.to_string(),
        };
        // The frontend for the ports that a cluster IP does not serve has the name of one of the
        // Service's ports.
        let port_name = match frontend.port {
            0 => String::new(),
            _ => frontend.port_name.clone(),
        };
        Self {
            service: frontend.service.clone(),
            port_name,
            kind: words::kind(frontend.kind),
            frontend: format!("{address}:{port}"),
            policies: words::policies(frontend),
            service_id: frontend.service_id,
        }
    }
}

impl EndpointRow {
    pub(super) fn line(&self) -> String {
        let mut line = self.address.clone();
        if let Some(pod) = &self.pod {
            line += &format!(" (pod {pod})");
        }
        if let Some(share) = self.share {
            line += &format!(", {} of new connections", percent(share));
        }
        if !self.because.is_empty() {
            line += &format!(": {}", self.because);
        }
        line
    }
}
