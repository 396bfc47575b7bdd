// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan trace`: shows packets and socket calls as they happen, with verdict and reason.

mod drops;
mod filter;

use std::{
    io::{self, BufWriter, IsTerminal, Write},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant, UNIX_EPOCH},
};

use anyhow::Result;
use datapath::trace::{Lost, Trace, Wanted, monotonic};
use serde::Serialize;

use self::{drops::Drops, filter::FilterArgs};
use super::{
    args::seconds,
    frame::Pins,
    list::is_closed,
    names::NameArgs,
    packets::{line::Line, name_cache::NameCache},
    signals::set_by_signals,
    terminal::Page,
};

/// Arguments of `portolan trace`.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct TraceArgs {
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Show instead every packet of a service that the kernel frees, in any network namespace of
    /// this node, with reason and place.
    #[arg(long, conflicts_with_all = ["verdict", "all"])]
    pub drops: bool,
    /// End after so many packets and calls.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// End after so many seconds; after 600 if neither this nor --limit is given and the output is
    /// no terminal: who reads it may go without a word, as kubectl exec does.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub duration: Option<Duration>,
    /// Show at most so many a second; the others are counted. 0: no limit.
    #[arg(long, value_name = "N", default_value_t = RATE)]
    pub rate: u64,
    /// Format of the output; json is one object a line.
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Form,
    #[command(flatten)]
    pub names: NameArgs,
    #[command(flatten)]
    pub pins: Pins,
}

/// How many events are shown per second at most, unless --rate is given.
const RATE: u64 = 1000;
/// How long a trace runs without a terminal, --duration and --limit.
const UNSEEN: Duration = Duration::from_secs(600);
/// How often the trace looks for new programs, changed services and lost events.
const LOOK: Duration = Duration::from_millis(500);
/// The pause before an empty buffer of events is read again.
const IDLE: Duration = Duration::from_millis(5);

/// How events are shown.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Form {
    #[default]
    Text,
    Json,
}

/// Shows what happens until a signal comes, or until --limit or --duration is reached.
pub(super) fn run(args: &TraceArgs) -> Result<()> {
    // The kernel detaches the programs when the process ends in any case. Signals are handled so
    // that the last lines are still written.
    let stop = set_by_signals()?;
    let known = NameCache::read(&args.pins.pin_dir, &args.names)?;
    let filter = args.filter.filter(&args.names, &known)?;
    let mut show = Show::new(args);
    let mut source: Box<dyn Source> = if args.drops {
        Box::new(Drops::begin(args, known, filter)?)
    } else {
        let wanted = Wanted {
            filter,
            calls: filter,
            rate: args.rate,
        };
        let trace = Trace::open(&args.pins.pin_dir, wanted)?;
        Box::new(Programs { trace, known })
    };
    let duration = duration(args, io::stdout().is_terminal());
    let end = duration.map(|end| format!(", or wait {} s", end.as_secs_f64()));
    let end = end.unwrap_or_default();
    let name = source.name();
    eprintln!("portolan trace: watching {name}; interrupt to end{end}");
    let done = watch(&mut *source, &mut show, &stop, duration);
    let lost = source.lost();
    drop(source);
    let done = done.and_then(|()| show.flush());
    eprintln!("portolan trace: {} shown, {}", show.shown, lost_text(&lost));
    match done {
        Err(error) if is_closed(&error) => Ok(()),
        done => done,
    }
}

/// Returns after how long the trace ends by itself. `is_seen`: the output is a terminal.
fn duration(args: &TraceArgs, is_seen: bool) -> Option<Duration> {
    let unseen = (!is_seen && args.limit.is_none()).then_some(UNSEEN);
    args.duration.or(unseen)
}

/// What reports: portolan's programs, or the kernel.
trait Source {
    fn name(&self) -> &'static str;
    /// Shows the next report; false if there is none now.
    fn show_next(&mut self, show: &mut Show<'_>) -> Result<bool>;
    /// Looks for new programs and changed services.
    fn look(&mut self) -> Result<()>;
    fn lost(&self) -> Lost;
}

fn watch(
    source: &mut dyn Source,
    show: &mut Show<'_>,
    stop: &AtomicBool,
    duration: Option<Duration>,
) -> Result<()> {
    let start = Instant::now();
    let (mut look, mut known) = (start, Lost::default());
    loop {
        let is_over = duration.is_some_and(|longest| start.elapsed() >= longest);
        let last = is_over || stop.load(Ordering::Relaxed);
        // Reports that are still in the buffer at the end are shown, too.
        while source.show_next(show)? {
            if show.args.limit.is_some_and(|count| show.shown >= count) {
                return Ok(());
            }
            if look.elapsed() >= LOOK || !last && stop.load(Ordering::Relaxed) {
                break;
            }
        }
        show.flush()?;
        if last {
            return Ok(());
        }
        if look.elapsed() >= LOOK {
            look = Instant::now();
            source.look()?;
            let lost = source.lost();
            if lost != known {
                known = lost;
                eprintln!("portolan trace: {}", lost_text(&lost));
            }
        } else {
            thread::sleep(IDLE);
        }
    }
}

/// Returns a text about the events that were lost, with a remedy.
fn lost_text(lost: &Lost) -> String {
    if lost.total() == 0 {
        return "none lost".to_owned();
    }
    const SLOW: &str = "not read fast enough: --service, --client, --port or a lower --rate helps";
    let parts = [(lost.limited, "beyond --rate"), (lost.unread, SLOW)];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<_> = parts.map(|(count, why)| format!("{count} {why}")).collect();
    format!("{} lost ({})", lost.total(), parts.join(", "))
}

/// The output that events are written to.
struct Show<'a> {
    args: &'a TraceArgs,
    out: BufWriter<io::Stdout>,
    colour: bool,
    shown: u64,
    /// When the monotonic clock was zero, in nanoseconds since 1970.
    epoch: u64,
}

impl<'a> Show<'a> {
    fn new(args: &'a TraceArgs) -> Self {
        let now = UNIX_EPOCH.elapsed();
        let now = now.map_or(0, |now| now.as_nanos() as u64);
        Self {
            args,
            out: BufWriter::new(io::stdout()),
            colour: Page::of_stdout().colour,
            shown: 0,
            epoch: now.saturating_sub(monotonic()),
        }
    }

    /// Writes one line. `text` is told whether colours are allowed.
    fn line(&mut self, line: &impl Serialize, text: impl FnOnce(bool) -> String) -> Result<()> {
        match self.args.output {
            Form::Json => serde_json::to_writer(&mut self.out, line)?,
            Form::Text => write!(self.out, "{}", text(self.colour))?,
        }
        self.shown += 1;
        Ok(writeln!(self.out)?)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(self.out.flush()?)
    }
}

/// The reports of portolan's programs.
struct Programs {
    trace: Trace,
    known: NameCache,
}

impl Source for Programs {
    fn name(&self) -> &'static str {
        match self.trace.has_calls() {
            true => "packets and socket calls",
            false => "packets (no socket hook is attached)",
        }
    }

    fn show_next(&mut self, show: &mut Show<'_>) -> Result<bool> {
        let Some(mut event) = self.trace.take() else {
            return Ok(false);
        };
        if let Some(reason) = self.known.refusal(&event) {
            event.outcome = reason as u32;
        }
        let line = Line::new(&event, show.epoch + event.time, &mut self.known);
        let tone = line.tone();
        show.line(&line, |colour| line.text(|text| tone.paint(text, colour)))?;
        Ok(true)
    }

    fn look(&mut self) -> Result<()> {
        self.trace.follow()?;
        self.known.refresh();
        Ok(())
    }

    fn lost(&self) -> Lost {
        self.trace.lost()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_without_a_terminal_or_limit_ends_by_itself() {
        let short = Some(Duration::from_secs(3));
        for (limit, given, is_seen, expected) in [
            (None, None, true, None),
            (None, None, false, Some(UNSEEN)),
            (Some(1), None, false, None),
            (None, short, false, short),
            (None, short, true, short),
        ] {
            let args = TraceArgs {
                limit,
                duration: given,
                ..TraceArgs::default()
            };
            assert_eq!(duration(&args, is_seen), expected);
        }
    }
}
