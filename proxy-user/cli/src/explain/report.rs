// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report of `portolan explain`: as text for people, as JSON and YAML for scripts, with its
//! exit status.

use anyhow::Result;
use datapath::read::{Flow, Share};
use serde::Serialize;

use crate::{
    Output,
    backends::percent,
    check::finding::{Finding, Level, code_of},
    terminal::print_report,
};

/// A finding with the documentation page that explains it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Pointed {
    #[serde(flatten)]
    pub(super) finding: Finding,
    pub(super) page: &'static str,
}

impl Pointed {
    pub(super) fn new(finding: Finding, page: &'static str) -> Self {
        Self { finding, page }
    }
}

/// The frontend that the packet's destination matches, with its service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ServiceRow {
    /// The service's namespace and name.
    pub(super) service: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) port_name: String,
    pub(super) kind: &'static str,
    /// The frontend's address and port; the address is `*` for a node port, the port is `*` for the
    /// ports that a cluster IP does not serve.
    pub(super) frontend: String,
    pub(super) policies: Vec<String>,
    pub(super) service_id: u32,
}

/// An endpoint of the service port, as the report lists it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EndpointRow {
    pub(super) address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pod: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<String>,
    pub(super) can_answer: bool,
    /// The endpoint's share of new connections by this policy; `None` if it cannot answer, or if
    /// all that can have about the same share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) share: Option<Share>,
    /// Why the endpoint cannot answer; empty if it can.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) because: String,
}

/// The result of one program in the dry run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StepRow {
    pub(super) hook: &'static str,
    pub(super) interface: String,
    /// The name of the counter that the program would have incremented.
    pub(super) outcome: &'static str,
    pub(super) packet: String,
    /// The packet as the program left it; None if the program did not change it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) becomes: Option<String>,
}

/// The results of the kernel's own programs on the packet: the dry run.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DryRunRow {
    pub(super) steps: Vec<StepRow>,
    /// Why there is no dry run; None if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) left_out: Option<String>,
    pub(super) milliseconds: u128,
}

/// The complete report of `portolan explain`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) client: String,
    pub(super) destination: String,
    pub(super) protocol: &'static str,
    /// Where the programs see the client's packet or connection first, as text.
    pub(super) hook: String,
    pub(super) answered: bool,
    pub(super) summary: String,
    /// The name of the counter for the decision; `meaning` explains it.
    pub(super) outcome: &'static str,
    pub(super) meaning: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) service: Option<ServiceRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) origin: Option<String>,
    pub(super) endpoints: Vec<EndpointRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) affinity: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) flow: Option<Flow>,
    /// Whether the client's packets take the node's stack, and why; None if all of them do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) path: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) way_back: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dry_run: Option<DryRunRow>,
    pub(super) findings: Vec<Pointed>,
}

/// How many endpoints of each kind the text lists.
const SHOWN: usize = 10;

impl Report {
    /// Returns the exit status. 0: the client would be answered, 1: something differs, 3: it would
    /// not be answered.
    pub(super) fn code(&self) -> u8 {
        code_of(self.findings.iter().map(|one| one.finding.level))
    }

    /// Sorts the findings, the worst first, and sums them up in one line.
    pub(super) fn conclude(&mut self) {
        self.findings
            .sort_by_key(|one| std::cmp::Reverse(one.finding.level));
        let first = self.findings.first().map(|one| &one.finding);
        self.answered = self.code() < 3;
        self.summary = match first {
            Some(worst) if worst.level == Level::InTheWay => {
                format!("would not be answered: {}: {}", worst.about, worst.found)
            }
            Some(worst) if worst.level == Level::Differs => {
                format!("nothing stops it, but: {}: {}", worst.about, worst.found)
            }
            _ => "would be answered".to_owned(),
        };
    }

    pub(super) fn print(&self, output: Output) -> Result<()> {
        print_report(output, self, || self.text())
    }

    pub(super) fn text(&self) -> String {
        let mut lines = vec![
            format!(
                "{} -> {}/{}, {}",
                self.client, self.destination, self.protocol, self.hook
            ),
            self.summary.clone(),
            String::new(),
        ];
        let mut line = |label: &str, text: String| lines.push(format!("{label:<11} {text}"));
        if let Some(row) = &self.service {
            let port = match row.port_name.as_str() {
                "" => String::new(),
                name => format!(":{name}"),
            };
            line(
                "service",
                format!("{}{port}, {} {}", row.service, row.kind, row.frontend),
            );
            if !row.policies.is_empty() {
                line("policy", row.policies.join("; "));
            }
        }
        line("outcome", format!("{}: {}", self.outcome, self.meaning));
        if let Some(origin) = &self.origin {
            line("client", origin.clone());
        }
        for (label, can_answer) in [("answers", true), ("left out", false)] {
            let rows: Vec<_> = self
                .endpoints
                .iter()
                .filter(|row| row.can_answer == can_answer)
                .collect();
            for row in rows.iter().take(SHOWN) {
                line(label, row.line());
            }
            if rows.len() > SHOWN {
                line(
                    label,
                    format!("and {} more (-o json has them)", rows.len() - SHOWN),
                );
            }
        }
        let flow = self.flow.as_ref().map(|flow| {
            format!(
                "{}, to {}, idle for {} s",
                flow.state, flow.backend, flow.idle_seconds
            )
        });
        let path = self.path.map(str::to_owned);
        for (label, text) in [
            ("affinity", &self.affinity),
            ("source", &self.source),
            ("connection", &flow),
            ("path", &path),
            ("way back", &self.way_back),
        ] {
            if let Some(text) = text {
                line(label, text.clone());
            }
        }
        if let Some(run) = &self.dry_run {
            for step in &run.steps {
                line("dry run", step.line());
            }
            if let Some(left_out) = &run.left_out {
                line("dry run", left_out.clone());
            }
        }
        for one in &self.findings {
            lines.push(one.finding.line());
            if one.finding.level != Level::Note {
                lines.push(format!("{:<11} -> see {}", "", one.page));
            }
        }
        lines.join("\n")
    }
}

impl EndpointRow {
    fn line(&self) -> String {
        let mut line = self.address.clone();
        if let Some(pod) = &self.pod {
            line += &format!(" (pod {pod})");
        }
        if let Some(share) = self.share {
            line += &format!(", {} of new connections", percent(share));
        }
        if !self.because.is_empty() {
            line += &format!(": {}", self.because);
        }
        line
    }
}

impl StepRow {
    fn line(&self) -> String {
        let Self {
            hook,
            interface,
            outcome,
            packet,
            becomes,
        } = self;
        let mut line = format!("{hook} of {interface}: {outcome}: {packet}");
        if let Some(becomes) = becomes {
            line += &format!(" becomes {becomes}");
        }
        line
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
