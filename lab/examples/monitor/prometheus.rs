// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A Prometheus on the node that scrapes the agent each second, and queries to it.

use std::{
    fs::{self, File},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail, ensure};
use lab::node::{http, netns::NetNs, options::METRICS, process::end_with_us};
use nix::sys::signal::Signal;
use serde_json::Value;

const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);
const PATIENCE: Duration = Duration::from_secs(120);

/// A recorded series. Each point is the time in seconds from now (0 or negative) and the value.
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

pub(crate) struct Prometheus<'a> {
    node: &'a NetNs,
    child: Child,
}

impl<'a> Prometheus<'a> {
    /// Starts Prometheus on a node. `rules` is the file of alerting rules. Prometheus's data and
    /// log are written to `folder`.
    pub(crate) fn start(
        node: &'a NetNs,
        program: &Path,
        rules: &Path,
        folder: &Path,
    ) -> Result<Self> {
        let config = serde_json::json!({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [rules],
            "scrape_configs": [{"job_name": "portolan", "static_configs": [
                {"targets": [METRICS.to_string()], "labels": {"instance": "node-a"}},
            ]}],
        });
        let file = folder.join("prometheus.yaml");
        fs::write(&file, config.to_string()).context("write Prometheus's configuration")?;
        let log = File::create(folder.join("prometheus.log")).context("write its log")?;
        let mut command = Command::new(program);
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.join("data").display()
            ))
            .arg(format!("--web.listen-address={ADDRESS}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("its log")?)
            .stderr(log);
        end_with_us(&mut command, Signal::SIGKILL);
        let child = node
            .enter(|| command.spawn())?
            .context("start Prometheus")?;
        let prometheus = Self { node, child };
        let log = || fs::read_to_string(folder.join("prometheus.log")).unwrap_or_default();
        prometheus
            .wait("it answers", || {
                prometheus.ask("query", "query", "1").map(|_| true)
            })
            .with_context(log)?;
        Ok(prometheus)
    }

    /// Evaluates an expression. Returns its selectors; fails if one of them selects no series.
    pub(crate) fn run(&self, expression: &str) -> Result<Vec<String>> {
        self.ask("query", "query", expression)?;
        let tree = self.ask("parse_query", "query", expression)?;
        let mut selectors = Vec::new();
        collect(&tree, &mut selectors);
        ensure!(!selectors.is_empty(), "it asks for no series");
        for selector in &selectors {
            let found = self.ask("query", "query", selector)?;
            let found = found["result"].as_array().map_or(0, Vec::len);
            ensure!(found > 0, "there is no series {selector}");
        }
        Ok(selectors)
    }

    /// Returns the series of an expression over the last `seconds`. Each series' name is `legend`
    /// with the values of its labels put in.
    pub(crate) fn record(
        &self,
        expression: &str,
        legend: &str,
        seconds: u64,
    ) -> Result<Vec<Series>> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let range = format!(
            "{}&start={}&end={now}&step=2",
            encoded(expression),
            now - seconds
        );
        let answer = self.get(&format!("query_range?query={range}"))?;
        let mut all = Vec::new();
        for result in answer["result"].as_array().into_iter().flatten() {
            let mut name = legend.to_owned();
            for (label, value) in result["metric"].as_object().into_iter().flatten() {
                let value = value.as_str().unwrap_or_default();
                name = name.replace(&format!("{{{{{label}}}}}"), value);
            }
            let points = result["values"].as_array().into_iter().flatten();
            let points = points.filter_map(|point| {
                let value: f64 = point[1].as_str()?.parse().ok()?;
                // Skips NaN, the value of a quantile without samples.
                let time = point[0].as_f64()? - now as f64;
                value.is_finite().then_some((time, value))
            });
            all.push(Series {
                name,
                points: points.collect(),
            });
        }
        Ok(all)
    }

    /// Waits until the agent was scraped `times` more times.
    pub(crate) fn scrape_times(&self, times: u32) -> Result<()> {
        let count = || -> Result<f64> {
            let answer = self.ask("query", "query", "count_over_time(up[10m])")?;
            let text = answer["result"][0]["value"][1].as_str();
            Ok(text.unwrap_or("0").parse()?)
        };
        let wanted = count()? + f64::from(times);
        self.wait("it scrapes", || Ok(count()? >= wanted))
    }

    /// Waits until an alert is active (pending or firing), or until it is not if `active` is false.
    pub(crate) fn wait_for_alert(&self, name: &str, active: bool) -> Result<()> {
        self.wait(&format!("{name} active: {active}"), || {
            let answer = self.ask("alerts", "x", "")?;
            let mut alerts = answer["alerts"].as_array().into_iter().flatten();
            Ok(alerts.any(|alert| alert["labels"]["alertname"] == name) == active)
        })
    }

    /// Fails unless Prometheus has `wanted` alerting rules and evaluates all without an error.
    pub(crate) fn check_rules_health(&self, wanted: usize) -> Result<()> {
        let answer = self.ask("rules", "type", "alert")?;
        let groups = answer["groups"].as_array().into_iter().flatten();
        let rules: Vec<_> = groups
            .flat_map(|group| group["rules"].as_array().into_iter().flatten())
            .collect();
        for rule in &rules {
            ensure!(rule["health"] == "ok", "{rule}");
        }
        ensure!(rules.len() == wanted, "it knows {} rules", rules.len());
        Ok(())
    }

    fn ask(&self, path: &str, parameter: &str, value: &str) -> Result<Value> {
        self.get(&format!("{path}?{parameter}={}", encoded(value)))
    }

    fn get(&self, path: &str) -> Result<Value> {
        let path = format!("/api/v1/{path}");
        let (_, body) = http::get(self.node, ADDRESS.ip(), ADDRESS, &path)?;
        let answer: Value = serde_json::from_str(&body).with_context(|| body.clone())?;
        ensure!(answer["status"] == "success", "{}", answer["error"]);
        Ok(answer["data"].clone())
    }

    fn wait(&self, what: &str, attempt: impl Fn() -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let result = attempt();
            if matches!(result, Ok(true)) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("waited for this in vain: {what}: {result:?}");
            }
            sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Prometheus<'_> {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Adds the selectors of a parsed expression to `selectors`. A selector that allows several values
/// of a label is added once for each value: the series of all values must exist.
fn collect(tree: &Value, selectors: &mut Vec<String>) {
    match tree {
        Value::Object(node) => {
            if ["vectorSelector", "matrixSelector"]
                .iter()
                .any(|kind| tree["type"] == *kind)
            {
                let mut texts = vec![String::new()];
                for matcher in tree["matchers"].as_array().into_iter().flatten() {
                    let part = |name: &str| matcher[name].as_str().unwrap_or_default();
                    let (name, kind, value) = (part("name"), part("type"), part("value"));
                    let values: Vec<_> = match kind {
                        "=~" if !value.contains('(') => value.split('|').collect(),
                        _ => vec![value],
                    };
                    let each = texts.iter().flat_map(|text| {
                        let each = values.iter();
                        each.map(move |value| format!("{text}{name}{kind}{value:?},"))
                    });
                    texts = each.collect();
                }
                selectors.extend(texts.into_iter().map(|text| format!("{{{text}}}")));
            }
            node.values().for_each(|value| collect(value, selectors));
        }
        Value::Array(nodes) => nodes.iter().for_each(|node| collect(node, selectors)),
        _ => {}
    }
}

/// Encodes a value for use in a URL.
fn encoded(value: &str) -> String {
    let each = value.bytes().map(|byte| match byte {
        b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    each.collect()
}
