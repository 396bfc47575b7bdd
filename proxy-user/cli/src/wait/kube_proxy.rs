// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether kube-proxy serves this node: a process that is not portolan's agent answers at
//! kube-proxy's health port, and says in its metrics that it has written its rules. Rules alone say
//! nothing: they stay when kube-proxy ends.

use std::net::{Ipv4Addr, SocketAddr};

use crate::{agent, finding::texts};

/// KUBE: kube-proxy's metric of the time of its last sync, one for each IP family.
const LAST_SYNC: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds";
/// A metric of portolan's agent, which has kube-proxy's metrics as well.
const OURS: &str = "portolan_services ";

/// Where kube-proxy is asked.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct KubeProxyArgs {
    /// Where kube-proxy serves /healthz, its healthzBindAddress.
    #[arg(long, value_name = "IP:PORT", default_value_t = (Ipv4Addr::LOCALHOST, 10256).into())]
    kube_proxy_healthz: SocketAddr,
    /// Where kube-proxy serves /metrics, its metricsBindAddress.
    #[arg(long, value_name = "IP:PORT", default_value_t = (Ipv4Addr::LOCALHOST, 10249).into())]
    kube_proxy_metrics: SocketAddr,
}

/// The code, in `findings.txt`, of a kube-proxy that has written its rules since it began.
const SERVES: &str = "kube-proxy-serves";

/// Returns whether kube-proxy serves this node, and a sentence about it.
pub(super) fn ask(args: KubeProxyArgs) -> (bool, String) {
    let healthz = agent::get(args.kube_proxy_healthz, "/healthz").ok();
    let metrics = agent::get(args.kube_proxy_metrics, "/metrics").ok();
    let metrics = metrics.filter(|(status, _)| *status == 200);
    let text = metrics.as_ref().map(|(_, text)| text.as_str());
    let code = seen(healthz.map(|(status, _)| status), text);
    let [sentence] = texts(code, &[&args.kube_proxy_healthz, &args.kube_proxy_metrics]);
    (code == SERVES, sentence)
}

/// Returns the code of what is seen of kube-proxy, by the HTTP status of /healthz and its metrics.
fn seen(healthz: Option<u16>, metrics: Option<&str>) -> &'static str {
    let lines = || metrics.into_iter().flat_map(str::lines);
    let last = |line: &str| -> Option<f64> {
        let (_, value) = line.strip_prefix(LAST_SYNC)?.rsplit_once(' ')?;
        value.parse().ok()
    };
    let mut times = lines().filter_map(last).peekable();
    match healthz {
        _ if lines().any(|line| line.starts_with(OURS)) => "kube-proxy-is-ours",
        Some(200) if metrics.is_none() => "kube-proxy-without-metrics",
        Some(200) if times.peek().is_some() && times.all(|time| time > 0.0) => SERVES,
        Some(200) => "kube-proxy-begins",
        _ => "kube-proxy-silent",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kube_proxy_serves_once_it_has_written_its_rules() {
        let synced = |family: &str, time: &str| {
            format!("# TYPE {LAST_SYNC} gauge\n{LAST_SYNC}{{ip_family=\"{family}\"}} {time}\n")
        };
        let (v4, v6) = (synced("IPv4", "1.7e9"), synced("IPv6", "0"));
        let ours = format!("portolan_services 3\n{v4}");
        let both = format!("{v4}{v6}");
        for (healthz, metrics, is) in [
            (None, None, "kube-proxy-silent"),
            (Some(503), Some(&*v4), "kube-proxy-silent"),
            (Some(200), None, "kube-proxy-without-metrics"),
            (Some(200), Some(&ours), "kube-proxy-is-ours"),
            (Some(200), Some("go_threads 7\n"), "kube-proxy-begins"),
            (Some(200), Some(&both), "kube-proxy-begins"),
            (Some(200), Some(&v4), SERVES),
        ] {
            assert_eq!(seen(healthz, metrics), is, "{metrics:?}");
        }
    }
}
