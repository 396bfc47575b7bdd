// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The messages of an agent that cannot start.

use std::process::Command;

use crate::world::{BINARY, World};

#[test]
fn an_agent_that_cannot_start_reports_the_cause() {
    let world = World::build();
    let folder = world.manifests();
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

    for (missing, given) in [
        ("CAP_BPF", "+net_admin,+perfmon"),
        ("CAP_NET_ADMIN", "+bpf,+perfmon"),
        ("CAP_PERFMON", "+bpf,+net_admin"),
    ] {
        let bounds = format!("--bounding-set=-all,{given}");
        let agent = world.spawn_by(
            &["setpriv", &bounds, "--inh-caps=-all"],
            &["--manifests", &folder],
        );
        let said = agent.wait_for_end();
        assert!(
            said.contains(&format!("lacks {missing};")),
            "{missing}: {said}"
        );
    }

    let sourceless = Command::new(BINARY).arg("run").output().unwrap();
    let said = String::from_utf8_lossy(&sourceless.stderr).into_owned();
    assert!(
        said.contains(
            "no API server and no manifests given: pass the API server's own address with --master"
        ),
        "{said}"
    );
}
