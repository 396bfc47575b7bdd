// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that the check of a flow can fail: it distinguishes every kind of wrong result from the
//! right one.

mod answered;
mod unanswered;

use std::{net::SocketAddr, time::Duration};

use lab::{
    cases::{
        expectations::{Situation, check},
        format::{Backends, Expect},
    },
    traffic::probe::{Answer, Attempt, Outcome},
};
use proxy_common::Protocol;

use super::reach::ip;

const CLIENT: &str = "203.0.113.9:40000";
const VIP: &str = "172.30.0.1:80";
const POD: &str = "10.40.1.10:8080";
const OTHER_POD: &str = "10.40.2.10:8080";
const NODE: &str = "192.168.40.2:50000";
const BRIDGE: &str = "10.40.1.1:50000";

fn at(text: &str) -> SocketAddr {
    text.parse().expect("address and port")
}

fn checked(
    expect: &Expect,
    attempts: &[Attempt],
    change: impl Fn(&mut Situation<'_>),
) -> Result<(), String> {
    let node = ["192.168.40.2", "10.40.1.1"].map(ip);
    let mut situation = Situation {
        protocol: Protocol::TCP,
        to: at(VIP),
        node: &node,
        client_is_node: false,
        at_the_socket: false,
        same_port: false,
    };
    change(&mut situation);
    check(expect, attempts, &situation)
}

fn holds(expect: &Expect, attempts: &[Attempt]) -> bool {
    checked(expect, attempts, |_| {}).is_ok()
}

fn attempt(outcome: Outcome) -> Attempt {
    Attempt {
        source: at(CLIENT),
        after: Duration::from_millis(1),
        outcome,
        sent: b"hello".to_vec(),
        left: None,
    }
}

fn answer(by: &str, seen: &str) -> Answer {
    Answer {
        by: at(by),
        seen: at(seen),
        from: at(VIP),
        intact: true,
    }
}

fn answered(by: &str, seen: &str) -> Attempt {
    attempt(Outcome::Answered(answer(by, seen)))
}

fn backends(list: &[&str], masquerade: Option<bool>, sticky: bool) -> Expect {
    Expect::Backends(Backends {
        backends: list.iter().map(|text| at(text)).collect(),
        masquerade,
        sticky,
        shares: Vec::new(),
    })
}

fn shared(list: &[&str], shares: &[u32]) -> Expect {
    Expect::Backends(Backends {
        backends: list.iter().map(|text| at(text)).collect(),
        masquerade: None,
        sticky: false,
        shares: shares.to_vec(),
    })
}
