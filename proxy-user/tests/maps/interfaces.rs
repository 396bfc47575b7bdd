// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that interfaces are found and followed as they come and go.

use std::time::Duration;

use control::testing::rows;
use linux::interfaces::{Interface, Interfaces, Patterns};

use crate::support::{in_netns, run};

/// Commands, and what must be said of an interface soon after them: see [`said`]. Two kinds of
/// request change a bridge's port, and each has its own message.
const STEPS: &str = include_str!("interfaces.txt");

/// Says of each interface its name, kind and layer, whether the programs are attached, whether it
/// is isolated, and how many addresses masquerade may choose from.
fn said(all: &[Interface]) -> String {
    let of_one = |one: &Interface| {
        let layer = if one.link_layer { "L2" } else { "L3" };
        let attach = if one.attach { " attach" } else { "" };
        let isolated = if one.isolated { "isolated" } else { "open" };
        let (name, kind, sources) = (&one.name, one.kind, one.sources.len());
        format!("{name} {kind:?} {layer}{attach}: {isolated} {sources}\n")
    };
    all.iter().map(of_one).collect()
}

#[test]
fn interfaces_and_addresses_are_followed_as_they_come_and_go() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().expect("a runtime");
    let follow = async {
        let opened = Interfaces::open(Patterns::default()).await;
        let mut interfaces = opened.expect("rtnetlink answers");
        assert!(said(interfaces.current()).contains("v0 PodSide L2 attach:"));
        let gone = ["ip link del v1".to_owned(), "v1".to_owned()];
        for [commands, wanted] in rows(STEPS).into_iter().chain([gone]) {
            commands.split("; ").for_each(|command| drop(run(command)));
            // The changes must be seen by the kernel's messages: the next full list comes too late.
            let waiting = async {
                while said(interfaces.current()).contains(&wanted) == (wanted == "v1") {
                    interfaces.changed().await;
                }
            };
            let waited = tokio::time::timeout(Duration::from_secs(5), waiting).await;
            assert!(waited.is_ok(), "{commands}: {}", said(interfaces.current()));
        }
    };
    in_netns(|_| {
        run("ip link add v0 type veth peer name v0-peer");
        runtime.block_on(follow);
    });
}
