// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Renders docs/metrics.md from the registered metrics and the table of kube-proxy's metrics that
//! portolan lacks. Called by proxy-user's program that writes pages.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    time::{Duration, Instant},
};

use control::{change::Trigger, model::Kind, syncer::ReadyEndpoints, warnings::Warnings};
use datapath::Occupancy;
use k8s_openapi::jiff::Timestamp;
use proxy_common::Counter;
use source::api_server::Requests;

use super::{
    Metrics,
    kube_proxy::ABSENT,
    scrape::PACKETS,
    services::{BYTES, CONNECTIONS, READY, REFUSED},
};

const ABOUT: &str = "\
<!-- Written by portolan-pages from proxy-user/agent/src/metrics -->
# Metrics

Served at `metricsBindAddress` under `/metrics`, in the OpenMetrics text format.
";

const OF_KUBE_PROXY: &str = "\
## kube-proxy's

Names, types and labels are kube-proxy's, so its dashboards and alerts work on once their `job` is portolan's; switch off an alert that fires when kube-proxy is
absent. So are those of `process_*`, about the agent's process. One sync writes both IP families, and counts for both values of `ip_family`.
";

const MISSING: &str = "\
## kube-proxy's that are not here
";

/// Returns the page.
pub fn render() -> String {
    let mut page = String::new();
    // Writing to a string does not fail.
    _ = write(&mut page);
    page
}

fn write(page: &mut String) -> std::fmt::Result {
    let text = busy().text();
    writeln!(page, "{ABOUT}")?;
    let is_own = |name: &str| name.starts_with("portolan_");
    writeln!(page, "{OF_KUBE_PROXY}")?;
    write_list(page, &text, |name| {
        !is_own(name) && !name.starts_with("process_")
    })?;
    writeln!(page, "\n## portolan's own\n")?;
    write_list(page, &text, is_own)?;
    for (suffix, kind, (name, labels, help)) in [
        ("_total", "counter", CONNECTIONS),
        ("_total", "counter", BYTES),
        ("_total", "counter", REFUSED),
        ("", "gauge", READY),
    ] {
        writeln!(page, "- `{name}{suffix}` ({kind} by {labels}): {help}.")?;
    }
    let (name, help) = PACKETS;
    writeln!(
        page,
        "- `{name}_total` (counter): {help}. Its label `outcome` is one of:"
    )?;
    for counter in Counter::ALL {
        writeln!(page, "  - `{}`: {}", counter.name(), counter.help().trim())?;
    }
    writeln!(page, "\n{MISSING}")?;
    for (names, why) in ABSENT {
        let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
        writeln!(page, "- {}: {why}", names.join(", "))?;
    }
    Ok(())
}

/// Writes a list of the metrics in `text` (a page of `/metrics`) whose names `fits` selects, with
/// their help texts.
fn write_list(page: &mut String, text: &str, fits: impl Fn(&str) -> bool) -> std::fmt::Result {
    for (name, (kind, labels)) in named(text).into_iter().filter(|(name, _)| fits(name)) {
        // In OpenMetrics, the HELP line of a counter has the name without the suffix `_total`.
        let described = match kind.as_str() {
            "counter" => name.trim_end_matches("_total"),
            "info" => name.trim_end_matches("_info"),
            _ => &name,
        };
        let begin = format!("# HELP {described} ");
        let help = text.lines().find_map(|line| line.strip_prefix(&begin));
        let help = help.unwrap_or_default().trim_end_matches('.');
        let labels: Vec<_> = labels.into_iter().collect();
        let labels = match labels.join(", ") {
            none if none.is_empty() => none,
            names => format!(" by {names}"),
        };
        writeln!(page, "- `{name}` ({kind}{labels}): {help}.")?;
    }
    Ok(())
}

/// Returns the type and labels of the metrics in `text`, a page of `/metrics`. Key: the metric's
/// name.
pub(super) fn named(text: &str) -> BTreeMap<String, (String, BTreeSet<String>)> {
    let mut all = BTreeMap::new();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    for (name, kind) in types.filter_map(|line| line.split_once(' ')) {
        // In OpenMetrics, the TYPE line of a counter has the name without the suffix `_total`.
        let name = match kind {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name.to_owned(),
        };
        let mut labels = BTreeSet::new();
        for line in text.lines() {
            let Some(rest) = line.strip_prefix(&name) else {
                continue;
            };
            let (suffix, pairs) = rest.split_once('{').unwrap_or((rest, ""));
            if ["", "_bucket", "_sum", "_count"].contains(&suffix) {
                let pairs = pairs.split('}').next().unwrap_or_default().split(',');
                let names = pairs.filter_map(|pair| Some(pair.split_once('=')?.0.to_owned()));
                labels.extend(names.filter(|label| label != "le"));
            }
        }
        all.insert(name, (kind.to_owned(), labels));
    }
    all
}

/// Returns metrics in which every metric has at least one value.
pub(super) fn busy() -> Metrics {
    let requests = Requests::default();
    requests.note("192.0.2.1:6443", "GET", Some(200), Some(Instant::now()));
    requests.received(Kind::Service);
    requests.silent(Kind::Service);
    let (warnings, ready) = (Warnings::default(), ReadyEndpoints::default());
    let metrics = Metrics::new("/nowhere".into(), warnings, &requests, 1, ready);
    let time = Timestamp::now();
    metrics.sync.queued(1, 1);
    let triggers = [Trigger { time, v6: false }];
    metrics.sync.done(Duration::ZERO, &triggers);
    metrics.sync.set_services(1, 1, [1; 4]);
    metrics.sync.turned("changes", Duration::ZERO);
    for answers in [&metrics.health.healthz, &metrics.health.livez] {
        answers.get_or_create(&[("code", 200)]).inc();
    }
    metrics.state.heard_of(Kind::Service);
    metrics.state.set_fill(&Occupancy::default(), &[]);
    metrics
}
