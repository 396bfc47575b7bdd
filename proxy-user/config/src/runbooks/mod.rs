// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names the section of docs/runbooks.md that explains what an operator sees. A new counter does
//! not compile without its section. Used by commands that print outcomes.

use proxy_common::Counter;

/// Returns the page about an outcome, as a path in the clone with an anchor; None if it is normal.
pub fn of_outcome(counter: Counter) -> Option<&'static str> {
    Some(match counter {
        Counter::Untouched
        | Counter::ForwardedHit
        | Counter::ForwardedNew
        | Counter::ForwardedElsewhere
        | Counter::ReplyPassed
        | Counter::ReplyUnmasqueraded
        | Counter::ReplyTranslated
        | Counter::Masqueraded
        | Counter::UntouchedFlow
        | Counter::IcmpTranslated
        | Counter::SocketTranslated
        | Counter::SocketUntouched
        | Counter::SocketRestored
        | Counter::FlowEvictedEarly
        | Counter::EchoAnswered
        | Counter::ForwardedMidStream
        | Counter::ForwardedByXdp
        | Counter::ReplyByXdp
        | Counter::PastTheStack
        | Counter::Carried
        | Counter::HeaderTakenOff
        | Counter::TooLarge => return None,
        Counter::IcmpRedirectDropped => "docs/runbooks.md#icmp-redirect",
        Counter::RejectedNoEndpoint | Counter::DroppedNoLocalEndpoint => {
            "docs/runbooks.md#no-endpoint"
        }
        Counter::RejectedUnserved | Counter::DroppedUnallocated => "docs/runbooks.md#unserved-port",
        Counter::RejectedUnknownFlow => "docs/runbooks.md#unknown-flow",
        Counter::RejectedSilently => "docs/runbooks.md#rejections-limited",
        Counter::DroppedSource | Counter::DroppedByMark => "docs/runbooks.md#not-allowed",
        Counter::DroppedFragment => "docs/runbooks.md#fragments",
        Counter::DroppedFlowTableFull => "docs/runbooks.md#flow-table-full",
        Counter::DroppedNoTuple | Counter::DroppedNoMasqueradePort => {
            "docs/runbooks.md#ports-used-up"
        }
        Counter::DroppedInconsistent => "docs/runbooks.md#inconsistent-maps",
        Counter::DroppedRewrite => "docs/runbooks.md#rewrite-failed",
        Counter::DroppedHeader => "docs/runbooks.md#outer-headers",
        Counter::SocketTableFull => "docs/runbooks.md#maps-full",
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// Lists, by `before`, the pages that a file of the clone names.
    fn named(file: &str, before: &str) -> Vec<String> {
        let clone = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let text = fs::read_to_string(clone.join(file)).expect("a file");
        let ends = |c: char| !c.is_ascii_alphanumeric() && !"/.#-".contains(c);
        let rests = text.split(before).skip(1);
        let names = rests.filter_map(|rest| rest.split(ends).next());
        names.map(str::to_owned).collect()
    }

    #[test]
    fn every_alert_warning_and_outcome_that_clients_suffer_from_has_a_section() {
        let anchors = named("docs/runbooks.md", "<a id=\"");
        let alerts = named("deploy/chart/alerts/alerts.yaml", "runbook: ");
        let warnings = named("proxy-user/control/src/warnings.rs", "\"");
        let warnings = warnings.into_iter();
        let warnings = warnings.filter(|page| page.starts_with("docs/"));
        let counters = Counter::ALL.iter();
        let outcomes = counters.filter_map(|counter| of_outcome(*counter));
        let outcomes = outcomes.map(str::to_owned);
        let pages: Vec<_> = outcomes.chain(alerts).chain(warnings).collect();
        assert!(pages.len() > 40, "{pages:?}");
        for page in pages {
            let anchor = page.strip_prefix("docs/runbooks.md#").expect("a section");
            assert!(anchors.iter().any(|found| found == anchor), "{page}");
        }
        for counter in Counter::ALL {
            let suffers = ["dropped", "rejected", "refused", "full"];
            let suffers = suffers.iter().any(|word| counter.name().contains(word));
            assert_eq!(suffers, of_outcome(*counter).is_some(), "{counter:?}");
        }
    }
}
