// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the output of test programs, and makes a table of all stages, and docs/dev/results.md.

use std::{mem, time::Duration};

/// How many tests passed, failed, or were not run.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// Ignored tests; they never count as passed.
    pub(crate) not_run: usize,
}

impl Tally {
    /// Adds the counts in a line of a test program's output, if it has any: `test result: ...` of
    /// Rust's test harness, or `N passed, N failed`, the last line of the conformance tests.
    pub(crate) fn read(&mut self, line: &str) {
        let counts = line.trim();
        let counts = match counts.strip_prefix("test result: ") {
            Some(rest) => rest.split_once(". ").map_or("", |(_, counts)| counts),
            None => counts,
        };
        if let Some(found) = parse_counts(counts) {
            self.passed += found.passed;
            self.failed += found.failed;
            self.not_run += found.not_run;
        }
    }
}

/// Parses `3 passed; 0 failed; 1 ignored; 0 measured; ...` or `3 passed, 0 failed`; else None.
fn parse_counts(text: &str) -> Option<Tally> {
    let mut parts = text.split([';', ',']).map(str::trim);
    let number = |part: &str, word| part.strip_suffix(word)?.parse::<usize>().ok();
    Some(Tally {
        passed: number(parts.next()?, " passed")?,
        failed: number(parts.next()?, " failed")?,
        not_run: parts.filter_map(|part| number(part, " ignored")).sum(),
    })
}

/// Returns the failed test in a line `test NAME ... FAILED`, or a case's text after `FAIL `.
pub(crate) fn failed_test(line: &str) -> Option<String> {
    let line = line.trim_end();
    let test = parse_test(line).and_then(|(name, result, _)| (result == "FAILED").then_some(name));
    test.or_else(|| line.strip_prefix("FAIL "))
        .map(str::to_owned)
}

/// A test's name, and how long it took in seconds.
pub(crate) type Timed = (String, f64);

/// Returns the test in a line `test NAME ... RESULT <TIME s>`; None if a line has no time.
pub(crate) fn timed_test(line: &str) -> Option<Timed> {
    let (name, _, seconds) = parse_test(line.trim_end())?;
    Some((name.to_owned(), seconds?))
}

/// Parses `test NAME ... RESULT`, which a time in seconds may follow: `<0.123s>`.
fn parse_test(line: &str) -> Option<(&str, &str, Option<f64>)> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let (result, time) = result.split_once(" <").unwrap_or((result, ""));
    let seconds = time.strip_suffix("s>").and_then(|time| time.parse().ok());
    Some((name, result, seconds))
}

/// What a stage may use.
#[derive(Clone, Copy, Default)]
pub(crate) struct Budget {
    pub(crate) seconds: u64,
    /// How many agents its tests may start.
    pub(crate) agents: u64,
}

/// The results of one stage: a row of the summary.
#[derive(Default)]
pub(crate) struct Stage {
    pub(crate) name: String,
    pub(crate) tally: Tally,
    /// The tests and conformance cases that failed, as the test program prints them.
    pub(crate) failures: Vec<String>,
    /// The tests and conformance cases that failed first, and passed when they were run again.
    pub(crate) unsteady: Vec<String>,
    /// Why the stage as such failed (e.g. it did not build); None if it did not.
    pub(crate) failure: Option<String>,
    pub(crate) time: Duration,
    /// Each test of Rust's harness.
    pub(crate) tests: Vec<Timed>,
    /// How many agents the tests have started, without those of a second run.
    pub(crate) agents: u64,
    pub(crate) budget: Budget,
}

impl Stage {
    /// Sets the budget. A stage that started more agents fails; one that took longer does not,
    /// because machines differ threefold.
    pub(crate) fn judge(&mut self, budget: Budget) {
        self.budget = budget;
        let (used, allowed) = (self.agents, budget.agents);
        if used > allowed {
            self.tally.failed += 1;
            let text = format!("{used} agents were started, and Cargo.toml allows {allowed}");
            self.failures.push(text);
        }
    }

    /// Returns the stage's counts for the sum; a failed stage has at least one failed test.
    fn counted(&self) -> Tally {
        let mut tally = self.tally;
        if self.failure.is_some() && tally.failed == 0 {
            tally.failed = 1;
        }
        tally
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.counted().failed > 0
    }

    /// Adds the second run, `again`, of the failed tests alone. Tests that pass in it move from
    /// `failures` to `unsteady`. If not every failed test has run again, only the time is added.
    pub(crate) fn after(mut self, again: Stage) -> Stage {
        self.time += again.time;
        if again.tally.passed + again.tally.failed < self.failures.len() {
            return self;
        }
        let first_word = |failure: &str| failure.split(' ').next().map(str::to_owned);
        let fails_again = |failure: &String| {
            let mut others = again.failures.iter();
            others.any(|other| first_word(other) == first_word(failure))
        };
        let failures = mem::take(&mut self.failures).into_iter();
        (self.failures, self.unsteady) = failures.partition(fails_again);
        self.tally.passed += self.unsteady.len();
        self.tally.failed = self.tally.failed.saturating_sub(self.unsteady.len());
        self.failure = again.failure;
        self
    }
}

/// Returns the results as Markdown: a table with a row for each stage, the slowest tests, what is
/// to be looked at, and the sum as the last line.
pub(crate) fn summary(stages: &[Stage]) -> String {
    let head = "stage,passed,failed,not run,minutes,seconds,agents,what failed".split(',');
    let mut rows: Vec<Vec<_>> = vec![head.map(str::to_owned).collect()];
    rows.push(vec!["---".to_owned(); rows[0].len()]);
    let (mut sum, mut rest) = (Tally::default(), String::new());
    for stage in stages {
        let Tally {
            passed,
            failed,
            not_run,
        } = stage.counted();
        sum.passed += passed;
        sum.failed += failed;
        let (name, Budget { seconds, agents }) = (&stage.name, stage.budget);
        let failures = stage.failures.iter().chain(&stage.failure).cloned();
        let failures: Vec<_> = failures.collect();
        rows.push(vec![
            name.clone(),
            passed.to_string(),
            failed.to_string(),
            not_run.to_string(),
            format!("{:.1}", stage.time.as_secs_f64() / 60.0),
            format!("{}/{seconds}", stage.time.as_secs()),
            format!("{}/{agents}", stage.agents),
            // A bar or a new line would end the cell.
            failures.join("; ").replace(['|', '\n'], " "),
        ]);
        if stage.time.as_secs() > seconds {
            rest += &format!("- {name}: warning: it took longer than its budget of seconds\n");
        }
        for test in &stage.unsteady {
            rest += &format!("- {name}: {test} failed, and passed when it was run again\n");
        }
    }
    let mut text = String::new();
    for row in &rows {
        for (column, cell) in row.iter().enumerate().take(7) {
            let width = rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
            text += &format!("| {cell:width$} ");
        }
        text += &format!("| {} |\n", row[7]);
    }
    let Tally { passed, failed, .. } = sum;
    let slowest = slowest(stages);
    format!("{text}\n{slowest}{rest}\n{passed} passed, {failed} failed")
}

/// Returns a line for each of the ten tests that took longest.
fn slowest(stages: &[Stage]) -> String {
    let named = |stage: &Stage| {
        let one = |(test, seconds): &Timed| (*seconds, format!("{}: {test}", stage.name));
        stage.tests.iter().map(one).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = stages.iter().flat_map(named).collect();
    all.sort_by(|one, other| other.0.total_cmp(&one.0));
    let line = |(seconds, name): &(f64, String)| format!("- {seconds:.1} s: {name}\n");
    all.iter().take(10).map(line).collect()
}

/// Returns the page docs/dev/results.md. `facts`: lines about commit, date and machine.
pub(crate) fn page(facts: &str, stages: &[Stage]) -> String {
    let about = "Written by `cargo xtask test all` at its end, also if a test fails. Seconds and agents started have a budget.";
    let summary = summary(stages);
    format!("# Results of all tests\n\n{about}\n\n{facts}\n{summary}\n")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn tally(passed: usize, failed: usize, not_run: usize) -> Tally {
        Tally {
            passed,
            failed,
            not_run,
        }
    }

    fn stage(name: &str, tally: Tally, failure: Option<&str>) -> Stage {
        Stage {
            name: name.to_owned(),
            tally,
            failure: failure.map(str::to_owned),
            time: Duration::from_millis(1500),
            ..Stage::default()
        }
    }

    #[test]
    fn results_are_read() {
        const HARNESS: &str = "test a ... ok\n\
            test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            test result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured; 5 filtered out; finished in 1.20s\n";
        const RESEMBLING: &str =
            "3 passed\ncase x: 3 passed, 0 failed\nall passed, none failed\n\n";
        let conformance = "ok   dns [bridge, all]  5 flows\n59 passed, 1 failed\n";
        for (text, expected) in [
            (HARNESS, tally(5, 4, 1)),
            (conformance, tally(59, 1, 0)),
            (RESEMBLING, tally(0, 0, 0)),
        ] {
            let mut read = Tally::default();
            text.lines().for_each(|line| read.read(line));
            assert_eq!(read, expected, "{text}");
        }
    }

    #[test]
    fn tests_and_cases_are_read_with_their_names_and_times() {
        for (line, failed, time) in [
            ("test a::b ... FAILED\n", Some("a::b"), None),
            ("test a::b ... FAILED <1.203s>\n", Some("a::b"), Some(1.203)),
            ("test a::b ... ok <1.203s>", None, Some(1.203)),
            (
                "FAIL web [routed] step 1\n",
                Some("web [routed] step 1"),
                None,
            ),
            ("test a::b ... ok", None, None),
            ("FAILED", None, None),
        ] {
            assert_eq!(failed_test(line).as_deref(), failed);
            assert_eq!(timed_test(line), time.map(|time| ("a::b".to_owned(), time)));
        }
    }

    #[test]
    fn the_page_has_facts_a_table_the_slowest_tests_and_totals_and_fails_too_many_agents() {
        let mut node = stage("node", tally(131, 1, 4), Some("exit status: 101"));
        node.failures.push("a::b | c".to_owned());
        node.unsteady.push("a::d".to_owned());
        node.tests
            .extend((1..12_u8).map(|number| (format!("a::{number}"), number.into())));
        (node.time, node.agents) = (Duration::from_secs(90), 6);
        node.judge(Budget {
            seconds: 60,
            agents: 5,
        });
        let mut unit = stage("unit", tally(0, 0, 0), Some("no build"));
        unit.judge(Budget {
            seconds: 9,
            agents: 0,
        });
        let page = page("- commit abc\n", &[unit, node]);
        let (_, text) = page.split_once("\n- commit abc\n\n").expect("the facts");
        let rows = text.lines().map(|line| line.replace(' ', ""));
        let rows: Vec<_> = rows.take(4).collect();
        let wanted = [
            "|stage|passed|failed|notrun|minutes|seconds|agents|whatfailed|",
            "|---|---|---|---|---|---|---|---|",
            "|unit|0|1|0|0.0|1/9|0/0|nobuild|",
            "|node|131|2|4|1.5|90/60|6/5|a::bc;6agentswerestarted,andCargo.tomlallows5;exitstatus:101|",
        ];
        assert_eq!(rows, wanted);
        for line in [
            "- 11.0 s: node: a::11",
            "- node: warning: it took longer than its budget of seconds",
            "- node: a::d failed, and passed when it was run again",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains("node: a::1\n"), "the eleventh: {text}");
        assert!(text.ends_with("\n131 passed, 3 failed\n"), "{text}");
    }

    fn failed(names: &[&str], passed: usize) -> Stage {
        let tally = tally(passed, names.len(), 0);
        let failure = (!names.is_empty()).then_some("exit status: 101");
        Stage {
            failures: names.iter().map(|name| (*name).to_owned()).collect(),
            ..stage("node", tally, failure)
        }
    }

    #[rstest]
    #[case::a_test_that_passes_when_it_is_run_again_is_named_and_no_failure(
        failed(&["a::b"], 9), failed(&[], 1), "10 passed, 0 failed", "node: a::b failed, and passed"
    )]
    #[case::a_case_that_fails_again_for_another_reason_is_a_failure(
        failed(&["web [routed] step 1"], 3), failed(&["web [routed] step 2"], 0), "3 passed, 1 failed", ""
    )]
    #[case::a_test_that_fails_again_is_a_failure(
        failed(&["a", "b"], 9), failed(&["b"], 1), "10 passed, 1 failed", "| b; exit status"
    )]
    #[case::tests_that_were_not_run_again_stay_failures(
        failed(&["a", "b"], 9), failed(&[], 1), "9 passed, 2 failed", ""
    )]
    fn failed_tests_are_run_again(
        #[case] first: Stage,
        #[case] again: Stage,
        #[case] sum: &str,
        #[case] named: &str,
    ) {
        let text = summary(&[first.after(again)]);
        assert_eq!(text.lines().last(), Some(sum));
        assert!(text.contains(named), "{text}");
    }
}
