// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Metrics that count the connections that the agent has ended because their endpoints' pods are
//! gone.

use datapath::Ended;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use super::add;

/// Counters of connections that the agent has ended. One counter per kind.
#[derive(Clone, Debug)]
pub struct EndedConnections {
    flows: Counter,
    sockets: Counter,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

impl EndedConnections {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let all: Family<Kind, Counter> = add(
            registry,
            "portolan_connections_of_gone_endpoints_ended",
            "Connections that the agent has ended because their endpoint's pod is gone: by removing the flow (the client's next packet gets a reset), or by closing the client's socket",
        );
        // Both kinds start at zero, so that Prometheus' rate() sees the first connection.
        let counter = |kind| all.get_or_create(&Kind { kind }).clone();
        Self {
            flows: counter("flow"),
            sockets: counter("socket"),
        }
    }
    pub fn count(&self, ended: Ended) {
        self.flows.inc_by(ended.flows);
        self.sockets.inc_by(ended.sockets);
    }
}
