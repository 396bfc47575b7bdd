// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Prints rows as a table, JSON or YAML. Used by the reading commands.

use anyhow::{Context, Result};
use comfy_table::{Table, presets};
use serde::Serialize;

use super::Output;

/// Prints rows. The table has these headings; `cells` makes the cells of a row.
pub(super) fn print<T: Serialize, const N: usize>(
    output: Output,
    rows: &[T],
    headings: [&str; N],
    cells: impl Fn(&T) -> [String; N],
) -> Result<()> {
    println!("{}", render(output, rows, headings, cells)?);
    Ok(())
}

fn render<T: Serialize, const N: usize>(
    output: Output,
    rows: &[T],
    headings: [&str; N],
    cells: impl Fn(&T) -> [String; N],
) -> Result<String> {
    match output {
        Output::Json => serde_json::to_string_pretty(rows).context("write JSON"),
        Output::Yaml => Ok(serde_saphyr::to_string(&rows)
            .context("write YAML")?
            .trim_end()
            .to_owned()),
        Output::Table => {
            let mut table = Table::new();
            table.load_style(presets::NOTHING).set_header(headings);
            table.add_rows(rows.iter().map(cells));
            let lines = table.to_string();
            Ok(lines
                .lines()
                .map(str::trim_end)
                .collect::<Vec<_>>()
                .join("\n"))
        }
    }
}

/// A cell for an optional value.
pub(super) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A cell for a list of words.
pub(super) fn words<T: AsRef<str>>(words: &[T]) -> String {
    if words.is_empty() {
        return "-".to_owned();
    }
    words
        .iter()
        .map(AsRef::as_ref)
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Row {
        port_name: &'static str,
    }

    #[test]
    fn every_output_holds_the_rows() {
        let rows = [Row { port_name: "http" }];
        let render = |output| {
            render(output, &rows, ["PORT"], |row| [row.port_name.to_owned()]).expect("renders")
        };
        let table = render(Output::Table);
        let lines: Vec<_> = table.lines().map(str::trim).collect();
        assert_eq!(lines, ["PORT", "http"]);
        assert!(render(Output::Json).contains("\"portName\": \"http\""));
        assert!(render(Output::Yaml).contains("portName: http"));
    }
}
