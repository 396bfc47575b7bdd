// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes the status as one screen: a line for each subject, the fullest maps, and the problems.

use std::io::{self, Write};

use super::{Status, attached::Count};
use crate::{
    maps::is_nearly_full,
    table::{Column, Tone, Value::Seconds, column, cut, plain, table, toned},
    terminal::Page,
};

/// A line of the screen: the subject, and what is known about it.
type Line = (&'static str, String, Tone);

const COLUMNS: &[Column<Line>] = &[
    column("", 0, |line| plain(line.0)),
    cut("", 0, |line| toned(line.1.as_str(), line.2)),
];

/// How many maps are listed at most, the fullest first. Nearly empty maps are left out.
const MAPS: usize = 5;
/// How many warnings and how many problems are listed at most.
const NAMED: usize = 8;

pub(super) fn write(out: &mut impl Write, page: &Page, status: &Status) -> io::Result<()> {
    table(out, page, COLUMNS, false, &lines(status))
}

fn lines(status: &Status) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut add = |subject: &'static str, text: String, tone| {
        // The table would show an empty text as a dash.
        lines.push((if subject.is_empty() { " " } else { subject }, text, tone));
    };
    let node = status.node.as_deref().unwrap_or("?");
    let (kernel, processors) = (&status.kernel, status.processors);
    let machine = format!("{node}, Linux {kernel}, {processors} processors");
    add("Node", machine, Tone::Plain);
    let (agent, tone) = agent(status);
    add("Agent", agent, tone);
    let services = status.services;
    let services = services.map_or_else(|| "?".to_owned(), |count| count.to_string());
    add("Services", services, Tone::Plain);
    let (interfaces, hooks) = (status.attached.interfaces, status.attached.hooks);
    let below = status.hooks_below.as_ref().map_or_else(String::new, |at| {
        format!(" at {}, not the cgroups' root", at.display())
    });
    let attached = format!(
        "{} of {} interfaces by {}, {} of {} socket hooks{below}",
        interfaces.attached, interfaces.wanted, status.attached_by, hooks.attached, hooks.wanted
    );
    let is_whole = |count: Count| count.attached == count.wanted;
    let tone = good_or(Tone::Bad, is_whole(interfaces) && is_whole(hooks));
    add("Attached", attached, tone);
    let uplinks = status.attached.uplinks.iter();
    let uplinks = uplinks.map(|one| format!("{} ({})", one.interface, one.xdp));
    let uplinks: Vec<_> = uplinks.collect();
    if !uplinks.is_empty() {
        let text = format!("takes packets at {}", uplinks.join(", "));
        add("XDP", text, Tone::Plain);
    }
    let settings = status.settings.iter();
    let settings = settings.map(|(key, value)| format!("{key} {value}"));
    let settings: Vec<_> = settings.collect();
    if !settings.is_empty() {
        add("Settings", settings.join(", "), Tone::Plain);
    }
    let (sync, tone) = sync(status);
    add("Sync", sync, tone);
    let (maps, memory) = (status.maps.len(), status.map_memory >> 20);
    let memory = format!("{maps} maps, {memory} MiB of kernel memory");
    add("Maps", memory, Tone::Plain);
    let maps = status.maps.iter().filter(|map| map.fill() > Some(0));
    let mut maps: Vec<_> = maps.collect();
    maps.sort_by_key(|map| std::cmp::Reverse(map.fill()));
    for map in maps.into_iter().take(MAPS) {
        let fill = map.fill().unwrap_or_default();
        let entries = map.entries.unwrap_or_default();
        let text = format!("  {fill:>3}% {} ({entries} of {})", map.name, map.capacity);
        add("", text, Tone::Bad.when(is_nearly_full(map)));
    }
    let known = status.warnings.as_deref();
    let text = match known {
        None => "not known without the agent".to_owned(),
        Some([]) => "none".to_owned(),
        Some(all) => format!("{}; `portolan warnings` has them whole", all.len()),
    };
    add("Warnings", text, good_or(Tone::Warn, known == Some(&[])));
    for warning in known.into_iter().flatten().take(NAMED) {
        let text = format!("  {}: {}", warning.object, warning.reason);
        add("", text, Tone::Warn);
    }
    let (text, tone) = match status.problems.len() {
        0 => ("none".to_owned(), Tone::Good),
        count => (count.to_string(), Tone::Bad),
    };
    add("Problems", text, tone);
    for problem in status.problems.iter().take(NAMED) {
        add("", format!("  {problem}"), Tone::Bad);
    }
    lines
}

fn good_or(other: Tone, is_good: bool) -> Tone {
    if is_good { Tone::Good } else { other }
}

fn agent(status: &Status) -> (String, Tone) {
    let agent = &status.agent;
    let process = agent.pid.map(|pid| format!("process {pid}"));
    let Some(code) = agent.health else {
        let text = match process {
            Some(process) => format!("does not answer ({process} holds the maps)"),
            None if status.maps.is_empty() => "not reachable".to_owned(),
            None => "not reachable; what is served stays served as the maps say".to_owned(),
        };
        return (text, Tone::Bad);
    };
    let version = agent.version.as_deref().unwrap_or("of another version");
    let mut parts = vec![format!("portolan {version}, {}", agent.word())];
    parts.extend(process);
    let uptime = agent.uptime_seconds;
    parts.extend(uptime.map(|seconds| format!("up {}", Seconds(seconds))));
    let memory = agent.resident_memory;
    parts.extend(memory.map(|bytes| format!("{} MiB", bytes >> 20)));
    (parts.join(", "), good_or(Tone::Bad, code == 200))
}

/// A watch that is silent for longer than this, in seconds, is dead: the server sends a bookmark
/// each minute. The alert `PortolanWatchSilent` has the same limit.
const SILENT: u64 = 180;

fn sync(status: &Status) -> (String, Tone) {
    let Some(sync) = &status.sync else {
        return ("not known without the agent".to_owned(), Tone::Warn);
    };
    let last = match sync.last_seconds {
        Some(seconds) => format!("last change applied {} ago", Seconds(seconds)),
        None => "nothing applied yet".to_owned(),
    };
    let mut parts = vec![last, format!("{} changes wait", sync.pending_changes)];
    if sync.failed_services > 0 {
        parts.push(format!("{} services failed", sync.failed_services));
    }
    let heard = sync.heard_seconds.iter();
    parts.extend(heard.map(|(kind, seconds)| format!("{kind} heard {} ago", Seconds(*seconds))));
    let silent = sync.silent_seconds.filter(|seconds| *seconds > SILENT);
    parts.extend(silent.map(|seconds| format!("no byte of a watch for {}", Seconds(seconds))));
    let is_good = sync.failed_services == 0 && sync.last_seconds.is_some() && silent.is_none();
    (parts.join(", "), Tone::Bad.when(!is_good))
}
