// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The values, cells and columns of tables, as plain data. `table` prints them.

use std::{fmt, net::SocketAddr, rc::Rc};

/// A name that many rows share; each row has only a pointer to it.
pub(super) type Name = Rc<String>;

/// The value that a cell of a table shows. Rows are sorted by these values.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Value {
    None,
    Number(u64),
    /// A time span, in seconds.
    Seconds(u64),
    /// An amount of memory, in bytes.
    Bytes(u64),
    Address(SocketAddr),
    /// One of a few fixed texts, such as a protocol or a state.
    Word(&'static str),
    Name(Name),
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("-"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Seconds(seconds) => span(f, *seconds),
            Self::Bytes(bytes) => amount(f, *bytes),
            Self::Address(address) => write!(f, "{address}"),
            Self::Word(word) => f.write_str(word),
            Self::Name(name) => write!(f, "{name}"),
            Self::Text(text) if text.is_empty() => f.write_str("-"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// Writes a time span as kubectl does: two units while it is short, one when it is long.
fn span(f: &mut fmt::Formatter<'_>, seconds: u64) -> fmt::Result {
    let [minutes, hours, days] = [60, 3600, 86_400].map(|unit| seconds / unit);
    match seconds {
        0..120 => write!(f, "{seconds}s"),
        120..600 => write!(f, "{minutes}m{}s", seconds % 60),
        600..10_800 => write!(f, "{minutes}m"),
        10_800..28_800 => write!(f, "{hours}h{}m", minutes % 60),
        28_800..172_800 => write!(f, "{hours}h"),
        _ => write!(f, "{days}d{}h", hours % 24),
    }
}

/// Writes an amount of memory in the largest unit of which it has at least one, rounded up.
fn amount(f: &mut fmt::Formatter<'_>, bytes: u64) -> fmt::Result {
    match bytes {
        0..1024 => write!(f, "{bytes}B"),
        1024..1_048_576 => write!(f, "{}Ki", bytes.div_ceil(1024)),
        _ => write!(f, "{}Mi", bytes.div_ceil(1_048_576)),
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
    Name => |name| Self::Name(name),
}

/// How a cell is coloured on a terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Tone {
    #[default]
    Plain,
    Good,
    Warn,
    Bad,
}

impl Tone {
    /// Returns this tone if the condition holds, else [`Self::Plain`].
    pub(super) fn when(self, holds: bool) -> Self {
        if holds { self } else { Self::Plain }
    }
    pub(super) fn code(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Good => Some("\x1b[32m"),
            Self::Warn => Some("\x1b[33m"),
            Self::Bad => Some("\x1b[31m"),
        }
    }
    /// Returns the text in the colour of this tone; unchanged if `colour` is false.
    pub(super) fn paint(self, text: &str, colour: bool) -> String {
        match self.code().filter(|_| colour) {
            Some(code) => format!("{code}{text}\x1b[0m"),
            None => text.to_owned(),
        }
    }
}

/// A cell of a table.
pub(super) struct Cell {
    pub(super) value: Value,
    pub(super) tone: Tone,
}

pub(super) fn plain(value: impl Into<Value>) -> Cell {
    toned(value, Tone::Plain)
}

pub(super) fn toned(value: impl Into<Value>, tone: Tone) -> Cell {
    Cell {
        value: value.into(),
        tone,
    }
}

/// A column of a table whose rows are of type `R`.
pub(super) struct Column<R> {
    pub(super) heading: &'static str,
    /// Which columns a narrow terminal leaves out: those with the highest ranks first. 0: never
    /// left out. [`WIDE`]: shown only if the width is not limited.
    pub(super) rank: u8,
    /// The width to which it is shortened before other columns go; `usize::MAX`: it is not.
    pub(super) least: usize,
    pub(super) cell: fn(&R) -> Cell,
}

/// The rank of a column that is shown only with `--output wide`.
pub(super) const WIDE: u8 = u8::MAX;

pub(super) const fn column<R>(heading: &'static str, rank: u8, cell: fn(&R) -> Cell) -> Column<R> {
    Column {
        heading,
        rank,
        least: usize::MAX,
        cell,
    }
}

/// Makes a column that is shortened before other columns are left out.
pub(super) const fn cut<R>(heading: &'static str, rank: u8, cell: fn(&R) -> Cell) -> Column<R> {
    Column {
        least: 20,
        ..column(heading, rank, cell)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(Value::Seconds(0), "0s")]
    #[case(Value::Seconds(119), "119s")]
    #[case(Value::Seconds(205), "3m25s")]
    #[case(Value::Seconds(7_259), "120m")]
    #[case(Value::Seconds(12_345), "3h25m")]
    #[case(Value::Seconds(90_000), "25h")]
    #[case(Value::Seconds(180_000), "2d2h")]
    #[case(Value::Bytes(1_023), "1023B")]
    #[case(Value::Bytes(4_097), "5Ki")]
    #[case(Value::Bytes(75_499_520), "73Mi")]
    fn times_and_memory_are_shown_as_people_read_them(#[case] value: Value, #[case] text: &str) {
        assert_eq!(value.to_string(), text);
    }
}
