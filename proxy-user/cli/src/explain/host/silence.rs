// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A next hop for which nobody answers, in words. Pure.

use std::net::IpAddr;

use linux::NeighbourState;

/// A next hop that does not answer requests for its link-layer address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::explain) struct Silence {
    pub(in crate::explain) neighbour: IpAddr,
    /// The name of the interface that leads there.
    pub(in crate::explain) interface: String,
    pub(in crate::explain) state: NeighbourState,
    /// Those ports of the interface that are down or have no carrier, if it is a bridge.
    pub(in crate::explain) dead_ports: Vec<String>,
}

impl Silence {
    pub(super) fn describe(&self) -> String {
        let Self {
            neighbour,
            interface,
            state,
            dead_ports,
        } = self;
        let request = if neighbour.is_ipv6() {
            "neighbour solicitation"
        } else {
            "ARP"
        };
        let state = match state {
            NeighbourState::Failed => "its state is FAILED",
            _ => "no answer in 1 s",
        };
        let ports = match dead_ports.len() {
            0 => String::new(),
            _ => format!(
                "; of the bridge's ports {} is down or has no carrier",
                dead_ports.join(", ")
            ),
        };
        format!(
            "nobody answers for {neighbour} at {interface}: it was asked for by {request}, {state}{ports}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_next_hop_is_named_with_its_interface_and_dead_ports() {
        let mut one = Silence {
            neighbour: [10, 40, 1, 20].into(),
            interface: "veth20".into(),
            state: NeighbourState::Asked,
            dead_ports: Vec::new(),
        };
        assert_eq!(
            one.describe(),
            "nobody answers for 10.40.1.20 at veth20: it was asked for by ARP, no answer in 1 s"
        );
        one.state = NeighbourState::Failed;
        one.dead_ports = vec!["port0".into()];
        assert!(one.describe().ends_with(
            "its state is FAILED; of the bridge's ports port0 is down or has no carrier"
        ));
    }
}
