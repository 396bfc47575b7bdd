// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures how long after a write to the API packets follow it: after a proxy's start, after a
//! single change, and among many changes. Measured by connections, not by what the proxy reports.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, bail, ensure};
use lab::{
    interrupt::INTERRUPTED,
    load::{
        manifests::endpoint,
        objects::Objects,
        process::{is_running, processor_time_of_all, resident},
        proxy::Proxy,
        records::{self, address_of, spread},
    },
    node::{etcd, netns::NetNs},
};

use crate::{
    plan::{ENDPOINT, MEMORY, SERVICE, START},
    results::Measured,
    world::{NAMES, World},
};

/// Timeout until packets follow a change: longer than any proxy needs.
const MOST: Duration = Duration::from_secs(120);
/// How often to check that the proxy's process still runs.
const LOOK: Duration = Duration::from_secs(1);
/// Timeouts of connect() and of the answer: longer than an endpoint that serves needs.
const CONNECT: Duration = Duration::from_millis(3);
const ANSWER: Duration = Duration::from_millis(200);
/// Pause between two connections: in it, the proxy and the server can use the processors.
const REST: Duration = Duration::from_micros(300);

/// Connections to services from the client's pod of this node.
impl World {
    /// Waits until a service answers and the answering server is in `by`, for `most` at most.
    fn wait(&self, to: SocketAddr, by: &[u8], most: Duration) -> Result<()> {
        self.wait_until(to, most, |asked| asked.is_ok_and(|name| by.contains(&name)))
    }

    /// Waits until a service without endpoints refuses connections: so the proxy knows the service.
    fn wait_refused(&self, to: SocketAddr) -> Result<()> {
        let is_refusal = |error: io::Error| error.kind() == ErrorKind::ConnectionRefused;
        self.wait_until(to, MOST, |asked| asked.is_err_and(is_refusal))
    }

    fn wait_until(
        &self,
        to: SocketAddr,
        most: Duration,
        is_so: impl Fn(io::Result<u8>) -> bool,
    ) -> Result<()> {
        let begin = Instant::now();
        let ask = || loop {
            if is_so(ask(to)) {
                return Ok(());
            }
            ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
            if begin.elapsed() > most {
                bail!("{to} does not answer");
            }
            thread::sleep(REST);
        };
        self.cgroup.inside(|| self.client().enter(ask))??
    }
}

/// Connects to a service and returns the name of the server that answers.
fn ask(to: SocketAddr) -> io::Result<u8> {
    let mut stream = TcpStream::connect_timeout(&to, CONNECT)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.write_all(&[7])?;
    let mut name = [0];
    stream.read_exact(&mut name)?;
    Ok(name[0])
}

/// Measures how long after the proxy's start the last service answers. `since` is the time of the
/// start. Measures nothing if there is no proxy.
pub(crate) fn start(
    world: &World,
    objects: &Objects<'_>,
    proxy: &Proxy<'_>,
    (since, most): (Instant, Duration),
    measured: &mut Measured,
) -> Result<()> {
    let Some(pid) = proxy.pid() else {
        return Ok(());
    };
    let last = address_of(objects.count() - 1);
    while let Err(error) = world.wait(last, &NAMES, LOOK) {
        ensure!(is_running(pid), "it has ended: {}", proxy.log());
        if INTERRUPTED.load(Ordering::Relaxed) || since.elapsed() > most {
            return Err(error);
        }
    }
    let answered = since.elapsed().as_secs_f64();
    // conntrack has entries of early attempts, as untranslated connections: remove them.
    world.node().feed("conntrack", &["-F"], "")?;
    // The proxy counts a sync when it ends, a little after the first answer.
    let deadline = Instant::now() + ANSWER * 10;
    while proxy.syncs(world.node())? == 0.0 && Instant::now() < deadline {
        thread::sleep(REST);
    }
    measured.add(START, answered, format!("{answered:.2}"));
    // The processor time includes programs that the proxy starts, once they have ended.
    let processor = processor_time_of_all(pid)?;
    let shown = format!("{processor:.2}");
    measured.add("Processor time until then, s", processor, shown);
    let resident = resident(pid)?;
    measured.add(MEMORY, resident, format!("{resident:.0}"));
    Ok(())
}

/// After this time no more changes are begun.
const ENOUGH: Duration = Duration::from_secs(30);

/// Times single changes, `count` at most, one by one: first of endpoints, then to new services.
pub(crate) fn changes(
    world: &World,
    objects: &mut Objects<'_>,
    count: u32,
    measured: &mut Measured,
) -> Result<()> {
    let begin = Instant::now();
    let mut endpoint = Vec::new();
    for number in 0..count {
        if begin.elapsed() > ENOUGH && endpoint.len() >= 3 {
            break;
        }
        let service = spread(number, objects.count());
        endpoint.push(follow(world, objects, service)?);
    }
    let first = objects.count();
    // All services are created before the first one is timed. Whenever a service is created, the
    // API server counts all cluster IPs, and its garbage collector runs afterwards.
    for _ in 0..count {
        objects.announce()?;
    }
    world.wait_refused(address_of(objects.count() - 1))?;
    let begin = Instant::now();
    let mut service = Vec::new();
    for number in first..objects.count() {
        if begin.elapsed() > ENOUGH && service.len() >= 3 {
            break;
        }
        let written = Instant::now();
        objects.serve(number)?;
        world.wait(address_of(number), &NAMES, MOST)?;
        service.push(milliseconds(written));
    }
    objects.shrink(first)?;
    measured.add_latency(ENDPOINT, endpoint, "");
    measured.add_latency(SERVICE, service, "");
    Ok(())
}

/// Makes the other server pod the only endpoint of a service. Returns how many milliseconds packets
/// took to follow.
fn follow(world: &World, objects: &mut Objects<'_>, service: u32) -> Result<f64> {
    let written = Instant::now();
    let target = objects.swap(service, 1)?;
    world.wait(address_of(service), &NAMES[target..=target], MOST)?;
    Ok(milliseconds(written))
}

/// How many services have changing endpoints: the ones with the lowest numbers.
const CHURNED: u32 = 100;

/// Changes endpoints of other services, `wanted` a second, for `length`; times those of one.
pub(crate) fn churn(
    world: &World,
    objects: &mut Objects<'_>,
    pid: u32,
    (wanted, length): (u32, Duration),
    measured: &mut Measured,
) -> Result<()> {
    let (node, probed) = (objects.node(), objects.count() - 1);
    let services = CHURNED.min(probed).max(1);
    let stop = AtomicBool::new(false);
    let mut latencies = Vec::new();
    let (begin, before) = (Instant::now(), processor_time_of_all(pid)?);
    let (written, seconds, after) = thread::scope(|scope| -> Result<_> {
        let writer = scope.spawn(|| write(node, services, wanted, &stop));
        let mut measure = || {
            while begin.elapsed() < length {
                latencies.push(follow(world, objects, probed)?);
                // The timed changes must be few compared with the others.
                thread::sleep(Duration::from_millis(200));
            }
            Ok((begin.elapsed().as_secs_f64(), processor_time_of_all(pid)?))
        };
        let followed: Result<_> = measure();
        stop.store(true, Ordering::Relaxed);
        let written = writer.join();
        let written = written.map_err(|_| anyhow!("the writer broke down"))??;
        let (seconds, after) = followed?;
        Ok((f64::from(written) / seconds, seconds, after))
    })?;
    objects.set_endpoints_of(services, 2)?;
    let processor = (after - before) / seconds * 100.0;
    let longest = latencies.iter().copied().fold(0.0, f64::max);
    let resident = resident(pid)?;
    let heading = format!(
        "An endpoint while {wanted} a second change, ms: p50 / p99 (changes), longest; written a second, processor in % of one, MiB"
    );
    let behind = format!(", {longest:.0}; {written:.0}, {processor:.1}, {resident:.0}");
    measured.add_latency(&heading, latencies, &behind);
    Ok(())
}

/// Changes endpoints of these services until it is to stop, `wanted` a second: some of one service
/// at once, straight in etcd, so that the writer needs little of the processors. Returns how many.
fn write(node: &NetNs, services: u32, wanted: u32, stop: &AtomicBool) -> Result<u32> {
    const TICK: Duration = Duration::from_millis(10);
    let (begin, each) = (Instant::now(), wanted / 100);
    let mut ticks = 0;
    while !stop.load(Ordering::Relaxed) {
        // From one round over the services to the next, the addresses change between two ranges.
        let range = 3 + ticks / services % 2;
        let address = |n| Ipv4Addr::new(10, 40, range as u8, 1 + n as u8);
        let endpoints = (0..each).map(|n| endpoint(address(n), "node-b")).collect();
        etcd::store(node, [&records::of_slice(ticks % services, endpoints)])?;
        ticks += 1;
        thread::sleep((begin + TICK * ticks).saturating_duration_since(Instant::now()));
    }
    Ok(ticks * each)
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
