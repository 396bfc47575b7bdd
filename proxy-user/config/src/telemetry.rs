// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agent's log, which goes to stderr. Started by `cli::run`.

use std::{io::IsTerminal, sync::OnceLock};

use anyhow::Context;
use tracing_subscriber::{
    EnvFilter, Layer, Registry, filter::LevelFilter, fmt, layer::SubscriberExt, reload,
    util::SubscriberInitExt,
};

/// The form of the log's lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The handle of the running log, to change its level, and its format.
struct Log {
    filter: reload::Handle<EnvFilter, Registry>,
    format: LogFormat,
}

static LOG: OnceLock<Log> = OnceLock::new();

/// Starts logging at a level (`info`) or with a filter (`warn,portolan_source=debug`).
pub fn start(level: &str, format: LogFormat) -> anyhow::Result<()> {
    let (filter, handle) = reload::Layer::new(filter(level)?);
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Text => lines
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            .boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .try_init()
        .map_err(|error| anyhow::anyhow!("start logging: {error}"))?;
    let log = Log {
        filter: handle,
        format,
    };
    _ = LOG.set(log);
    Ok(())
}

/// Changes which messages the log shows from now on.
pub fn set_level(level: &str) -> anyhow::Result<()> {
    let filter = filter(level)?;
    match LOG.get() {
        Some(log) => log.filter.reload(filter).context("change the log level"),
        None => Ok(()),
    }
}

/// Reports why the program fails: as a JSON log line, if the log has that format, else as text.
pub fn fail(error: &anyhow::Error) {
    match LOG.get() {
        Some(log) if log.format == LogFormat::Json => tracing::error!("{error:#}"),
        _ => eprintln!("{}", line(error)),
    }
}

/// Writes an error with its causes in one line, even if a text in it has several lines.
fn line(error: &anyhow::Error) -> String {
    let text = format!("portolan: {error:#}");
    let one_line = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(one_line).collect()
}

/// Returns the log filter for a level, or parses a filter. A level applies only to portolan's own
/// crates, whose names all begin with `portolan`: at `debug`, the loader of the kernel programs
/// would log every instruction. The kube crates log nothing, because `source` reports faults of the
/// API server itself.
fn filter(level: &str) -> anyhow::Result<EnvFilter> {
    let directives = match level.parse::<LevelFilter>() {
        Ok(own) => format!(
            "{},kube_client=off,kube_runtime=off,portolan={own}",
            own.min(LevelFilter::WARN)
        ),
        Err(_) => level.to_owned(),
    };
    EnvFilter::try_new(directives).with_context(|| {
        format!("logLevel {level:?} is not a level; use error, warn, info, debug or trace")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_even_if_a_name_has_line_breaks() {
        let error = anyhow::anyhow!("no such port\n80").context("--to a\u{1b}[31mb");
        assert_eq!(line(&error), "portolan: --to a [31mb: no such port 80");
    }

    #[test]
    fn a_log_level_is_for_this_program_and_other_crates_log_warnings() {
        for (level, expected) in [
            (
                "debug",
                "kube_runtime=off,kube_client=off,portolan=debug,warn",
            ),
            (
                "error",
                "kube_runtime=off,kube_client=off,portolan=error,error",
            ),
            ("warn,portolan_source=trace", "portolan_source=trace,warn"),
        ] {
            assert_eq!(filter(level).unwrap().to_string(), expected);
        }
        let fault = filter("portolan=loud").unwrap_err().to_string();
        let said = "\"portolan=loud\" is not a level; use error";
        assert!(fault.contains(said), "{fault}");
    }
}
