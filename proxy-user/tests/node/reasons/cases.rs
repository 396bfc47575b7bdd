// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cases: how each reason is provoked. Their order matters: the last cases fill tables that
//! other cases need.

use std::{
    net::{TcpListener, TcpStream, UdpSocket},
    time::Duration,
};

use proxy_common::{Backend, Counter, Port, V4, maps};

use super::{
    packets::{ack, later_fragment, redirect, syn},
    scene::{BALANCED, OUTSIDE, POD, QUESTIONS, Scene, TORN_PORT, at, from_port},
};

/// How one reason is provoked.
pub(super) struct Case {
    pub(super) reason: Counter,
    /// Sets up the state that the case needs.
    pub(super) prepare: Option<fn(&Scene<'_>)>,
    /// Sends the packets or makes the calls.
    pub(super) provoke: fn(&Scene<'_>),
    pub(super) undo: Option<fn(&Scene<'_>)>,
    /// Other reasons that are counted at the same time.
    pub(super) beside: &'static [Counter],
}

const CART: &str = "172.30.1.1:80";
const EMPTY: &str = "172.30.1.2:80";
const TORN: &str = "172.30.1.5:80";
const UNSERVED: &str = "172.30.1.1:81";
/// A node port of a service with externalTrafficPolicy Local.
const LOCAL: &str = "10.40.0.1:30003";
const UNALLOCATED: &str = "172.30.1.99:80";
/// Other services with the same endpoint.
const OTHERS: [&str; 3] = ["172.30.1.11:80", "172.30.1.12:80", "172.30.1.13:80"];

const fn case(reason: Counter, provoke: fn(&Scene<'_>)) -> Case {
    Case {
        reason,
        prepare: None,
        provoke,
        undo: None,
        beside: &[],
    }
}

/// A case that needs only one packet of a client, from this port.
macro_rules! refused {
    ($reason:ident, $from:ident, $port:literal, $to:ident) => {
        case(Counter::$reason, |scene| {
            scene.send(&syn(from_port($from, $port), at($to), &[]));
        })
    };
}

pub(super) const CASES: &[Case] = &[
    refused!(RejectedNoEndpoint, POD, 40_001, EMPTY),
    refused!(RejectedUnserved, POD, 40_002, UNSERVED),
    refused!(DroppedNoLocalEndpoint, OUTSIDE, 40_003, LOCAL),
    refused!(DroppedSource, OUTSIDE, 40_004, BALANCED),
    refused!(DroppedUnallocated, POD, 40_005, UNALLOCATED),
    case(Counter::RejectedUnknownFlow, |scene| {
        scene.send(&ack(from_port(POD, 40_006), at(CART), 5))
    }),
    case(Counter::DroppedFragment, |scene| {
        scene.send(&later_fragment(from_port(POD, 0), at(CART)))
    }),
    Case {
        prepare: Some(|scene| assert!(scene.connect(POD, 40_007, CART))),
        ..case(Counter::IcmpRedirectDropped, |scene| {
            scene.send(&redirect(from_port(POD, 40_007), at(CART)))
        })
    },
    // The reset would be too short for the checksum that a device is asked to fill in.
    case(Counter::DroppedRewrite, |scene| {
        scene.send_odd(40_008, UNSERVED)
    }),
    Case {
        // The socket hook counts this and marks the packet.
        beside: &[Counter::DroppedSource],
        ..case(Counter::DroppedByMark, |scene| {
            let limit = Duration::from_millis(100);
            let connect = || TcpStream::connect_timeout(&at(BALANCED).into(), limit);
            let connected = scene.world.in_node_process(connect);
            assert!(connected.is_err(), "the policy drops it");
        })
    },
    case(Counter::BindRefused, |scene| {
        let bound = scene
            .world
            .in_node_process(|| TcpListener::bind("0.0.0.0:30001"));
        assert!(bound.is_err(), "the port is served");
    }),
    case(Counter::SocketTableFull, |scene| {
        let sent = scene.world.in_node_process(|| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            for port in QUESTIONS {
                socket.send_to(b"?", ("172.30.1.9", port))?;
            }
            std::io::Result::Ok(())
        });
        sent.expect("translated all the same");
    }),
    // The first connection keeps its source port, the next two take the only other ports.
    Case {
        prepare: Some(|scene| {
            for to in [CART, OTHERS[0], OTHERS[1]] {
                assert!(scene.connect(POD, 40_009, to), "{to}");
            }
        }),
        ..case(Counter::DroppedNoTuple, |scene| {
            scene.send(&syn(from_port(POD, 40_009), at(OTHERS[2]), &[]))
        })
    },
    Case {
        prepare: Some(|scene| {
            for port in [40_010, 40_011] {
                assert!(scene.connect(OUTSIDE, port, CART), "{port}");
            }
        }),
        ..case(Counter::DroppedNoMasqueradePort, |scene| {
            scene.send(&syn(from_port(OUTSIDE, 40_012), at(CART), &[]))
        })
    },
    Case {
        prepare: Some(|scene| {
            scene.halt_agent();
            tear(scene, 1);
        }),
        undo: Some(|scene| {
            tear(scene, u32::MAX);
            scene.go_on();
        }),
        ..case(Counter::DroppedInconsistent, |scene| {
            scene.send(&syn(from_port(POD, 40_014), at(TORN), &[]))
        })
    },
    // Established connections are never evicted.
    case(Counter::DroppedFlowTableFull, |scene| {
        let mut ports = 41_000..41_064;
        assert!(
            ports.any(|port| !scene.connect(POD, port, CART)),
            "it is full"
        );
    }),
    // More packets than both processors may answer at once.
    Case {
        reason: Counter::RejectedSilently,
        prepare: None,
        provoke: |scene| {
            for port in 42_000..52_000 {
                scene.send(&syn(from_port(POD, port), at(EMPTY), &[]));
            }
        },
        undo: None,
        beside: &[Counter::RejectedNoEndpoint],
    },
];

/// Makes the only slot of a service refer to an endpoint of another service, or to its own again.
fn tear(scene: &Scene<'_>, by: u32) {
    let backends = scene.table::<u32, Backend<V4>>(maps::BACKENDS_V4);
    let own = |id: &u32| backends.lookup(id).expect("readable").expect("an element");
    let id = (1..100).find(|id| own(id).port == Port::from_host(TORN_PORT));
    let id = id.expect("its endpoint");
    let mut torn = own(&id);
    torn.service.0 = torn.service.0.wrapping_add(by);
    backends.update(&id, &torn).expect("stored");
}
