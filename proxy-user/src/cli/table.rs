// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables that fit the page. Rows are written one by one, so that a long table takes no memory beside its rows. Used by `render` and
//! commands whose rows are no list.

use std::{
    fmt::{self, Write as _},
    io::{self, Write},
    net::SocketAddr,
    rc::Rc,
};

use super::terminal::Page;

/// What a cell shows. Cells of a column are sorted by it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Value {
    None,
    Number(u64),
    /// A time that has passed, in seconds.
    Seconds(u64),
    Address(SocketAddr),
    /// One of a few words.
    Word(&'static str),
    /// A name that many rows share.
    Name(Rc<str>),
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("-"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Seconds(seconds) => write!(f, "{seconds}s"),
            Self::Address(address) => write!(f, "{address}"),
            Self::Word(word) => f.write_str(word),
            Self::Name(name) => f.write_str(name),
            Self::Text(text) if text.is_empty() => f.write_str("-"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::None, Into::into)
    }
}

macro_rules! value_from {
    ($($type:ty => |$name:ident| $value:expr,)*) => {
        $(impl From<$type> for Value {
            fn from($name: $type) -> Self { $value }
        })*
    };
}

value_from! {
    u64 => |number| Self::Number(number),
    u32 => |number| Self::Number(number.into()),
    u16 => |number| Self::Number(number.into()),
    &str => |text| Self::Text(text.to_owned()),
    String => |text| Self::Text(text),
    SocketAddr => |address| Self::Address(address),
    Rc<str> => |name| Self::Name(name),
}

/// How a cell strikes the eye on a terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Tone {
    #[default]
    Plain,
    Good,
    Warn,
    Bad,
}

impl Tone {
    pub(super) fn code(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Good => Some("\x1b[32m"),
            Self::Warn => Some("\x1b[33m"),
            Self::Bad => Some("\x1b[31m"),
        }
    }
}

/// A cell of a table.
pub(super) struct Cell {
    pub(super) value: Value,
    pub(super) tone: Tone,
}

/// A cell without a colour.
pub(super) fn plain(value: impl Into<Value>) -> Cell {
    Cell {
        value: value.into(),
        tone: Tone::Plain,
    }
}

/// A cell of a tone.
pub(super) fn toned(value: impl Into<Value>, tone: Tone) -> Cell {
    Cell {
        value: value.into(),
        tone,
    }
}

/// A column of a table of `R`.
pub(super) struct Column<R> {
    pub(super) heading: &'static str,
    /// 0: always shown. Others give way on a narrow terminal, the highest first. [`WIDE`]: only where there is room without end.
    pub(super) rank: u8,
    /// Cut rather than that others give way.
    pub(super) is_cut: bool,
    pub(super) cell: fn(&R) -> Cell,
}

/// Of a column of `--output wide` only.
pub(super) const WIDE: u8 = u8::MAX;

pub(super) const fn column<R>(heading: &'static str, rank: u8, cell: fn(&R) -> Cell) -> Column<R> {
    Column {
        heading,
        rank,
        is_cut: false,
        cell,
    }
}

/// A column that is cut rather than that others give way.
pub(super) const fn cut<R>(heading: &'static str, rank: u8, cell: fn(&R) -> Cell) -> Column<R> {
    Column {
        is_cut: true,
        ..column(heading, rank, cell)
    }
}

/// Writes a table to standard output.
pub(super) fn print_table<R>(columns: &[Column<R>], rows: &[R]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    table(&mut out, &Page::of_stdout(), columns, true, rows)
}

const GAP: usize = 2;
const SPACES: &[u8] = &[b' '; 64];
/// A column that is cut keeps so much before others give way.
const CUT: usize = 20;
/// No column is cut below this.
const LEAST: usize = 8;

/// Writes a table: once through the rows for the widths, and once to write them.
pub(super) fn table<R>(
    out: &mut impl Write,
    page: &Page,
    columns: &[Column<R>],
    headings: bool,
    rows: &[R],
) -> io::Result<()> {
    let is_shown = |column: &&Column<R>| page.wide || column.rank != WIDE;
    let mut columns: Vec<_> = columns.iter().filter(is_shown).collect();
    let heading = |column: &&Column<R>| if headings { column.heading.len() } else { 0 };
    let mut widths: Vec<_> = columns.iter().map(heading).collect();
    let mut text = String::new();
    for row in rows {
        for (column, width) in columns.iter().zip(&mut widths) {
            put(&mut text, &(column.cell)(row).value);
            *width = length(&text).max(*width);
        }
    }
    fit(page, &mut columns, &mut widths);
    if headings {
        let cells = columns.iter().map(|column| (column.heading, Tone::Plain));
        line(out, page, cells, &widths)?;
    }
    let mut texts = vec![String::new(); columns.len()];
    let mut tones = vec![Tone::Plain; columns.len()];
    for row in rows {
        for (at, column) in columns.iter().enumerate() {
            let cell = (column.cell)(row);
            put(&mut texts[at], &cell.value);
            tones[at] = cell.tone;
        }
        let cells = texts.iter().map(String::as_str).zip(tones.iter().copied());
        line(out, page, cells, &widths)?;
    }
    Ok(())
}

/// Replaces a text by what a value shows, on one line.
fn put(text: &mut String, value: &Value) {
    text.clear();
    // Writing to a string does not fail.
    _ = write!(text, "{value}");
    // Names that others chose must not reach a terminal as commands.
    if !text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        *text = text.replace(char::is_control, " ");
    }
}

/// In characters.
fn length(text: &str) -> usize {
    if text.is_ascii() {
        return text.len();
    }
    text.chars().count()
}

/// Leaves out columns until the page holds the rest, those cut that may be; then cuts.
fn fit<R>(page: &Page, columns: &mut Vec<&Column<R>>, widths: &mut Vec<usize>) {
    let Some(room) = page.width else { return };
    let gaps = |widths: &[usize]| GAP * widths.len().saturating_sub(1);
    let taken = |widths: &[usize]| widths.iter().sum::<usize>() + gaps(widths);
    let needed = |columns: &[&Column<R>], widths: &[usize]| {
        let least = columns.iter().zip(widths).map(|(column, width)| {
            if column.is_cut {
                CUT.min(*width)
            } else {
                *width
            }
        });
        least.sum::<usize>() + gaps(widths)
    };
    while needed(columns, widths) > room {
        let ranks = columns.iter().enumerate().map(|(at, one)| (one.rank, at));
        match ranks.max() {
            Some((rank, at)) if rank > 0 => {
                columns.remove(at);
                widths.remove(at);
            }
            _ => break,
        }
    }
    for (may_cut, least) in [(true, CUT), (false, LEAST)] {
        while taken(widths) > room {
            let both = columns.iter().zip(widths.iter_mut());
            let cut = both.filter(|(column, width)| (column.is_cut || !may_cut) && **width > least);
            match cut.max_by_key(|(_, width)| **width) {
                Some((_, width)) => *width -= 1,
                None => break,
            }
        }
    }
}

fn line<'a>(
    out: &mut impl Write,
    page: &Page,
    cells: impl ExactSizeIterator<Item = (&'a str, Tone)>,
    widths: &[usize],
) -> io::Result<()> {
    let last = cells.len().saturating_sub(1);
    for (at, ((text, tone), width)) in cells.zip(widths).enumerate() {
        let length = length(text);
        let code = tone.code().filter(|_| page.colour);
        out.write_all(code.unwrap_or_default().as_bytes())?;
        if length > *width {
            let end = text
                .char_indices()
                .nth(width - 1)
                .map_or(text.len(), |(at, _)| at);
            write!(out, "{}…", &text[..end])?;
        } else {
            out.write_all(text.as_bytes())?;
        }
        if code.is_some() {
            out.write_all(b"\x1b[0m")?;
        }
        if at < last {
            let mut pad = width - length.min(*width) + GAP;
            while pad > 0 {
                let now = pad.min(SPACES.len());
                out.write_all(&SPACES[..now])?;
                pad -= now;
            }
        }
    }
    writeln!(out)
}
