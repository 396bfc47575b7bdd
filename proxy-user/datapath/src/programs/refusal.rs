// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Explains why the kernel refuses a program: the last lines of the kernel's verifier log, and the
//! remedy. Used by `load`.

use aya::programs::ProgramError;
use control::causes::chain;

use super::probe::running_kernel;

/// A program that the kernel refuses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    pub program: String,
    /// The kernel's error, the last lines of its verifier log, and the remedy.
    pub reason: String,
}

/// How many of the last lines of the verifier log are shown.
const LINES: usize = 8;
/// The last line of a complete verifier log begins with this. A log without it was cut: before
/// Linux 6.4 the kernel keeps the first lines of a long log, not the last.
const END: &str = "processed ";

/// Returns a text that explains a refusal. `traced` is the error of a second attempt to load the
/// program, in which the verifier logged every instruction.
pub(super) fn explain(error: &ProgramError, traced: Option<&ProgramError>) -> String {
    let ProgramError::LoadError {
        io_error,
        verifier_log,
    } = error
    else {
        return chain(error);
    };
    let traced = match traced {
        Some(ProgramError::LoadError { verifier_log, .. }) => verifier_log.to_string(),
        _ => String::new(),
    };
    let lines = last_lines(&traced, &verifier_log.to_string());
    let said = if lines.is_empty() {
        String::new()
    } else {
        format!(": {lines}")
    };
    format!(
        "{io_error}{said} (kernel {}); docs/dev/kernels.md names kernels that take it: use one of them, and report these lines",
        running_kernel()
    )
}

/// Returns the last lines of `traced`, joined into one line; those of `brief` if `traced` was cut.
fn last_lines(traced: &str, brief: &str) -> String {
    let log = if traced.contains(END) { traced } else { brief };
    let lines: Vec<_> = log
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines[lines.len().saturating_sub(LINES)..].join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_come_from_a_complete_verifier_log() {
        let brief = "combined stack size of 5 calls is 544. Too large\nprocessed 9 insns\n";
        let traced = format!("{}call pc+9\n{brief}", "0: r0 = 0\n".repeat(20));
        let lines = last_lines(&traced, brief);
        assert!(lines.ends_with(
            "call pc+9 | combined stack size of 5 calls is 544. Too large | processed 9 insns"
        ));
        assert_eq!(lines.matches(" | ").count(), LINES - 1);
        let cut = "0: r0 = 0\n".repeat(20);
        assert!(last_lines(&cut, brief).starts_with("combined"));
    }
}
