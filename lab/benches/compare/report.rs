// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The text of the report: a table in Markdown for each figure. From `Results` alone.

use lab::load::table::{Table, grouped};

use crate::{plan::of_connections, results::Results};

/// Figures that others have published about proxies that cannot run here.
const PUBLISHED: &str = include_str!("published.md");

/// Returns the report. The pictures that it refers to are in its folder.
pub(crate) fn text(results: &Results) -> String {
    let mut text = format!(
        "# The performance lab's report

Written by `cargo xtask lab`, {}: {}. Times of two runs must not be compared with each other; ratios may.

![short connections to the last service](connections.svg)

![a new service](new-service.svg)

\"bare\" is a node without any netfilter rule and with br_netfilter off; \"netfilter\" one as kube-proxy needs it, br_netfilter on
and conntrack active. Direct is always the pod's own address on a like node without a proxy, asked in the same round, the
two in turn first; everything on one processor but \"many clients at once\". A ratio is that of the rates, 1 being as fast
as direct: the median over the rounds and its 95 % bootstrap interval. A round whose direct figure is more than 20 % off the
median is run again. \"0.1 s\" is kube-proxy with a minSyncPeriod of 0.1 s instead of its default of 1 s.

## Connections and packets, beside direct
",
        results.date, results.machine,
    );
    let headings = results.headings().into_iter();
    let (packets, changes): (Vec<_>, Vec<_>) = headings.partition(|one| of_connections(one));
    text.extend(packets.into_iter().map(|heading| table(results, heading)));
    text += "
## From the API to the packets

Every service has two endpoints. The API server is on the same processors; its own work is in these times. A change is over
when a connection is answered by the pod that it names. Where endpoints change all the time, they are those of 100 services, written
into etcd, for 1 000 changes a second ten endpoints at once; meanwhile one more service's endpoint is changed by the API again and again:
how long until packets follow.
";
    text.extend(changes.into_iter().map(|heading| table(results, heading)));
    text + PUBLISHED
}

/// Returns a table with a row for each proxy and a column for each number of services.
fn table(results: &Results, heading: &str) -> String {
    let services = results.services().into_iter().map(grouped);
    let titles = ["node", "proxy"].map(str::to_owned).into_iter();
    let mut table = Table::new(2, titles.chain(services));
    for ((setup, proxy), figures) in results.table(heading) {
        let shown = figures.into_iter();
        let shown = shown.map(|figure| figure.map_or("–", |figure| &figure.shown));
        table.row([setup.name(), proxy.name()].into_iter().chain(shown));
    }
    format!("\n### {heading}\n\n{table}")
}
