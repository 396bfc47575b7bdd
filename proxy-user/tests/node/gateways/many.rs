// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A change of one TCPRoute among many, timed beside changes of endpoints in the same agent.
//! `PORTOLAN_SCALE_ROUTES` sets a larger number of routes; then more changes are timed.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use lab::{
    load::{
        gateways::listener_of,
        objects::Objects,
        records::{TARGETS, address_of, spread},
        statistics::{interval, quantiles},
    },
    node::{netns::NetNs, pod::plug},
};

use super::{CLASS, KINDS, follow};
use crate::{
    agent::{Agent, within},
    connection::answer_as,
    world::World,
};

const LIMIT: Duration = Duration::from_secs(900);
const CONNECT: Duration = Duration::from_millis(100);
/// A pause between two changes, in which the agent writes the status of the route.
const REST: Duration = Duration::from_millis(50);

/// The changes that are timed.
#[derive(Clone, Copy)]
enum Change {
    /// Another backend of a route, seen at its listener.
    Route,
    /// Another endpoint of a service, seen at its cluster IP.
    Endpoints,
    /// The same, seen at the listener of a route that leads to the service.
    EndpointsOfRoute,
}

/// What the server's pod of `World` answers, and what the other one does.
const ANSWERS: [&str; 2] = ["who", "1 who"];

/// Returns what is answered at an address.
fn ask(to: SocketAddr) -> std::io::Result<String> {
    let stream = TcpStream::connect_timeout(&to, CONNECT)?;
    stream.set_read_timeout(Some(CONNECT))?;
    let mut lines = BufReader::new(stream);
    lines.get_mut().write_all(b"who\n")?;
    let mut line = String::new();
    lines.read_line(&mut line)?;
    Ok(line.trim().to_owned())
}

/// Waits until this server answers; returns how long it took.
fn wait_for(client: &NetNs, to: SocketAddr, target: usize) -> Duration {
    let (begun, wanted) = (Instant::now(), ANSWERS[target]);
    let asked = client.enter(|| {
        while !ask(to).is_ok_and(|by| by == wanted) {
            assert!(begun.elapsed() < LIMIT, "{to} is not answered by {target}");
            // The agent and the server need the processors as well.
            thread::sleep(Duration::from_micros(200));
        }
    });
    asked.expect("enter the pod");
    begun.elapsed()
}

/// The number of objects that the agent has written.
fn written(agent: &Agent) -> u64 {
    let text = agent.metrics("/metrics");
    let is_patch = |line: &&str| {
        line.starts_with("rest_client_requests_total") && line.contains("method=\"PATCH\"")
    };
    let counts = text.lines().filter(is_patch).map(|line| {
        let (_, count) = line.rsplit_once(' ').expect("a count");
        count.parse::<u64>().expect("a number")
    });
    counts.sum()
}

#[test]
fn a_change_of_one_route_among_many_is_followed_as_fast_as_one_of_endpoints() {
    let given = env::var("PORTOLAN_SCALE_ROUTES").ok();
    let (routes, rounds) = given.map_or((192, 15), |text| (text.parse().expect("a number"), 50));
    let world = World::build();
    let other = NetNs::new("other").expect("run as root");
    plug(world.node(), &other, &TARGETS[1..]).expect("a pod");
    answer_as(&other, 1);
    let mut objects = Objects::start(world.node(), "10.40.0.1").expect("an API server");
    let server = objects.server();
    server.apply(KINDS).expect("kubectl apply");
    let words = [
        "wait",
        "--for=condition=Established",
        "--timeout=30s",
        "crd",
        "--all",
    ];
    server.kubectl(&words).expect("the kinds");
    server.apply(CLASS).expect("kubectl apply");
    // The last service has the other server's endpoint.
    objects.grow(routes + 1, 1).expect("services");
    objects.point(routes, 1).expect("its endpoint");
    objects.add_routes(routes).expect("routes");
    let agent = follow(&world, &objects.kubeconfig().display().to_string());
    let begun = Instant::now();
    wait_for(world.client(), listener_of(routes - 1), 0);
    println!("{routes} routes are served after {:?}", begun.elapsed());
    within(LIMIT, "the status of all", &agent, || {
        written(&agent) > u64::from(routes)
    });

    let mut times = [const { Vec::new() }; 3];
    let mut time = |objects: &mut Objects<'_>, number: u32, change: Change, target: usize| {
        let changed = match change {
            Change::Route => objects.lead(number, if target == 0 { number } else { routes }),
            Change::Endpoints | Change::EndpointsOfRoute => objects.point(number, target),
        };
        changed.expect("taken");
        let seen_at = match change {
            Change::Endpoints => address_of(number),
            Change::Route | Change::EndpointsOfRoute => listener_of(number),
        };
        let took = wait_for(world.client(), seen_at, target);
        times[change as usize].push(took.as_secs_f64() * 1e3);
        thread::sleep(REST);
    };
    for round in 0..rounds {
        let number = spread(round, routes);
        for (change, target) in [
            (Change::Route, 1),
            (Change::Route, 0),
            (Change::Endpoints, 1),
            (Change::EndpointsOfRoute, 0),
            (Change::EndpointsOfRoute, 1),
            (Change::Endpoints, 0),
        ] {
            time(&mut objects, number, change, target);
        }
    }
    let [of_routes, of_endpoints, at_routes] = times.clone().map(|times| interval(&times));
    println!(
        "ms from the server's answer, of {} changes each: routes {of_routes:?}, endpoints {of_endpoints:?}, endpoints at routes {at_routes:?}",
        2 * rounds
    );
    let ratio = of_routes.median / of_endpoints.median;
    println!("ratio of the medians: {ratio:.2}");
    // On a busy machine the fastest changes say more than the medians. The ratio is 1.
    let [[of_routes], [of_endpoints], _] = times.map(|times| quantiles(times, [0.25]));
    let ratio = of_routes / of_endpoints;
    assert!(ratio < 2.0, "{ratio}");
}
