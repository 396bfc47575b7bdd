// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Losses that a new flow may suffer although `explain` says that it is forwarded: other flows may
//! have used up tables and ports. Takes the outcome and the programs' counters, and returns notes.

use config::runbooks::of_outcome;
use proxy_common::Counter;

use super::report::Pointed;
use crate::check::finding::Finding;

/// Returns the counters of losses that can happen to a flow with this outcome.
const fn possible(outcome: Counter) -> &'static [Counter] {
    match outcome {
        Counter::ForwardedNew => &[
            Counter::DroppedFlowTableFull,
            Counter::DroppedNoTuple,
            Counter::DroppedNoMasqueradePort,
        ],
        Counter::SocketTranslated => &[Counter::SocketTableFull],
        _ => &[],
    }
}

/// Returns a note for each such loss that the programs have counted since the maps were made.
/// `counts`: the counters' values, in the order of `Counter::ALL`.
pub(super) fn notes(outcome: Counter, counts: &[u64]) -> Vec<Pointed> {
    let counted = possible(outcome).iter().filter_map(|loss| {
        let count = *counts.get(*loss as usize)?;
        let page = of_outcome(*loss).filter(|_| count > 0)?;
        let found = format!(
            "{count} met {} since the maps were made, and this one may: `portolan counters {} --watch` shows whether it goes on",
            loss.name(),
            loss.name()
        );
        Some(Pointed::new(Finding::note("other flows", found), page))
    });
    counted.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_counted_losses_that_concern_such_a_flow_are_noted() {
        let mut counts = vec![0; Counter::ALL.len()];
        counts[Counter::DroppedNoTuple as usize] = 3;
        counts[Counter::SocketTableFull as usize] = 1;
        let noted = |outcome| {
            let notes = notes(outcome, &counts).into_iter();
            let texts = notes.map(|note| (note.finding.found, note.page));
            texts.collect::<Vec<_>>()
        };
        let [(found, page)] = &noted(Counter::ForwardedNew)[..] else {
            panic!("one note");
        };
        assert!(found.starts_with("3 met dropped_no_free_tuple since the maps were made"));
        assert_eq!(*page, "docs/runbooks.md#ports-used-up");
        assert_eq!(noted(Counter::SocketTranslated).len(), 1);
        assert_eq!(noted(Counter::ForwardedHit).len(), 0);
    }
}
