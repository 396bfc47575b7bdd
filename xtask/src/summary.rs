// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads test results from the output of test programs, and makes a table of all stages.

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
        let Some(found) = parse_counts(counts) else {
            return;
        };
        self.passed += found.passed;
        self.failed += found.failed;
        self.not_run += found.not_run;
    }
}

/// Parses `3 passed; 0 failed; 1 ignored; 0 measured; ...` or `3 passed, 0 failed`; else None.
fn parse_counts(text: &str) -> Option<Tally> {
    let mut tally = Tally::default();
    let mut parts = text.split([';', ',']).map(str::trim);
    let number = |part: &str, word| part.strip_suffix(word)?.parse::<usize>().ok();
    tally.passed = number(parts.next()?, " passed")?;
    tally.failed = number(parts.next()?, " failed")?;
    tally.not_run = parts.filter_map(|part| number(part, " ignored")).sum();
    Some(tally)
}

/// Returns the failed test in a line `test NAME ... FAILED`, or the text after `FAIL ` of a
/// conformance case; else None.
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
    /// How many agents the tests have started.
    pub(crate) agents: u64,
}

impl Stage {
    /// Returns the stage's counts for the sum; a failed stage has at least one failed test.
    pub(crate) fn counted(&self) -> Tally {
        let mut tally = self.tally;
        if self.failure.is_some() && tally.failed == 0 {
            tally.failed = 1;
        }
        tally
    }

    /// Adds the second run, `again`, of the failed tests alone. Tests that pass in it move from
    /// `failures` to `unsteady`. If not every failed test has run again, only the time is added.
    pub(crate) fn after(mut self, again: Stage) -> Stage {
        self.time += again.time;
        self.agents += again.agents;
        if again.tally.passed + again.tally.failed < self.failures.len() {
            // Not all failed tests have run again.
            return self;
        }
        let fails_again = |failure: &String| {
            let mut others = again.failures.iter();
            others.any(|other| first_word(other) == first_word(failure))
        };
        let failures = mem::take(&mut self.failures).into_iter();
        (self.failures, self.unsteady) = failures.partition(fails_again);
        self.tally.passed += self.unsteady.len();
        self.tally.failed -= self.unsteady.len();
        self.failure = again.failure;
        self
    }
}

/// Returns the name of a failed test or case; the text may contain more after it.
fn first_word(failure: &str) -> &str {
    failure.split(' ').next().unwrap_or_default()
}

/// Returns the table with a row for each stage, and the sum as its last row.
pub(crate) fn summary(stages: &[Stage]) -> String {
    let names = stages.iter().map(|stage| stage.name.as_str());
    let width = names.chain(["stage"]).map(str::len).max().unwrap_or(0);
    let stage = "stage";
    let mut text = format!("{stage:width$}  result  passed  failed  not run  agents     time\n");
    let mut sum = Tally::default();
    for stage in stages {
        let Tally {
            passed,
            failed,
            not_run,
        } = stage.counted();
        sum.passed += passed;
        sum.failed += failed;
        let result = if failed == 0 { "ok" } else { "FAILED" };
        let (name, seconds) = (&stage.name, stage.time.as_secs_f64());
        let agents = stage.agents;
        text += &format!("{name:width$}  {result:6}  {passed:6}  {failed:6}  {not_run:7}  ");
        text += &format!("{agents:6}  {seconds:5.1} s\n");
    }
    text += &slowest(stages);
    for stage in stages {
        let name = &stage.name;
        for test in &stage.unsteady {
            text += &format!("{name}: {test} failed, and passed when it was run again\n");
        }
        for failure in stage.failures.iter().chain(&stage.failure) {
            text += &format!("{name}: {failure}\n");
        }
    }
    text + &format!("{} passed, {} failed", sum.passed, sum.failed)
}

/// How many of the slowest tests are named.
const SLOWEST: usize = 10;

/// Returns a line for each of the tests that took longest.
fn slowest(stages: &[Stage]) -> String {
    let named = |stage: &Stage| {
        let one = |(test, seconds): &Timed| (*seconds, format!("{}: {test}", stage.name));
        stage.tests.iter().map(one).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = stages.iter().flat_map(named).collect();
    all.sort_by(|one, other| other.0.total_cmp(&one.0));
    let lines = all.iter().take(SLOWEST);
    lines
        .map(|(seconds, name)| format!("{seconds:7.1} s  {name}\n"))
        .collect()
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

    #[rstest]
    #[case::several_test_programs_add_up(
        "test a ... ok\n\
         test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
         test result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured; 5 filtered out; finished in 1.20s\n",
        tally(5, 4, 1)
    )]
    #[case::the_conformance_runners_last_line(
        "ok   dns [bridge, all]  5 flows\n59 passed, 1 failed\n",
        tally(59, 1, 0)
    )]
    #[case::what_only_resembles_results(
        "3 passed\ncase x: 3 passed, 0 failed\nall passed, none failed\n\n",
        tally(0, 0, 0)
    )]
    fn results_are_read(#[case] text: &str, #[case] expected: Tally) {
        let mut read = Tally::default();
        text.lines().for_each(|line| read.read(line));
        assert_eq!(read, expected);
    }

    #[test]
    fn failed_tests_and_cases_are_read_with_their_names() {
        for (line, failed) in [
            ("test a::b ... FAILED\n", Some("a::b")),
            ("test a::b ... FAILED <1.203s>\n", Some("a::b")),
            ("test a::b ... ok <1.203s>", None),
            ("FAIL web [routed] step 1\n", Some("web [routed] step 1")),
            ("test a::b ... ok", None),
            ("FAILED", None),
        ] {
            assert_eq!(failed_test(line).as_deref(), failed);
        }
    }

    #[test]
    fn the_slowest_tests_of_all_stages_are_named() {
        let line = |number: u32| format!("test a::{number} ... ok <{number}.250s>\n");
        let mut node = stage("node", tally(11, 0, 0), None);
        node.tests
            .extend((1..12).filter_map(|number| timed_test(&line(number))));
        let text = summary(&[node]);
        assert!(text.contains("   11.2 s  node: a::11\n"), "{text}");
        assert!(!text.contains("node: a::1\n"), "the eleventh");
        assert_eq!(timed_test("test a::b ... ok"), None);
    }

    #[test]
    fn the_summary_ends_with_totals_and_a_stage_that_did_not_build_is_a_failure() {
        let text = summary(&[
            stage("unit", tally(10, 0, 0), None),
            stage("packet", tally(5, 2, 1), None),
            stage("maps", tally(0, 0, 0), Some("exit status: 101")),
        ]);
        assert_eq!(text.lines().last(), Some("15 passed, 3 failed"));
        assert!(!text.ends_with('\n'));
        assert!(text.contains("maps: exit status: 101"), "{text}");
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
        failed(&["a", "b"], 9), failed(&["b"], 1), "10 passed, 1 failed", "node: b\n"
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
