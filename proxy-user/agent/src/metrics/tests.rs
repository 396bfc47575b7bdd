// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the metrics, and of their names against kube-proxy's.

use std::{collections::BTreeSet, fs, time::Duration};

use control::{change::Trigger, model::Kind};
use datapath::{Ended, Occupancy};
use k8s_openapi::jiff::Timestamp;

use super::{
    kube_proxy::ABSENT,
    page::{busy, named},
    *,
};

#[test]
fn metrics_that_kube_proxy_has_too_have_its_names() {
    let (warnings, requests) = (Warnings::default(), Requests::default());
    let ready = ReadyEndpoints::default();
    let metrics = Metrics::new("/nowhere".into(), warnings, &requests, 0, ready);
    metrics.sync.queued(2, 3);
    let text = metrics.text();
    assert!(text.contains("kubeproxy_sync_proxy_rules_endpoint_changes_pending 3"));
    let (time, v6) = (Timestamp::now() - Duration::from_millis(1), true);
    let trigger = Trigger { time, v6 };
    metrics.sync.done(Duration::from_millis(3), &[trigger]);
    metrics.sync.set_services(4, 3, [0, 0, 0, 1]);
    let (flows, sockets) = (4, 0);
    metrics.state.count_ended(Ended { flows, sockets });
    metrics.state.heard_of(Kind::EndpointSlice);
    let mut flows = Occupancy::default();
    flows.v6.entries = 3;
    metrics.state.set_fill(&flows, &[]);
    let text = metrics.text();
    for line in [
        "kubeproxy_sync_proxy_rules_endpoint_changes_pending 0",
        "kubeproxy_sync_proxy_rules_endpoint_changes_total 3",
        "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 1",
        "kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=\"0.004\",ip_family=\"IPv6\"} 1",
        "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv6\"} 1",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy=\"external\",ip_family=\"IPv6\"} 1",
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} 1",
        "portolan_warnings 0",
        "portolan_connections_of_gone_endpoints_ended_total{kind=\"flow\"} 4",
        "portolan_connections_of_gone_endpoints_ended_total{kind=\"socket\"} 0",
        "portolan_services_weighted 3",
        "portolan_watch_last_event_timestamp_seconds{kind=\"EndpointSlice\"} 1",
        "portolan_map_entries{map=\"flow_slots_v6\"} 3",
        "portolan_repairs_total{kind=\"interface\"} 0",
        "# EOF",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

/// True if the name of a metric matches a pattern; `*` at the pattern's end stands for any
/// characters.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => pattern == name,
    }
}

/// Returns the lists of a real kube-proxy's metrics, one for every version and mode. A line of a
/// list has the type, name and labels of a metric.
fn kube_proxys() -> Vec<String> {
    let versions = config::testing::versions().into_iter();
    let files = versions.flat_map(|version| fs::read_dir(version).expect("a folder"));
    let files = files.map(|entry| entry.expect("an entry"));
    let lists = files.filter(|file| file.file_name().to_string_lossy().starts_with("metrics-"));
    let lists = lists.map(|file| fs::read_to_string(file.path()).expect("a list"));
    let lists: Vec<_> = lists.collect();
    assert!(lists.len() > 1, "each version has two");
    lists
}

#[test]
fn every_metric_of_kube_proxy_exists_or_is_listed_as_absent() {
    let ours = named(&busy().text());
    let mut absent = BTreeSet::new();
    let mut common = BTreeSet::new();
    let patterns: Vec<_> = ABSENT.iter().flat_map(|(names, _)| *names).collect();
    for theirs in kube_proxys() {
        for line in theirs.lines() {
            let mut words = line.split(' ');
            let [kind, name] = [(); 2].map(|()| words.next().expect("a word"));
            let labels = words.next().unwrap_or_default().split(',');
            let labels = labels.filter(|label| !label.is_empty()).map(str::to_owned);
            let pattern = patterns.iter().find(|pattern| matches(pattern, name));
            match (ours.get(name), pattern) {
                (Some(own), None) => {
                    assert_eq!(*own, (kind.to_owned(), labels.collect()), "{name}");
                    common.insert(name.to_owned());
                }
                (None, Some(pattern)) => _ = absent.insert(**pattern),
                (Some(_), Some(_)) => panic!("{name} is here and in the table"),
                (None, None) => panic!("{name} is neither here nor in the table"),
            }
        }
    }
    let all: BTreeSet<_> = patterns.into_iter().copied().collect();
    assert_eq!(absent, all, "kube-proxy has no such metric");
    let own = ours.keys().filter(|name| !name.starts_with("portolan_"));
    let own: BTreeSet<_> = own.cloned().collect();
    assert_eq!(common, own, "what has kube-proxy's names is kube-proxy's");
}

#[test]
fn metrics_contain_start_time_and_memory_of_the_process() {
    let text = busy().text();
    let value = |name: &str| -> f64 {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(name));
        let value = lines.next().unwrap_or_else(|| panic!("{name}: {text}"));
        value.trim().parse().expect("a number")
    };
    let now = sync::now();
    let started = value("process_start_time_seconds ");
    assert!(started > now - 3600.0 && started <= now + 1.0, "{started}");
    let resident = value("process_resident_memory_bytes ");
    assert!(resident > 1e6, "{resident}");
    assert!(value("process_virtual_memory_bytes ") > resident);
    assert!(value("process_cpu_seconds_total ") < 3600.0);
    let open = value("process_open_fds ");
    assert!(open > 2.0 && open < value("process_max_fds "), "{open}");
    assert!(value("process_network_receive_bytes_total ") >= 0.0);
}
