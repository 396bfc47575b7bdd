// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The source ports of masqueraded connections: the ports in `masqueradePorts`, without those that
//! the kernel gives to the node's own connections (`net.ipv4.ip_local_port_range`). The kernel's
//! range is read again every few seconds.

use std::{fs, time::Duration};

use control::object::Warning;
use proxy_common::masquerade::PortRanges;
use tokio::time::Instant;

/// How often to read the kernel's range: the kernel sends no message about a change.
const EVERY: Duration = Duration::from_secs(5);
/// The kernel's range of ports for this network namespace's own connections.
const PATH: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// If fewer ports than this are left for masquerading, too few connections to one endpoint are
/// possible at the same time.
const ENOUGH: u32 = 2_048;

/// The ports that the kernel gives to the node's own connections, as last read.
#[derive(Debug, Default)]
pub(super) struct LocalPorts {
    looked_at: Option<Instant>,
    range: Option<(u16, u16)>,
}

impl LocalPorts {
    /// Reads the kernel's range when due; true if it has changed since the last time.
    pub(super) fn look(&mut self, now: Instant) -> bool {
        if self.looked_at.is_some_and(|at| now < at + EVERY) {
            return false;
        }
        self.looked_at = Some(now);
        let range = fs::read_to_string(PATH).ok().and_then(|text| parse(&text));
        std::mem::replace(&mut self.range, range) != range
    }

    /// Returns the ports for masqueraded connections: `configured` without the kernel's range. If
    /// too few are left, returns all of `configured`, with a warning.
    pub(super) fn leave(&self, configured: PortRanges) -> (PortRanges, Option<Warning>) {
        let Some((first, last)) = self.range else {
            return (configured, None);
        };
        let left = configured.without(first, last);
        if left == configured || left.count() >= ENOUGH {
            return (left, None);
        }
        let warning = Warning {
            object: "net.ipv4.ip_local_port_range".to_owned(),
            reason: format!(
                "{first}-{last} leaves {} of the ports in portolan.masqueradePorts, so masqueraded connections share theirs with this node's own, \
                 and each has to be kept apart from the others; set it to the kernel's default, 32768-60999, or portolan.masqueradePorts to \
                 {ENOUGH} ports or more outside of it",
                left.count(),
            ),
        };
        (configured, Some(warning))
    }
}

/// Parses the first and last port, as the kernel prints them.
fn parse(text: &str) -> Option<(u16, u16)> {
    let mut ports = text.split_whitespace().map(str::parse);
    Some((ports.next()?.ok()?, ports.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(text: &str) -> (PortRanges, Option<Warning>) {
        let ports = LocalPorts {
            looked_at: None,
            range: parse(text),
        };
        ports.leave(PortRanges::DEFAULT)
    }

    #[test]
    fn masquerade_ports_exclude_local_ports_while_enough_are_left() {
        let upper = PortRanges([61_000, 65_535, 0, 0]);
        for (range, expected, said) in [
            ("32768\t60999\n", PortRanges::DEFAULT, None),
            ("", PortRanges::DEFAULT, None),
            ("1024\t60999\n", upper, None),
            ("1024 65535", PortRanges::DEFAULT, Some("leaves 0 ")),
            ("1024 65000", PortRanges::DEFAULT, Some("leaves 535 ")),
        ] {
            let (ports, warning) = left(range);
            assert_eq!((ports, warning.is_some()), (expected, said.is_some()));
            for (warning, said) in warning.iter().zip(said) {
                assert_eq!(warning.object, "net.ipv4.ip_local_port_range");
                assert!(warning.reason.contains(said), "{warning}");
            }
        }
    }

    #[test]
    fn the_kernels_local_port_range_is_read_at_intervals() {
        let mut ports = LocalPorts::default();
        let now = Instant::now();
        assert!(ports.look(now), "there is one");
        ports.range = None;
        assert!(!ports.look(now + EVERY / 2));
        assert!(ports.look(now + EVERY));
    }
}
