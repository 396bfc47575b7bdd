// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Puts the tables that `soak` and `storm` have made into docs/dev/reliability.md.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::{
    cargo::{self, Workspace},
    fs,
};

const PAGE: &str = "docs/dev/reliability.md";

/// The tables of one command of xtask.
pub(crate) struct Tables {
    /// The file into which the command's program writes the tables.
    file: PathBuf,
    /// The comment before the tables in docs/dev/reliability.md.
    begin: String,
    /// What follows the tables there; empty if they are the end of the page.
    end: &'static str,
}

impl Tables {
    pub(crate) fn new(command: &str, end: &'static str) -> Result<Self> {
        let folder = Workspace::read()?.target_directory();
        let file = folder.join(format!("{command}.md"));
        // If the program writes no tables, those of an earlier run must not be used.
        _ = fs::remove_file(&file);
        let begin = format!("<!-- Written by cargo xtask {command} --write -->\n");
        Ok(Self { file, begin, end })
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Replaces the tables in docs/dev/reliability.md.
    pub(crate) fn write(&self) -> Result<()> {
        let tables = fs::read_to_string(&self.file).context("no tables were made")?;
        let page = cargo::root().join(PAGE);
        let text = self.replaced(&fs::read_to_string(&page)?, tables.trim());
        let (begin, end) = (&self.begin, self.end);
        fs::write(
            &page,
            text.with_context(|| format!("{PAGE} lacks {begin} or {end}"))?,
        )
    }

    /// Returns the page with new tables; None if the page lacks a line before or behind them.
    fn replaced(&self, page: &str, tables: &str) -> Option<String> {
        let (begin, end) = (&self.begin, self.end);
        let (before, rest) = page.split_once(begin.as_str())?;
        let (_, after) = rest.rsplit_once(end)?;
        Some(format!("{before}{begin}\n{tables}\n{end}{after}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_text_between_the_marks_is_replaced() {
        let with_end = |end| Tables {
            file: PathBuf::new(),
            begin: "<!-- begin -->\n".to_owned(),
            end,
        };
        let between = with_end("\n<!-- end -->\n");
        let page = "a\n<!-- begin -->\nold\n<!-- end -->\nb\n";
        let wanted = "a\n<!-- begin -->\n\nnew\n\n<!-- end -->\nb\n";
        assert_eq!(between.replaced(page, "new").as_deref(), Some(wanted));
        let no_end = "a\n<!-- begin -->\nold\n";
        assert_eq!(between.replaced(no_end, "new"), None);
        let wanted = "a\n<!-- begin -->\n\nnew\n";
        let last = with_end("").replaced(no_end, "new");
        assert_eq!(last.as_deref(), Some(wanted));
    }
}
