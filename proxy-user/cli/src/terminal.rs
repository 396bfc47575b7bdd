// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Properties of the standard output: how wide it is, and whether it shows colours. Used by `list`.

use std::{
    env,
    io::{self, IsTerminal, Write},
};

use anyhow::Context;
use serde::Serialize;

use super::frame::Output;

/// Prints text to standard output. Whoever reads it may close it, as `head` does.
pub(super) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Prints a report in this format. `text`: what people read. Names in it may come from anybody, and
/// must not move the cursor or change colours: control characters other than line ends become `?`.
pub(super) fn print_report(
    output: Output,
    report: &impl Serialize,
    text: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    let text = match output {
        Output::Json => serde_json::to_string_pretty(report).context("write JSON")?,
        Output::Yaml => {
            let text = serde_saphyr::to_string(report).context("write YAML")?;
            text.trim_end().to_owned()
        }
        Output::Table => text().replace(|c: char| c.is_control() && c != '\n', "?"),
    };
    print(&format!("{text}\n")).context("write")
}

/// The size and abilities of the output that a table is written to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Page {
    /// The width in characters; None means no limit.
    pub(super) width: Option<usize>,
    /// The height in lines; None if the output is not a screen.
    pub(super) height: Option<usize>,
    pub(super) colour: bool,
    /// True if columns are shown, too, that only `--output wide` has.
    pub(super) wide: bool,
}

impl Page {
    /// Returns the page of standard output. Only a terminal has limits and colours; it has no
    /// colours if `NO_COLOR` is set or the terminal is a dumb one.
    pub(super) fn of_stdout() -> Self {
        let out = io::stdout();
        if !out.is_terminal() {
            return Self::default();
        }
        let size = rustix::termios::tcgetwinsize(out).ok();
        let size = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
        let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self {
            width: size.map(|size| size.ws_col.into()),
            height: size.map(|size| size.ws_row.into()),
            colour: !is_set("NO_COLOR") && !is_dumb,
            wide: false,
        }
    }
}
