// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An agent whose kernel refuses some of its programs. The kernel really refuses them: they are
//! broken in a copy of the agent's binary.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use datapath::OBJECT;
use lab::broken::break_program;

use crate::world::{BINARY, CART, World};

/// Writes a copy of the agent in which these programs are broken; returns its path.
fn break_agent(world: &World, broken: &[&str]) -> PathBuf {
    let mut program = fs::read(BINARY).expect("the agent's program");
    let place = (0..program.len() - OBJECT.len())
        // The compiler has aligned the object to 8 bytes.
        .step_by(8)
        .find(|place| program[*place..].starts_with(OBJECT))
        .expect("the kernel programs in it");
    for name in broken {
        break_program(&mut program[place..place + OBJECT.len()], name);
    }
    let file = world.folder.path().join("broken-agent");
    fs::write(&file, program).expect("a copy");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("a program");
    file
}

#[test]
fn the_agent_logs_refused_programs_and_serves_with_the_others() {
    let world = World::serving();
    let broken = ["egress_loopback", "expire_v4", "peer_name_v6", "connect_v4"];
    let agent = world.start_other(&break_agent(&world, &broken));
    let mut open = world.connect(CART).expect("pods are served");
    assert_eq!(open.echo("on the packet path"), "on the packet path");
    // The hook for the node's processes is refused.
    assert!(world.connect_from_node(CART).is_err());

    // Longer than the time between two checks of the agent.
    thread::sleep(Duration::from_secs(3));
    let log = agent.log();
    for program in broken {
        let name = format!("kernel program {program}");
        let lines: Vec<_> = log.lines().filter(|line| line.contains(&name)).collect();
        let [line] = lines[..] else {
            panic!("{program} is named once, not {}: {log}", lines.len())
        };
        for part in ["9999", "processed ", "docs/dev/kernels.md", "until then"] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
    assert_eq!(open.echo("still"), "still");
    assert_eq!(agent.health().0, 200, "{}", agent.log());
    assert!(agent.stop().success(), "SIGTERM is a clean end");

    // Also if the cgroup root is unusable.
    let no_cgroup = ["--cgroup-root", &world.path("")];
    break_agent(&world, &["expire_v6"]);
    let agent = world.start_with(&no_cgroup);
    agent.says(&["WARN socket hooks"]);
    agent.says(&["kernel program expire_v6"]);
    assert!(agent.stop().success());

    let whole = world.start_other(Path::new(BINARY));
    assert!(world.connect_from_node(CART).is_ok(), "{}", whole.log());
    assert!(!whole.log().contains("kernel program"), "{}", whole.log());
    assert_eq!(open.echo("after"), "after");
}
