// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes an error with all its causes in one line. Used wherever an error becomes a warning or a
//! part of another error.

/// Returns the error and its causes as `anyhow` prints them (`a: b: c`). A cause is left out if the
/// text before it already contains it.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut texts: Vec<String> = Vec::new();
    for text in causes.map(ToString::to_string) {
        if !texts.last().is_some_and(|last| last.contains(&text)) {
            texts.push(text);
        }
    }
    texts.join(": ")
}
