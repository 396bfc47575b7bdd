// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One run of the soak test: a node, a proxy, all clients, an update every minute.

use std::{
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, ensure};
use lab::{
    interrupt::INTERRUPTED,
    node::topology::Plumbing,
    random::Random,
    traffic::servers::{Listening, Servers},
};
use proxy_common::Protocol;

use crate::{
    Arguments,
    clients::{HELD, HOLDER, Plan, plans},
    cluster::{PORT, Service},
    counters::{self, Counters, Flows},
    disturb::{Disturber, Times, config},
    pods::{Leaving, Rolling},
    proxy::{Programs, Proxy, Running},
    record::{Span, Tally},
    servers::Server,
    world::{Origin, REMOTE_ENDPOINTS, World, remote_pod, server_pod},
};

impl Arguments {
    /// Returns portolan's configuration.
    fn config(&self) -> String {
        let disturbed = self.disturb.as_ref();
        disturbed.map_or_else(String::new, |_| config(Disturber::FLOWS))
    }
    fn length(&self) -> Duration {
        Duration::from_secs(60 * self.minutes)
    }
    fn is_long(&self) -> bool {
        self.length() >= LONG
    }
}

/// The shortest run whose first and last windows are long enough to be compared closely.
const LONG: Duration = Duration::from_secs(300);

/// The results of one run.
pub(crate) struct Outcome {
    pub(crate) proxy: Proxy,
    pub(crate) tallies: Vec<Tally>,
    pub(crate) counters: Counters,
    pub(crate) evicted: u32,
    /// How many connections to the pod that goes have ended, as their clients saw: those that were
    /// translated by packets, and at the client's socket. None if no client held any.
    pub(crate) ended: Option<[u64; 2]>,
    pub(crate) updates: u32,
    /// How often each disturbance came; None if there were to be none.
    pub(crate) disturbances: Option<Times>,
    /// Whether the run was at least as long as [`LONG`].
    pub(crate) is_long: bool,
    /// The longest time for which this process did not get a processor.
    pub(crate) standstill: Duration,
}

/// The number of server pods that are never replaced.
const STEADY: u8 = 10;
/// The counters are read this long before the end of the run.
const LAST: Duration = Duration::from_secs(1);
/// Time from one update to the next; short runs update more often.
const UPDATE: Duration = Duration::from_secs(60);

pub(crate) fn run(
    arguments: &Arguments,
    plumbing: Plumbing,
    proxy: Proxy,
    programs: &Programs,
) -> Result<Outcome> {
    let seed = arguments.seed;
    let world = World::new(plumbing, seed, proxy == Proxy::Portolan)?;
    let _servers = serve(&world)?;
    let associations = Servers::start()?;
    let _listening = listen(&world, &associations)?;
    let mut rolling = Rolling::start(&world, Random::new(seed))?;
    let mut leaving = Leaving::start(&world)?;
    let _visible = world.visit(Origin::Pod(HOLDER))?;
    let mut running = Running::start(&world, proxy, programs, &arguments.config())?;

    let mut plans = plans()?;
    plans.retain(|plan| plan.kind.contains(&arguments.only));
    if arguments.disturb.is_some() {
        plans.retain(|plan| plan.kind != HELD && !plan.is_crowd());
        plans.iter_mut().for_each(|plan| plan.pace *= 10);
    }
    let before = counters::read(&world, &running)?;
    let span = Span {
        begin: Instant::now() + Duration::from_secs(1),
        length: arguments.length(),
    };
    let disturber = |only| Disturber::new(&world, programs, span, seed, only);
    let mut disturber = arguments.disturb.as_deref().map(disturber);
    let mut flows = Flows::new();
    let (tallies, after, standstill) = thread::scope(|scope| -> Result<_> {
        let start = |(number, plan): (usize, &Plan)| {
            let (world, plan, seed) = (&world, *plan, seed ^ (number as u64) << 32);
            scope.spawn(move || plan.run(world, span, proxy != Proxy::None, seed))
        };
        let clients: Vec<_> = plans.iter().enumerate().map(start).collect();
        let watch = scope.spawn(|| longest_standstill(span));
        let lived = match &mut disturber {
            Some(disturber) => live_disturbed(span, &mut running, &mut rolling, disturber),
            None => {
                let pods = (&mut rolling, &mut leaving);
                live(&world, span, &mut running, pods, &mut flows, programs)
            }
        };
        let tallies = clients.into_iter().map(|client| {
            let tally = client.join();
            tally.map_err(|_| anyhow!("a client has broken down"))?
        });
        let tallies = tallies.collect::<Result<Vec<Tally>>>();
        let standstill = watch.join().map_err(|_| anyhow!("the watch has ended"))?;
        Ok((tallies?, lived?, standstill))
    })?;
    let is_held = plans.iter().any(|plan| plan.kind == HELD);
    let ended = world.departure.ended.each_ref();
    Ok(Outcome {
        proxy,
        tallies,
        counters: counters::difference(&before, &after),
        evicted: flows.evicted,
        ended: is_held.then(|| ended.map(|count| count.load(Ordering::Relaxed))),
        updates: rolling.updates,
        disturbances: disturber.map(|disturber| disturber.times),
        is_long: arguments.is_long(),
        standstill,
    })
}

/// Returns the most by which a short sleep was too long. On a machine that other programs keep
/// busy, packets wait as well.
fn longest_standstill(span: Span) -> Duration {
    const SLEEP: Duration = Duration::from_millis(10);
    let mut longest = Duration::ZERO;
    while !span.is_over() {
        let begun = Instant::now();
        thread::sleep(SLEEP);
        longest = longest.max(begun.elapsed().saturating_sub(SLEEP));
    }
    longest
}

/// Runs the updates and watches the flows until shortly before the end of the run. Then reads the
/// counters and returns them. Later they would count the resets that ending clients send for what
/// they have not received.
fn live(
    world: &World,
    span: Span,
    running: &mut Running<'_>,
    (rolling, leaving): (&mut Rolling<'_>, &mut Leaving<'_>),
    flows: &mut Flows,
    programs: &Programs,
) -> Result<Counters> {
    // No update in the last seconds: a failure that it causes would not be seen any more.
    let period = UPDATE.min(span.length / 4);
    let mut update = span.begin + period / 2;
    let mut look = span.begin;
    let mut hour = Some(span.begin + span.length / 3);
    while Instant::now() + LAST < span.end() {
        ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
        leaving.step(running, span.begin.elapsed())?;
        if Instant::now() >= update && update + period / 2 < span.end() {
            rolling.update(running)?;
            update += period;
        }
        if let Some(agent) = running.agent().filter(|_| Instant::now() >= look) {
            flows.look(agent, &programs.portolan)?;
            look = Instant::now() + Flows::PERIOD;
        }
        if hour.is_some_and(|hour| Instant::now() >= hour) {
            hour = None;
            running.agent().map_or(Ok(()), counters::pass_an_hour)?;
        }
        thread::sleep(Duration::from_millis(50));
    }
    counters::read(world, running)
}

/// Disturbs and updates in turns until shortly before the end of the run.
fn live_disturbed(
    span: Span,
    running: &mut Running<'_>,
    rolling: &mut Rolling<'_>,
    disturber: &mut Disturber<'_>,
) -> Result<Counters> {
    const UPDATES: u32 = 3;
    let end = span.end() - LAST;
    let mut done = 0;
    thread::sleep(span.window() / 4);
    while Instant::now() < end {
        ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
        disturber.disturb(running)?;
        done += 1;
        if done % UPDATES == 0 && Instant::now() + UPDATE / 4 < end {
            rolling.update(running)?;
        }
    }
    // An agent that has just been started does not answer, and the counters are not judged.
    Ok(Counters::new())
}

/// Starts the servers that run until the end, in pods on this node and on other nodes.
fn serve(world: &World) -> Result<Vec<Server>> {
    let steady = (0..STEADY).map(|pod| world.serve(pod, pod, world.cluster.bits(pod)));
    let mut servers = steady.collect::<Result<Vec<_>>>()?;
    let bits = Service::Ten.bit() | Service::Many.bit() | Service::Local.bit();
    let addresses: Vec<_> = (0..REMOTE_ENDPOINTS).map(remote_pod).take(5).collect();
    let (remote, arrivals) = (&world.topology.remote, &world.arrivals);
    servers.push(Server::start(remote, None, &addresses, bits, arrivals)?);
    Ok(servers)
}

/// Starts SCTP servers at the endpoints of [`Service::Two`].
fn listen(world: &World, servers: &Servers) -> Result<Vec<Listening>> {
    let pods = [1, 2].map(|pod| {
        let namespace = world.namespace(Origin::Server(pod));
        servers.listen(namespace, Protocol::SCTP, (server_pod(pod), PORT).into())
    });
    pods.into_iter().collect()
}
