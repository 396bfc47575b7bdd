// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables of figures in Markdown, for reports. Pure.

use std::fmt;

/// A table: its first columns are texts, the others are figures.
pub struct Table {
    texts: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Makes a table without rows; `texts` of its columns are not figures.
    pub fn new<T: ToString>(texts: usize, heading: impl IntoIterator<Item = T>) -> Self {
        let mut table = Self {
            texts,
            rows: Vec::new(),
        };
        table.row(heading);
        table
    }

    pub fn row<T: ToString>(&mut self, cells: impl IntoIterator<Item = T>) {
        let cells = cells.into_iter().map(|cell| cell.to_string());
        self.rows.push(cells.collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, row) in self.rows.iter().enumerate() {
            writeln!(f, "| {} |", row.join(" | "))?;
            if number == 0 {
                let figures = row.len().saturating_sub(self.texts);
                let (texts, figures) = (" --- |".repeat(self.texts), " ---: |".repeat(figures));
                writeln!(f, "|{texts}{figures}")?;
            }
        }
        Ok(())
    }
}

/// Returns the number with a space between thousands.
pub fn grouped(number: u32) -> String {
    match number < 1_000 {
        true => number.to_string(),
        false => format!("{} {:03}", grouped(number / 1_000), number % 1_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_right_of_the_texts_and_aligned_so() {
        let mut table = Table::new(1, ["client", "done"]);
        table.row(["short", "3"]);
        let expected = "| client | done |\n| --- | ---: |\n| short | 3 |\n";
        assert_eq!(table.to_string(), expected);
    }
}
