// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When the programs are attached, and where in the chain beside foreign programs.

use std::{
    fs,
    time::{Duration, Instant},
};

use lab::node::foreign::{DROP, Foreign};
use portolan::datapath::{DatapathError, maps::pins::links_dir, read::Reader};

use crate::{objects::service, world::World};

#[test]
fn no_service_is_served_before_every_program_is_attached() {
    let world = World::build();
    world.write("cart.yaml", &service("cart", "172.30.1.1"));
    let manifests = world.manifests();
    let agent = world.spawn(&["--manifests", manifests.to_str().unwrap()]);
    let attached = || fs::read_dir(links_dir(world.pins())).unwrap().count();
    let deadline = Instant::now() + Duration::from_secs(20);
    let is_served = || Ok::<_, DatapathError>(!Reader::open(world.pins())?.frontends()?.is_empty());
    while !is_served().is_ok_and(|served| served) {
        assert!(Instant::now() < deadline, "{}", agent.log());
    }
    let then = attached();
    agent.wait_for(7);
    assert_eq!(then, attached());
    assert!(world.connect("172.30.1.1:80").is_ok());
}

#[test]
fn programs_of_others_see_every_packet_wherever_they_stand_in_the_chain() {
    let world = World::build();
    world.write("cart.yaml", &service("cart", "172.30.1.1"));
    let interface = world.client_interface();
    let answers = || ["172.30.1.1:80", "10.40.1.20:8080"].map(|to| world.connect(to).is_ok());
    let tcx = |egress| Foreign::tcx(world.node(), &interface, egress, DROP).expect("attaches");
    let clsact = |egress| Foreign::clsact(world.node(), &interface, egress, DROP).expect("added");
    let before = [false, true].map(tcx);
    let _agent = world.start(7);
    for (egress, program) in [false, true].into_iter().zip(before) {
        assert_eq!(
            answers(),
            [false; 2],
            "attached before the agent, egress {egress}"
        );
        drop(program);
    }
    for (by_tcx, egress) in [(true, false), (true, true), (false, false), (false, true)] {
        assert_eq!(answers(), [true; 2], "nobody drops");
        let program = if by_tcx { tcx(egress) } else { clsact(egress) };
        assert_eq!(
            answers(),
            [false; 2],
            "attached after the agent, egress {egress}, tcx {by_tcx}"
        );
        drop(program);
    }
    assert_eq!(answers(), [true; 2], "nobody drops any more");
}
