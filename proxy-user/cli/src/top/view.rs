// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of the live `top`, and how keys change it. Pure: takes keys and samples, returns rows.
//! Called by `live`, drawn by `screen`.

use super::{
    item::{Item, sort},
    looks::Looks,
    programs::{self, ProgramRow},
    reasons::{self, ReasonRow},
    rows::{self, TopRow},
};
use crate::{
    args::Select,
    render::{Column, WIDE},
};

/// The tables of `top`; one of them is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Shown {
    #[default]
    Services,
    Backends,
    Reasons,
    Programs,
}

impl Shown {
    /// All tables, in the order in which the key Tab shows them.
    pub(super) const ALL: [Self; 4] = [
        Self::Services,
        Self::Backends,
        Self::Reasons,
        Self::Programs,
    ];
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::Backends => "backends",
            Self::Reasons => "reasons",
            Self::Programs => "programs",
        }
    }
    fn next(self, by: usize) -> Self {
        Self::ALL[(self as usize + by) % Self::ALL.len()]
    }
    /// Returns the headings of this table's columns. `wide` adds those of `--output wide`.
    pub(super) fn headings(self, wide: bool) -> Vec<&'static str> {
        fn of<R>(columns: &[Column<R>], wide: bool) -> Vec<&'static str> {
            let columns = columns.iter().filter(|one| wide || one.rank != WIDE);
            columns.map(|one| one.heading).collect()
        }
        match self {
            Self::Services => of(&rows::columns(false, true), wide),
            Self::Backends => of(&rows::columns(true, true), wide),
            Self::Reasons => of(reasons::COLUMNS, wide),
            Self::Programs => of(programs::COLUMNS, wide),
        }
    }
}

/// A key that has a meaning in `top`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Key {
    Char(char),
    Backspace,
    Enter,
    Escape,
    Tab,
    BackTab,
    Left,
    Right,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    /// Ctrl-C.
    Interrupt,
}

/// What the live screen shows, and how.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct View {
    pub(super) shown: Shown,
    /// For each table, the heading of the column that it is sorted by; None means the default
    /// order.
    sorted_by: [Option<&'static str>; Shown::ALL.len()],
    pub(super) reverse: bool,
    pub(super) filter: String,
    /// True while typed letters become part of the filter.
    pub(super) is_typing: bool,
    /// True while the user has paused reading new samples.
    pub(super) is_paused: bool,
    pub(super) has_help: bool,
    /// How many rows are scrolled off above the screen.
    above: usize,
    /// The number of rows that fit on the screen.
    height: usize,
}

/// The rows of the shown table.
pub(super) enum Rows {
    Top(Vec<TopRow>),
    Reasons(Vec<ReasonRow>),
    Programs(Vec<ProgramRow>),
}

impl Rows {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Top(rows) => rows.len(),
            Self::Reasons(rows) => rows.len(),
            Self::Programs(rows) => rows.len(),
        }
    }
}

impl View {
    /// Creates a view that shows the table `shown`, sorted by the column with the heading
    /// `sorted_by`.
    pub(super) fn new(shown: Shown, sorted_by: Option<&'static str>, reverse: bool) -> Self {
        let mut view = Self {
            shown,
            reverse,
            ..Self::default()
        };
        view.sorted_by[shown as usize] = sorted_by;
        view
    }

    /// Returns the heading of the column that the shown table is sorted by; None means the default
    /// order.
    pub(super) fn sorted_by(&self) -> Option<&'static str> {
        self.sorted_by[self.shown as usize]
    }

    /// Changes the view as the key asks. Returns true if the key ends the command.
    pub(super) fn press(&mut self, key: Key) -> bool {
        if key == Key::Interrupt {
            return true;
        }
        if self.has_help {
            self.has_help = false;
            return key == Key::Char('q');
        }
        if self.is_typing {
            self.type_in(key);
            return false;
        }
        match key {
            Key::Char('q') | Key::Escape => return true,
            Key::Char('?' | 'h') => self.has_help = true,
            Key::Char('p' | ' ') => self.is_paused = !self.is_paused,
            Key::Char('/') => self.is_typing = true,
            Key::Char('r') => self.reverse = !self.reverse,
            Key::Char('b') if self.shown == Shown::Backends => self.show(Shown::Services),
            Key::Char('b') => self.show(Shown::Backends),
            Key::Tab => self.show(self.shown.next(1)),
            Key::BackTab => self.show(self.shown.next(Shown::ALL.len() - 1)),
            Key::Right | Key::Char('>') => self.sort_by_next(true),
            Key::Left | Key::Char('<') => self.sort_by_next(false),
            Key::Up | Key::Char('k') => self.above = self.above.saturating_sub(1),
            Key::Down | Key::Char('j') => self.above += 1,
            Key::PageUp => self.above = self.above.saturating_sub(self.height),
            Key::PageDown => self.above += self.height,
            Key::Home | Key::Char('g') => self.above = 0,
            // `window` later limits this to the number of rows.
            Key::End | Key::Char('G') => self.above = usize::MAX / 2,
            _ => {}
        }
        false
    }

    fn type_in(&mut self, key: Key) {
        match key {
            Key::Char(letter) => self.filter.push(letter),
            Key::Backspace => _ = self.filter.pop(),
            Key::Enter => self.is_typing = false,
            Key::Escape => {
                self.is_typing = false;
                self.filter.clear();
            }
            _ => {}
        }
        self.above = 0;
    }

    fn show(&mut self, shown: Shown) {
        self.shown = shown;
        self.above = 0;
    }

    /// Sorts by the next (`forth`) or previous column. The default order comes before the first
    /// column and after the last one.
    fn sort_by_next(&mut self, forth: bool) {
        let headings = self.shown.headings(false);
        let sorted_by = &mut self.sorted_by[self.shown as usize];
        let at = headings.iter().position(|one| Some(*one) == *sorted_by);
        let next = match (at, forth) {
            (None, true) => Some(0),
            (None, false) => headings.len().checked_sub(1),
            (Some(at), true) => Some(at + 1),
            (Some(at), false) => at.checked_sub(1),
        };
        *sorted_by = next.and_then(|next| headings.get(next).copied());
    }

    /// Returns the rows of the shown table, filtered and sorted.
    pub(super) fn rows(&self, looks: &Looks, select: &Select) -> Rows {
        let wanted = self.filter.to_lowercase();
        match self.shown {
            Shown::Services | Shown::Backends => {
                let mut rows = looks.rows(select, self.shown == Shown::Backends);
                self.arrange(&mut rows, &wanted, rows::COLUMNS);
                Rows::Top(rows)
            }
            Shown::Reasons => {
                let mut rows = looks.reasons(select);
                self.arrange(&mut rows, &wanted, reasons::COLUMNS);
                Rows::Reasons(rows)
            }
            Shown::Programs => {
                let mut rows = looks.programs();
                self.arrange(&mut rows, &wanted, programs::COLUMNS);
                Rows::Programs(rows)
            }
        }
    }

    fn arrange<R: Item>(&self, rows: &mut Vec<R>, wanted: &str, columns: &[Column<R>]) {
        if !wanted.is_empty() {
            rows.retain(|row| row.words().to_lowercase().contains(wanted));
        }
        let order = self.sorted_by();
        let order = columns.iter().find(|one| Some(one.heading) == order);
        sort(rows, order, self.reverse);
    }

    /// Returns the range of the `rows` rows that a screen of `height` lines shows.
    pub(super) fn window(&mut self, rows: usize, height: usize) -> std::ops::Range<usize> {
        self.height = height;
        self.above = self.above.min(rows.saturating_sub(height));
        self.above..rows.min(self.above + height)
    }
}

#[cfg(test)]
#[path = "view_tests.rs"]
pub(super) mod tests;
