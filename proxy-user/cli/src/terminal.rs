// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the output goes to: how wide it is, and whether it shows colours. Used by `render` and
//! `list`.

use std::{
    env,
    io::{self, IsTerminal, Write},
};

/// Prints text whole. Where the reader has gone, as `head` does, nothing is said.
pub(super) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Text in which no character moves a terminal's cursor or changes its colours, but for the ends of
/// lines: names in it may be anybody's.
pub(super) fn harmless(text: &str) -> String {
    let plain = |c: char| if c.is_control() && c != '\n' { '?' } else { c };
    text.chars().map(plain).collect()
}

/// What a table is written to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Page {
    /// In characters; none: no end.
    pub(super) width: Option<usize>,
    /// In lines, where it is a screen.
    pub(super) height: Option<usize>,
    pub(super) colour: bool,
    /// Columns that are seldom wanted have room, too.
    pub(super) wide: bool,
}

impl Page {
    /// Standard output. Only a terminal has an end, and colours; not if `NO_COLOR` is set or the
    /// terminal is a dumb one.
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
    /// The same with room for everything.
    pub(super) fn endless(self) -> Self {
        Self {
            width: None,
            wide: true,
            ..self
        }
    }
}
