// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections to an endpoint whose pod is gone end; connections to every other endpoint go on:
//! IPv4 and IPv6, pods that are routed and pods behind a bridge.

mod bed;

use std::{
    thread,
    time::{Duration, Instant},
};

use rstest::rstest;

use self::bed::{
    Bed, ENDS, Family,
    Plumbing::{self, Bridged, Routed},
    V4_ONLY, V6_ONLY,
};
use crate::{
    agent::{Agent, eventually},
    configured::replace,
    connection::Open,
    pods::Sleeping,
};

/// Longer than a pod's link must be gone, and a walk through the tables of a test.
const SETTLED: Duration = Duration::from_secs(8);
const READY: [bool; 3] = [true, true, false];
const TERMINATING: [bool; 3] = [false, true, true];
/// A client waits this long at most for the end of its connection, on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// Expects that each connection ends as it must.
fn ends(open: &mut [Open; 4], agent: &Agent) {
    let begun = Instant::now();
    for (open, (client, text)) in open.iter_mut().zip(ENDS) {
        open.set_patience(2 * SOON);
        let end = open.echo("still there?");
        assert!(end.contains(text), "{client}: {end}: {}", agent.log());
    }
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

/// Waits, and expects that no connection has been ended.
fn nothing_ends(agent: &Agent) {
    thread::sleep(SETTLED);
    assert!(!agent.log().contains("that are gone"), "{}", agent.log());
}

#[rstest]
#[case(V4_ONLY, Routed)]
#[case(V4_ONLY, Bridged)]
#[case(V6_ONLY, Routed)]
#[case(V6_ONLY, Bridged)]
fn clients_of_a_pod_whose_namespace_is_deleted_get_a_reset(
    #[case] family: Family,
    #[case] plumbing: Plumbing,
) {
    let bed = Bed::new(family, plumbing);
    let pod = bed.join(family.pod);
    let other = bed.join(family.other);
    bed.publish(7, &[(family.pod, READY)]);
    let agent = bed.world.start(7);
    let mut to_pod = bed.connect();
    bed.publish(8, &[(family.other, READY), (family.pod, TERMINATING)]);
    agent.wait_for(8);
    let mut to_other = bed.connect();
    let interface = bed.learn(&agent, family.pod, None);
    // At a bridge, each younger port must have a known address.
    bed.learn(&agent, family.other, None);

    pod.vanish();
    eventually("its link is gone", &agent, || {
        let links = bed.world.tool("ip", "-o link");
        !links
            .lines()
            .any(|link| link.starts_with(&format!("{interface}: ")))
    });
    // A slice lists it.
    nothing_ends(&agent);
    bed.publish(9, &[(family.other, READY)]);
    agent.wait_for(9);
    ends(&mut to_pod, &agent);
    for (open, (client, _)) in to_other.iter_mut().zip(ENDS) {
        assert_eq!(open.echo("still there?"), "still there?", "{client}");
    }
    let ended = |kind| {
        agent.metric(&format!(
            "portolan_connections_of_gone_endpoints_ended_total{{kind=\"{kind}\"}}"
        ))
    };
    eventually("the ends are counted", &agent, || {
        (ended("flow"), ended("socket")) == (Some(2), Some(2))
    });
    drop(other);
}

#[rstest]
#[case(V4_ONLY, true)]
#[case(V6_ONLY, false)]
fn a_new_pod_with_a_gone_pods_address_behind_the_bridge_keeps_its_connections(
    #[case] family: Family,
    // Whether the node knows the new pod's link, as it sends packets to it.
    #[case] is_known: bool,
) {
    let bed = Bed::new(family, Bridged);
    let old = bed.join(family.pod);
    // A client at the same bridge. Its packets to pods do not pass the node's stack.
    let client = bed.join(family.other);
    let _visible = Sleeping::in_pod(client.namespace());
    bed.publish(7, &[(family.pod, READY)]);
    let agent = bed.world.start(7);
    let before = bed.learn(&agent, family.pod, None);
    bed.learn(&agent, family.other, None);
    old.vanish();
    eventually("its link is gone", &agent, || {
        bed.known(family.pod).is_none()
    });

    let new = bed.join(family.pod);
    // As if the new pod had told its neighbours its MAC.
    bed.world
        .ip(&format!("neighbour flush to {} dev br0", family.pod));
    let mut open = if is_known {
        let open = Vec::from(bed.connect());
        bed.learn(&agent, family.pod, Some(before));
        open
    } else {
        let at_socket = || Open::connect(client.namespace(), &family.service());
        let open = bed.world.cgroup().inside(at_socket);
        vec![open.expect("enter the cgroup").expect("served")]
    };
    // As by a change of the pod's labels.
    bed.publish(8, &[]);
    agent.wait_for(8);
    nothing_ends(&agent);
    for open in &mut open {
        assert_eq!(open.echo("still there?"), "still there?");
    }
    assert_eq!(bed.known(family.pod).is_some(), is_known);
    drop(new);
}

#[test]
fn with_the_setting_keep_connections_stay_until_it_changes() {
    let bed = Bed::new(V4_ONLY, Routed);
    let pod = bed.join(V4_ONLY.pod);
    bed.publish(7, &[(V4_ONLY.pod, READY)]);
    let agent = bed
        .world
        .start_configured(7, "portolan: {connectionsOfGoneEndpoints: keep}\n");
    let mut open = bed.connect();
    bed.learn(&agent, V4_ONLY.pod, None);
    pod.vanish();
    bed.publish(8, &[]);
    agent.wait_for(8);
    nothing_ends(&agent);
    // What has gone meanwhile counts, too.
    replace(
        &bed.world,
        "portolan: {connectionsOfGoneEndpoints: reset}\n",
    );
    agent.logs("connectionsOfGoneEndpoints, in force");
    ends(&mut open, &agent);
    assert_eq!(bed.world.flows().len(), 0);
}
