// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Renders docs/metrics.md from the registered metrics and the table of kube-proxy's metrics that
//! portolan lacks. A test compares the result with the file.

use std::{fmt::Write, fs};

use proxy_common::Counter;

use super::{
    kube_proxy::ABSENT,
    scrape::{PACKETS, SERVICE_FLOWS},
    tests::named,
};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
const RENEW: &str = "PORTOLAN_UPDATE_DOCS=1 cargo test -p portolan-agent --lib metrics::page";

const ABOUT: &str = "\
# Metrics

Served at `metricsBindAddress` under `/metrics`, in the OpenMetrics text format.
";

const OF_KUBE_PROXY: &str = "\
## kube-proxy's

Names, types and labels are kube-proxy's, so its dashboards and alerts work. kube-proxy syncs each IP family by itself; here one
sync writes both and counts for both values of `ip_family`.
";

const MISSING: &str = "\
## kube-proxy's that are not here

A test compares the names with those of a real kube-proxy (proxy-user/kube-proxy).
";

#[test]
fn docs_metrics_md_is_up_to_date() {
    let page = render().expect("a String takes everything");
    if std::env::var_os("PORTOLAN_UPDATE_DOCS").is_some() {
        fs::write(FILE, page).expect("docs/metrics.md can be written");
        return;
    }
    let file = fs::read_to_string(FILE).unwrap_or_default();
    assert!(
        file == page,
        "docs/metrics.md is out of date; renew it: {RENEW}"
    );
}

fn render() -> Result<String, std::fmt::Error> {
    let text = super::tests::busy().text();
    let mut page = format!(
        "<!-- Rendered from proxy-user/agent/src/metrics. Renew it by\n     {RENEW} -->\n{ABOUT}\n"
    );
    let of_kube_proxy = |name: &str| !name.starts_with("portolan_");
    writeln!(page, "{OF_KUBE_PROXY}")?;
    write_list(&mut page, &text, of_kube_proxy)?;
    writeln!(page, "\n## portolan's own\n")?;
    write_list(&mut page, &text, |name| !of_kube_proxy(name))?;
    let (name, help) = SERVICE_FLOWS;
    writeln!(
        page,
        "- `{name}` (gauge by service): {help}; only with `portolan.perServiceMetrics`."
    )?;
    let (name, help) = PACKETS;
    writeln!(
        page,
        "- `{name}_total` (counter): {help}. Its label `outcome` is one of:"
    )?;
    for counter in Counter::ALL {
        writeln!(page, "  - `{}`: {}", counter.name(), counter.help().trim())?;
    }
    writeln!(page, "\n{MISSING}")?;
    for absent in ABSENT {
        let names: Vec<_> = absent
            .names
            .iter()
            .map(|name| format!("`{name}`"))
            .collect();
        writeln!(page, "- {}: {}", names.join(", "), absent.why)?;
    }
    Ok(page)
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
