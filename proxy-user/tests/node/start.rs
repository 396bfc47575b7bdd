// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The messages of an agent that cannot start.

use crate::world::World;

#[test]
fn an_agent_that_cannot_start_reports_the_cause() {
    let world = World::build();
    let elsewhere = world.path("no-bpffs");
    for (flags, message) in [
        (
            ["--pin-dir", &elsewhere],
            "is not on a BPF file system: mount one with",
        ),
        (
            ["--node-ip", "10.0.0"],
            "invalid value '10.0.0' for '--node-ip",
        ),
        (
            ["--cluster-cidr", "10.40.0.0/33"],
            "clusterCIDR: \"10.40.0.0/33\" is not an address range",
        ),
    ] {
        let (_, said) = world.run(&flags);
        assert!(said.contains(message), "{said}");
    }
}
