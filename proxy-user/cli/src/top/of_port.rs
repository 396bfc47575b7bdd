// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The service port that a row of `top` is about.

use std::{
    fmt::{self, Display, Formatter},
    net::SocketAddr,
};

use datapath::read::ServicePort;
use serde::Serialize;

use crate::args::{Of, Select};

/// The service port that a row is about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OfPort {
    /// The service's namespace and name; empty if the row is about no single service port.
    pub(super) service: String,
    pub(super) port_name: String,
    pub(super) port: u16,
    pub(super) protocol: &'static str,
}

impl OfPort {
    pub(super) fn new(port: Option<&ServicePort>) -> Self {
        Self {
            service: port.map_or_else(String::new, |port| port.service.clone()),
            port_name: port.map_or_else(String::new, |port| port.port_name.clone()),
            port: port.map_or(0, |port| port.port),
            protocol: port.map_or("-", |port| port.protocol),
        }
    }
    /// Returns whether the user's arguments select a row about this service port and backend.
    pub(super) fn is_selected(&self, select: &Select, backend: Option<SocketAddr>) -> bool {
        let of = Of::new(&self.service, &self.port_name, self.port);
        select.wants(of, self.protocol, backend.as_slice())
    }
}

/// Writes the service port as tables show it.
impl Display for OfPort {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (&*self.service, &*self.port_name) {
            ("", _) => f.write_str("(others)"),
            (service, "") => f.write_str(service),
            (service, port) => write!(f, "{service}:{port}"),
        }
    }
}
