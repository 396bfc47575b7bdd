// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that interfaces are found and followed as they come and go.

use std::time::Duration;

use control::testing::rows;
use linux::interfaces::{Interface, Interfaces, Patterns};

use crate::support::{in_netns, run};

/// Commands, and what must be said of an interface soon after them: see [`said`]. Two kinds of
/// request change a bridge's port, and each has its own message.
const STEPS: &str = "
ip link add br0 type bridge                           | br0 Bridge L2:
ip link set v0 master br0                             | v0 BridgePort L2 attach: open 0
ip link set v0 up; bridge link set dev v0 isolated on | v0 BridgePort L2 attach: isolated
ip link set v0 type bridge_slave isolated off         | v0 BridgePort L2 attach: open
ip link set v0 type bridge_slave isolated on          | v0 BridgePort L2 attach: isolated
bridge link set dev v0 isolated off                   | v0 BridgePort L2 attach: open
ip addr add 192.0.2.1/24 dev br0                      | v0 BridgePort L2 attach: open 1
ip addr del 192.0.2.1/24 dev br0                      | v0 BridgePort L2 attach: open 0
ip link add vx0 type vxlan id 7 dstport 4789          | vx0 Tunnel L2
ip tuntap add tun0 mode tun                           | tun0 Tunnel L3
ip link set v0 nomaster                               | v0 PodSide L2 attach:
ip link set v0 name v1                                | v1 PodSide L2 attach:
";

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
            // The changes must be seen by the kernel's messages alone: the next full list comes
            // later than the timeout.
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
