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

/// What can be seen of kube-proxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KubeProxy {
    Silent,
    /// It is healthy, and its metrics cannot be read.
    WithoutMetrics,
    /// portolan's agent answers.
    Ours,
    /// It has not written its rules since it began.
    Beginning,
    Serves,
}

impl KubeProxy {
    pub(super) fn ask(args: KubeProxyArgs) -> Self {
        let healthz = agent::get(args.kube_proxy_healthz, "/healthz").ok();
        let metrics = agent::get(args.kube_proxy_metrics, "/metrics").ok();
        let metrics = metrics.filter(|(status, _)| *status == 200);
        let text = metrics.as_ref().map(|(_, text)| text.as_str());
        Self::of(healthz.map(|(status, _)| status), text)
    }

    /// `healthz`: its HTTP status; `metrics`: its text; `None` without an answer.
    fn of(healthz: Option<u16>, metrics: Option<&str>) -> Self {
        let lines = || metrics.into_iter().flat_map(str::lines);
        if lines().any(|line| line.starts_with(OURS)) {
            return Self::Ours;
        }
        if healthz != Some(200) {
            return Self::Silent;
        }
        if metrics.is_none() {
            return Self::WithoutMetrics;
        }
        let last = |line: &str| -> Option<f64> {
            let (_, value) = line.strip_prefix(LAST_SYNC)?.rsplit_once(' ')?;
            value.parse().ok()
        };
        let mut times = lines().filter_map(last).peekable();
        if times.peek().is_some() && times.all(|time| time > 0.0) {
            Self::Serves
        } else {
            Self::Beginning
        }
    }

    pub(super) fn sentence(self, args: KubeProxyArgs) -> String {
        let code = match self {
            Self::Silent => "kube-proxy-silent",
            Self::WithoutMetrics => "kube-proxy-without-metrics",
            Self::Ours => "kube-proxy-is-ours",
            Self::Beginning => "kube-proxy-begins",
            Self::Serves => "kube-proxy-serves",
        };
        let [sentence] = texts(code, &[&args.kube_proxy_healthz, &args.kube_proxy_metrics]);
        sentence
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
            (None, None, KubeProxy::Silent),
            (Some(503), Some(&*v4), KubeProxy::Silent),
            (Some(200), None, KubeProxy::WithoutMetrics),
            (Some(200), Some(&ours), KubeProxy::Ours),
            (Some(200), Some("go_threads 7\n"), KubeProxy::Beginning),
            (Some(200), Some(&both), KubeProxy::Beginning),
            (Some(200), Some(&v4), KubeProxy::Serves),
        ] {
            assert_eq!(KubeProxy::of(healthz, metrics), is, "{metrics:?}");
        }
    }
}
