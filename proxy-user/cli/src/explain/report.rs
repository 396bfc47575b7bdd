// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report of `portolan explain`: as text for people, as JSON and YAML, with its exit status.

use datapath::read::Flow;
use serde::Serialize;

use super::{endpoints::EndpointRow, follow::FollowedRow, words::ServiceRow};
use crate::{
    finding::{Finding, Level},
    frame::port_label,
};

/// What the report says about the answer; the number is the exit status.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Verdict {
    /// The followed packet was answered.
    Answered = 0,
    /// Something differs, or may be in the way.
    Differs = 1,
    NotAnswered = 3,
    /// Portolan's part is in order. What else is on the way was not looked at.
    NotLookedAt = 4,
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
    pub(super) verdict: Verdict,
    /// Whether the client is answered; None if that depends on what was not looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) answered: Option<bool>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) way_back: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) followed: Option<FollowedRow>,
    pub(super) findings: Vec<Finding>,
}

/// The page about portolan's programs that are not attached.
const MISSING_PROGRAM: &str = "docs/explain.md#missing-program";

/// How many endpoints of each kind the text lists.
const SHOWN: usize = 10;

impl Report {
    /// Says beside its endpoint what became of a followed packet.
    pub(super) fn tell(&mut self, followed: &FollowedRow) {
        let at = followed.endpoint.map(|at| at.to_string());
        let mut rows = self.endpoints.iter_mut().filter(|row| row.can_answer);
        if let Some(row) = rows.find(|row| at.as_ref() == Some(&row.address)) {
            row.followed = Some(match followed.answered {
                true => followed.sentence.clone(),
                false => format!("was not answered: {}", followed.sentence),
            });
        }
    }

    /// Sorts the findings, the worst first, and sums them up in one line.
    pub(super) fn conclude(&mut self) {
        if self.followed.as_ref().is_some_and(|row| row.answered) {
            // What was seen is worth more than what was concluded.
            let findings = self.findings.iter_mut();
            findings.for_each(|one| one.level = one.level.min(Level::Differs));
        }
        self.findings
            .sort_by_key(|one| std::cmp::Reverse(one.level));
        if let Some(followed) = &self.followed {
            self.answered = Some(followed.answered);
            (self.verdict, self.summary) = self.of_followed(followed);
            return;
        }
        let text = |one: &Finding| format!("{}: {}", one.about, one.found);
        let worst = self.findings.first();
        (self.verdict, self.summary) = match worst.map(|worst| (worst.level, text(worst))) {
            Some((Level::InTheWay, worst)) => {
                let summary = format!("would not be answered: {worst}");
                (Verdict::NotAnswered, summary)
            }
            Some((Level::Differs, worst)) => {
                let summary = format!("nothing of portolan's stops it, but: {worst}");
                (Verdict::Differs, summary)
            }
            _ => {
                let summary = "portolan's part is in order: `--follow` asks the rest";
                (Verdict::NotLookedAt, summary.to_owned())
            }
        };
        self.answered = (self.verdict == Verdict::NotAnswered).then_some(false);
    }

    /// Returns verdict and summary by the followed packet.
    fn of_followed(&self, followed: &FollowedRow) -> (Verdict, String) {
        let mut findings = self.findings.iter();
        if followed.answered {
            let verdict = match findings.any(|one| one.level != Level::Note) {
                true => Verdict::Differs,
                false => Verdict::Answered,
            };
            return (verdict, followed.sentence.clone());
        }
        // Without one of portolan's programs, what follows loses the packet only because of that.
        let is_missing =
            |one: &&Finding| one.level == Level::InTheWay && one.page == MISSING_PROGRAM;
        let lost = match findings.find(is_missing) {
            Some(one) => format!("{}: {}", one.about, one.found),
            None => followed.sentence.clone(),
        };
        (Verdict::NotAnswered, format!("was not answered: {lost}"))
    }

    pub(super) fn text(&self) -> String {
        let (protocol, hook) = (self.protocol, &self.hook);
        let mut lines = vec![
            format!("{} -> {}/{protocol}, {hook}", self.client, self.destination),
            self.summary.clone(),
            String::new(),
        ];
        let mut line = |label: &str, text: String| lines.push(format!("{label:<11} {text}"));
        if let Some(row) = &self.service {
            let name = port_label(&row.service, &row.port_name);
            line("service", format!("{name}, {} {}", row.kind, row.frontend));
            if !row.policies.is_empty() {
                line("policy", row.policies.join("; "));
            }
        }
        line("outcome", format!("{}: {}", self.outcome, self.meaning));
        if let Some(origin) = &self.origin {
            line("client", origin.clone());
        }
        for (label, can_answer) in [("answers", true), ("left out", false)] {
            let rows = self.endpoints.iter();
            let rows: Vec<_> = rows.filter(|row| row.can_answer == can_answer).collect();
            let (shown, more) = rows.split_at(rows.len().min(SHOWN));
            for same in shown.chunk_by(|one, next| one.reason.remedy == next.reason.remedy) {
                same.iter().for_each(|row| line(label, row.line()));
                let remedy = &same[0].reason.remedy;
                if !remedy.is_empty() {
                    line("", format!("-> {remedy}"));
                }
            }
            if !more.is_empty() {
                line(label, format!("and {} more (-o json has them)", more.len()));
            }
        }
        let flow = self.flow.as_ref().map(|flow| {
            let (to, seconds) = (flow.backend, flow.idle_seconds);
            format!("{}, to {to}, idle for {seconds} s", flow.state)
        });
        for (label, text) in [
            ("affinity", &self.affinity),
            ("source", &self.source),
            ("connection", &flow),
            ("way back", &self.way_back),
        ] {
            if let Some(text) = text {
                line(label, text.clone());
            }
        }
        if let Some(followed) = &self.followed {
            line("followed", followed.packet.clone());
            for station in &followed.stations {
                line(station.packet, format!("{}: {}", station.host, station.did));
            }
            for missing in &followed.missing {
                line("not known", missing.clone());
            }
        }
        lines.extend(self.findings.iter().map(Finding::line));
        lines.join("\n")
    }
}
