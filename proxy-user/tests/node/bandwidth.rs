// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The CNI plugin `bandwidth` together with the agent: its limits hold as they do without the
//! agent. It limits the packets to a pod by a qdisc at the node's end of the pod's interface, and
//! the packets from the pod by a filter there that sends them through an ifb device.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    ops::RangeInclusive,
    thread,
    time::{Duration, Instant},
};

use lab::node::{cni::limit_bandwidth, settings::Forwarding};
use rstest::rstest;
use socket2::SockRef;

use crate::{
    agent::{Agent, eventually},
    attachments::LEFT,
    objects::Service,
    world::{World, at},
};

const SERVICE: &str = "172.30.1.1:80";
const BACKEND: &str = "10.40.1.20:9090";
/// The limit in bits a second: far below the rate of the slowest machine.
const LIMIT: u32 = 20_000_000;
/// The range for the payload rate of a limited connection, as a part of the limit. The limit also
/// counts headers: 1448 of 1514 bytes are payload, a part of 0.956.
const HELD: RangeInclusive<f64> = 0.85..=1.1;
/// The range for the rate of an unlimited connection, as a multiple of the limit.
const FREE: RangeInclusive<f64> = 5.0..=f64::INFINITY;
/// On a busy machine a connection may be slower than its limit, so a test tries again. A connection
/// is never faster than its limit.
const ATTEMPTS: usize = 3;
/// How long to wait before measuring: a burst passes at first, and the connection is starting.
const START: Duration = Duration::from_millis(250);
const TIME: Duration = Duration::from_secs(1);
/// The most bytes in flight: fewer than fit into the queues of the limits. If packets were lost,
/// the bytes read within a second would say little about the rate.
const ON_THE_WAY: usize = 32 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    PluginFirst,
    AgentFirst,
}

/// The pod whose bandwidth is limited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Limited {
    Client,
    Server,
}

#[rstest]
fn bandwidth_plugin_limits_hold_with_the_agent_in_either_start_order(
    #[values(Limited::Client, Limited::Server)] limited: Limited,
    #[values(Forwarding::Stack, Forwarding::Auto)] forwarding: Forwarding,
    #[values(Order::PluginFirst, Order::AgentFirst)] order: Order,
) {
    let world = World::build();
    // Distributions set this: a packet from the ifb device must still have its sender's address.
    world.set("ipv4/conf/all/rp_filter", "1");
    world.write("cart.yaml", Service::new("cart", "172.30.1.1").target(9090));
    let listener = world.server().enter(|| TcpListener::bind(BACKEND));
    let listener = listener.expect("enter the pod").expect("a listener");
    let check = |what: &str, to: &str, expected: RangeInclusive<f64>| {
        for upload in [true, false] {
            let direction = if upload { "to" } else { "from" };
            let share = || rate(&world, &listener, to, upload) / f64::from(LIMIT);
            let mut shares = Vec::new();
            while shares.len() < ATTEMPTS
                && shares.last().is_none_or(|last| last < expected.start())
            {
                shares.push(share());
            }
            println!(
                "{limited:?}, {forwarding:?}, {order:?}, {what}, {direction} {to}: {shares:.3?} of the limit"
            );
            let holds = shares.last().is_some_and(|last| expected.contains(last));
            assert!(holds, "{what}, {direction} {to}: {shares:?} of the limit");
        }
    };
    let agent = match order {
        Order::PluginFirst => {
            check("without agent and plugin", BACKEND, FREE);
            limit(&world, limited);
            check("without agent", BACKEND, HELD);
            start(&world, forwarding)
        }
        Order::AgentFirst => {
            let agent = start(&world, forwarding);
            let before = world.forwarded();
            check("without plugin", SERVICE, FREE);
            let is_past_the_stack = world.forwarded() == before;
            assert_eq!(is_past_the_stack, forwarding == Forwarding::Auto);
            limit(&world, limited);
            agent
        }
    };
    // The pod's packets must pass its filter; redirected packets would not.
    if forwarding == Forwarding::Auto {
        eventually("it is seen", &agent, || agent.metric(LEFT) == Some(1));
    }
    check("with both", BACKEND, HELD);
    check("with both", SERVICE, HELD);
}

fn start(world: &World, forwarding: Forwarding) -> Agent {
    let forwarding = forwarding.name();
    world.start_by_packet(7, &format!("portolan: {{forwarding: {forwarding}}}\n"))
}

fn limit(world: &World, limited: Limited) {
    let (interface, pod) = match limited {
        Limited::Client => (world.client_interface(), world.client()),
        Limited::Server => (world.server_interface(), world.server()),
    };
    limit_bandwidth(world.node(), &interface, pod, LIMIT).expect("limited");
}

/// The rate of one connection of the client in one direction, in bits a second.
fn rate(world: &World, listener: &TcpListener, to: &str, upload: bool) -> f64 {
    let near = world.client().enter(|| TcpStream::connect(at(to)));
    let near = near.expect("enter the pod").expect("it connects");
    let (far, _) = listener.accept().expect("a connection");
    let (mut from, mut to) = if upload { (near, far) } else { (far, near) };
    let buffer = SockRef::from(&from).set_send_buffer_size(ON_THE_WAY);
    buffer.expect("a small buffer");
    // Writing fails once the other end is closed.
    let sender = thread::spawn(move || while from.write_all(&[0; 1 << 14]).is_ok() {});
    let mut buffer = [0; 1 << 16];
    let mut read = || {
        let length = to.read(&mut buffer).expect("it goes on");
        (length, Instant::now())
    };
    let start = Instant::now();
    let begin = loop {
        let (_, now) = read();
        if now - start >= START {
            break now;
        }
    };
    let mut bytes = 0;
    let end = loop {
        let (length, now) = read();
        bytes += length;
        let enough = 8.0 * bytes as f64 > 10.0 * f64::from(LIMIT) * TIME.as_secs_f64();
        if enough || now - begin >= TIME {
            break now;
        }
    };
    drop(to);
    sender.join().expect("the sender");
    8.0 * bytes as f64 / (end - begin).as_secs_f64()
}
