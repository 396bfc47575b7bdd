// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that interfaces are found and followed as they come and go.

use std::time::Duration;

use linux::interfaces::{Interface, InterfaceKind, Interfaces, Patterns};

use crate::support::{in_netns, run};

fn find<'a>(interfaces: &'a [Interface], name: &str) -> Option<&'a Interface> {
    interfaces.iter().find(|interface| interface.name == name)
}

/// Waits until the interfaces meet the condition.
async fn until(interfaces: &mut Interfaces, wanted: impl Fn(&[Interface]) -> bool) {
    let waiting = async {
        while !wanted(interfaces.current()) {
            interfaces.changed().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(5), waiting).await;
    assert!(waited.is_ok(), "{:#?}", interfaces.current());
}

#[test]
fn interfaces_and_addresses_are_followed_as_they_come_and_go() {
    in_netns(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            run("ip link add v0 type veth peer name v0-peer");
            let mut interfaces = Interfaces::open(Patterns::default())
                .await
                .expect("rtnetlink answers");
            let veth = find(interfaces.current(), "v0").expect("found at once");
            assert_eq!(veth.kind, InterfaceKind::PodSide);
            assert!(veth.attach && veth.link_layer);

            run("ip link add br0 type bridge");
            run("ip link set v0 master br0");
            until(&mut interfaces, |all| {
                find(all, "v0").is_some_and(|veth| veth.kind == InterfaceKind::BridgePort)
                    && find(all, "br0").is_some_and(|bridge| !bridge.attach)
            })
            .await;
            let v0_is = |isolated| {
                move |all: &[Interface]| find(all, "v0").is_some_and(|v0| v0.isolated == isolated)
            };
            // Two kinds of request change a bridge's port, and each has its own message.
            run("ip link set v0 up");
            run("bridge link set dev v0 isolated on");
            until(&mut interfaces, v0_is(true)).await;
            run("ip link set v0 type bridge_slave isolated off");
            until(&mut interfaces, v0_is(false)).await;
            run("ip link set v0 type bridge_slave isolated on");
            until(&mut interfaces, v0_is(true)).await;
            run("bridge link set dev v0 isolated off");
            until(&mut interfaces, v0_is(false)).await;
            run("ip addr add 192.0.2.1/24 dev br0");
            until(&mut interfaces, |all| {
                find(all, "v0").is_some_and(|veth| veth.sources.len() == 1)
            })
            .await;
            run("ip addr del 192.0.2.1/24 dev br0");
            until(&mut interfaces, |all| {
                find(all, "v0").is_some_and(|veth| veth.sources.is_empty())
            })
            .await;
            run("ip link add vx0 type vxlan id 7 dstport 4789");
            run("ip tuntap add tun0 mode tun");
            until(&mut interfaces, |all| {
                let kind = |name| find(all, name).map(|i| (i.kind, i.link_layer));
                kind("vx0") == Some((InterfaceKind::Tunnel, true))
                    && kind("tun0") == Some((InterfaceKind::Tunnel, false))
            })
            .await;
            // The change must be seen by the kernel's messages alone: the next full list comes
            // later than the timeout.
            run("ip link set v0 nomaster");
            until(&mut interfaces, |all| {
                find(all, "v0").is_some_and(|veth| veth.kind == InterfaceKind::PodSide)
            })
            .await;
            run("ip link set v0 name v1");
            until(&mut interfaces, |all| find(all, "v1").is_some()).await;
            run("ip link del v1");
            until(&mut interfaces, |all| find(all, "v1").is_none()).await;
        });
    });
}
