// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report on the soak test: tables in Markdown, and the list of faults.

use std::time::Duration;

use hdrhistogram::Histogram;
use lab::{
    load::{machine, table::Table},
    node::topology::Plumbing,
};

use crate::{Arguments, counters, disturb::Times, proxy::Proxy, record::Tally, run::Outcome};

/// A client with few source ports must use each of them at least this many times on average.
const TIMES: f64 = 20.0;
/// Windows of time with fewer exchanges are not compared.
const ENOUGH: u64 = 100;
/// The last minute's median may be this many times the first minute's, multiplied by the slowdown
/// of direct calls. The second value is for short runs, whose windows are only seconds.
const NOISE: f64 = 1.5;
const NOISE_OF_SHORT: f64 = 3.0;

/// If the machine stood still for this long, repeated SYNs and what follows from them prove
/// nothing. A SYN is repeated after a second.
const STANDSTILL: Duration = Duration::from_millis(500);

/// The runs with each plumbing.
type Runs = [(Plumbing, Vec<Outcome>)];

/// Returns the faults of portolan's runs, one line each.
pub(crate) fn faults(plumbings: &Runs) -> Vec<String> {
    let mut faults = Vec::new();
    for (plumbing, outcomes) in plumbings {
        let find = |proxy| outcomes.iter().find(|outcome| outcome.proxy == proxy);
        let yardstick = find(Proxy::None);
        let found = find(Proxy::Portolan).map(|outcome| of_run(outcome, yardstick));
        let named = found.into_iter().flatten();
        faults.extend(named.map(|fault| format!("{}: {fault}", plumbing.name())));
    }
    faults
}

/// Returns the report in Markdown.
pub(crate) fn text(arguments: &Arguments, plumbings: &Runs, faults: &[String]) -> String {
    let mut text = format!(
        "{}, {}: {} minutes each, seed {}. Times in ms: median and 99th percentile of the first and of the last minute.\n\n",
        machine::today(),
        machine::describe(),
        arguments.minutes,
        arguments.seed
    );
    text.extend(faults.iter().map(|fault| format!("- **{fault}**\n")));
    if faults.is_empty() {
        text += "Nothing has failed that may not.\n";
    }
    for (plumbing, outcomes) in plumbings {
        let table = clients(outcomes);
        text += &format!("\n### Pods joined by {}\n\n{table}", plumbing.name());
        let disturbed = |outcome: &Outcome| {
            let all = outcome.disturbances.as_ref();
            all.map(|all| disturbances(&outcome.tallies, all))
        };
        let disturbed = outcomes.iter().find_map(disturbed);
        text += &disturbed.unwrap_or_else(|| ports(outcomes) + &zeros(outcomes));
    }
    text
}

fn of_run(outcome: &Outcome, yardstick: Option<&Outcome>) -> Vec<String> {
    let mut faults = Vec::new();
    for tally in &outcome.tallies {
        let all = tally.done + tally.failed;
        if tally.failed > 0 {
            faults.push(format!("{}: {} of {all} failed", tally.plan, tally.failed));
        }
        if all == 0 {
            faults.push(format!("{}: has done nothing", tally.plan));
        }
    }
    if outcome.disturbances.is_some() {
        return faults;
    }
    let excused = |name: &str| {
        is_of_ended(name)
            || name == counters::RESETS
            || counters::OF_REPEATED.contains(&name) && outcome.standstill > STANDSTILL
    };
    let counters = outcome.counters.iter();
    let counters = counters.filter(|(name, count)| **count > 0 && !excused(name));
    faults.extend(counters.map(|(name, count)| format!("{name}: {count}")));
    faults.extend(of_ended(outcome));
    if outcome.evicted > 0 {
        let text = "UDP flows evicted that were in use";
        faults.push(format!("{text}: {}", outcome.evicted));
    }
    for tally in with_few_ports(outcome) {
        let times = tally.times_each_port();
        if times < TIMES {
            let plan = tally.plan;
            faults.push(format!("{plan}: each source port came {times:.0} times"));
        }
    }
    let allowed = noise(outcome, yardstick);
    for tally in &outcome.tallies {
        if let Some(slower) = slowdown(tally).filter(|slower| *slower > allowed) {
            faults.push(format!(
                "{}: the last minute takes {slower:.2} times the first one's, {allowed:.2} is allowed",
                tally.plan
            ));
        }
    }
    faults
}

fn is_of_ended(name: &str) -> bool {
    name == counters::RESET || counters::ENDED.contains(&name)
}

/// Returns the faults of the counters of ended connections: portolan ends those to the pod that has
/// gone, each once, and no others.
fn of_ended(outcome: &Outcome) -> Vec<String> {
    let mut faults = Vec::new();
    let count = |name| outcome.counters.get(name).copied().unwrap_or_default();
    let seen = outcome.ended.unwrap_or_default();
    for (name, clients) in counters::ENDED.into_iter().zip(seen) {
        let counted = count(name);
        if counted != clients {
            faults.push(format!("{name}: {counted}, clients have seen {clients}"));
        }
        if outcome.ended.is_some() && clients == 0 {
            faults.push(format!("{name}: no connection led to the pod that goes"));
        }
    }
    let (by_packets, resets) = (seen[0], count(counters::RESET));
    if resets > by_packets {
        let name = counters::RESET;
        faults.push(format!("{name}: {resets}, {by_packets} connections ended"));
    }
    faults
}

/// Returns the clients that open a connection for each request from few source ports.
fn with_few_ports(outcome: &Outcome) -> impl Iterator<Item = &Tally> {
    let tallies = outcome.tallies.iter();
    tallies.filter(|tally| tally.plan.must_reuse_ports())
}

/// Returns the last window's median duration divided by the first one's; None if a window has too
/// few exchanges, or if the client opens many connections at once.
fn slowdown(tally: &Tally) -> Option<f64> {
    let [first, last] = [&tally.first, &tally.last];
    let is_enough = !tally.plan.is_crowd() && first.len() >= ENOUGH && last.len() >= ENOUGH;
    is_enough.then(|| quantile(last, 0.5) / quantile(first, 0.5).max(1e-3))
}

/// Returns how many times the first window's median the last one's may be. Direct calls of the same
/// run, and all calls of `yardstick`, the run without a proxy, show the machine's own slowdown.
fn noise(outcome: &Outcome, yardstick: Option<&Outcome>) -> f64 {
    let tallies = outcome.tallies.iter();
    let direct = tallies.filter(|tally| tally.plan.by.is_none());
    let without = yardstick.into_iter().flat_map(|outcome| &outcome.tallies);
    let slowest = direct.chain(without).filter_map(slowdown);
    let noise = match outcome.is_long {
        true => NOISE,
        false => NOISE_OF_SHORT,
    };
    slowest.fold(1.0, f64::max) * noise
}

/// Returns a quantile in milliseconds. `share` is from 0 to 1.
fn quantile(times: &Histogram<u32>, share: f64) -> f64 {
    times.value_at_quantile(share) as f64 / 1e6
}

fn clients(outcomes: &[Outcome]) -> Table {
    let of_proxy = |outcome: &Outcome| {
        let done = format!("{}: done, failed", outcome.proxy.name());
        [done, "first".to_owned(), "last".to_owned()]
    };
    let headings = outcomes.iter().flat_map(of_proxy);
    let mut table = Table::new(1, ["client".to_owned()].into_iter().chain(headings));
    let all = outcomes.first().map(|outcome| &outcome.tallies);
    for (row, tally) in all.into_iter().flatten().enumerate() {
        let mut cells = vec![tally.plan.to_string()];
        let tallies = outcomes.iter();
        for tally in tallies.filter_map(|outcome| outcome.tallies.get(row)) {
            cells.push(format!("{}, {}", tally.done, tally.failed));
            for times in [&tally.first, &tally.last] {
                let [middle, late] = [0.5, 0.99].map(|share| quantile(times, share));
                cells.push(format!("{middle:.2} {late:.1}"));
            }
        }
        table.row(cells);
    }
    table
}

fn disturbances(tallies: &[Tally], all: &Times) -> String {
    let headings = ["disturbance", "times", "longest until all was well, s"];
    let mut table = Table::new(1, headings);
    for (name, (count, longest)) in all {
        let longest = format!("{:.1}", longest.as_secs_f64());
        table.row([(*name).to_owned(), count.to_string(), longest]);
    }
    let excused: u64 = tallies.iter().map(|tally| tally.excused).sum();
    format!("\n{table}\n{excused} exchanges failed while something was broken by hand.\n")
}

fn ports(outcomes: &[Outcome]) -> String {
    let mut text = "\nHow often clients with few source ports took each of them:\n\n".to_owned();
    for outcome in outcomes {
        for tally in with_few_ports(outcome) {
            let least = tally.ports.values().min().copied().unwrap_or_default();
            let most = tally.ports.values().max().copied().unwrap_or_default();
            text += &format!(
                "- {}: {}: {} ports, {:.0} times each ({least} to {most})\n",
                outcome.proxy.name(),
                tally.plan,
                tally.ports.len(),
                tally.times_each_port()
            );
        }
    }
    text
}

fn zeros(outcomes: &[Outcome]) -> String {
    let mut text = "\nMust be 0 with portolan:\n\n".to_owned();
    for outcome in outcomes {
        let counters = || outcome.counters.iter();
        let zero = counters().filter(|(_, count)| **count == 0).count();
        let others = counters().filter(|(name, count)| **count > 0 && !is_of_ended(name));
        let others = others.map(|(name, count)| format!("{name} {count}"));
        let others = others.collect::<Vec<_>>().join(", ");
        text += &format!(
            "- {}: {} updates; {zero} counters are 0; not 0: [{others}]; UDP flows evicted in use: {}; connections to the pod that has gone that ended: {}; longest standstill of the machine: {:.0?}\n",
            outcome.proxy.name(),
            outcome.updates,
            outcome.evicted,
            outcome.ended.unwrap_or_default().iter().sum::<u64>(),
            outcome.standstill
        );
    }
    text
}
