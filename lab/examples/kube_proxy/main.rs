// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records, for tests, how a real kube-proxy behaves: how it interprets each configuration and
//! command line in proxy-user/kube-proxy, its flags, and its metrics. Writes this to
//! proxy-user/kube-proxy/VERSION. Started by `cargo xtask kube-proxy`; see
//! proxy-user/kube-proxy/README.md.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    path::{self, Path, PathBuf},
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use k8s_openapi::jiff::Timestamp;
use lab::{
    load::manifests::{self, Port},
    node::{
        api_server::ApiServer,
        http,
        kube_proxy::KubeProxy,
        netns::{NetNs, check_privilege},
        options::METRICS,
    },
};
use serde_json::{Value, json};

const MODES: [&str; 2] = ["iptables", "nftables"];
const ADDRESS: &str = "10.40.0.1";
const PATIENCE: Duration = Duration::from_secs(60);

const PORTS: [Port<'_>; 1] = [Port::new(("", "TCP"), [80, 8080], None)];

/// Returns the Service whose rules and metrics are looked at.
fn service() -> Value {
    let spec = json!({"type": "NodePort", "externalTrafficPolicy": "Local"});
    manifests::service("cart", &PORTS, spec)
}

/// Returns the service's EndpointSlice; its last-change-trigger-time is `changed`.
fn slice(changed: Timestamp) -> Value {
    let endpoint = manifests::endpoint("10.40.1.20", "node-b");
    let mut slice = manifests::slice("cart", &PORTS, [endpoint]);
    slice["metadata"]["annotations"] =
        json!({"endpoints.kubernetes.io/last-change-trigger-time": changed.to_string()});
    slice
}

#[derive(Parser)]
struct Arguments {
    /// The program kube-proxy.
    #[arg(long)]
    kube_proxy: PathBuf,
    /// The folder of configurations.
    #[arg(long)]
    folder: PathBuf,
}

fn main() -> Result<()> {
    let Arguments { kube_proxy, folder } = Arguments::parse();
    check_privilege()?;
    let version = output(Command::new(&kube_proxy).arg("--version"))?;
    let version = version.trim().trim_start_matches("Kubernetes ");
    let place = folder.join(version);
    if place.exists() {
        fs::remove_dir_all(&place).context("remove what was written before")?;
    }
    fs::create_dir(&place).context("make the version's folder")?;
    for entry in fs::read_dir(&folder)? {
        let file = entry?.path();
        let arguments = match file.extension().and_then(OsStr::to_str) {
            Some("yaml") => vec![format!("--config={}", file.display())],
            Some("args") => fs::read_to_string(&file)?
                .lines()
                .map(str::to_owned)
                .collect(),
            _ => continue,
        };
        let name = file.file_stem().context("a file has a name")?;
        answer(&kube_proxy, &folder, &arguments, &place.join(name))?;
    }
    fs::write(place.join("flags.txt"), flags(&kube_proxy)?)?;
    for mode in MODES {
        let metrics = metrics(&kube_proxy, mode)?;
        fs::write(place.join(format!("metrics-{mode}.txt")), metrics)?;
    }
    Ok(())
}

/// Records how kube-proxy interprets a command line, run in `folder`. `place` is the file to write,
/// without its ending: `yaml` for kube-proxy's effective settings, `refused` for its error.
fn answer(program: &Path, folder: &Path, arguments: &[String], place: &Path) -> Result<()> {
    let effective = path::absolute(place.with_extension("yaml"))?;
    let mut command = Command::new(path::absolute(program)?);
    command.current_dir(folder).args(arguments);
    let ended = command.arg("--write-config-to").arg(&effective).output()?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr);
        let reason = said.rsplit_once("err=").or(said.rsplit_once("Error: "));
        let (_, reason) = reason.context("kube-proxy says why")?;
        fs::write(place.with_extension("refused"), reason)?;
    }
    Ok(())
}

/// Returns the names of kube-proxy's flags, one a line.
fn flags(program: &Path) -> Result<String> {
    let help = output(Command::new(program).arg("--help"))?;
    let words = help.lines().filter_map(|line| {
        let line = line.trim_start();
        let line = line.split_once(", --").map_or(line, |(_, rest)| rest);
        let line = line.strip_prefix("--").unwrap_or(line);
        let listed = help.contains(&format!("--{line}"));
        listed.then(|| line.split([' ', '=']).next()).flatten()
    });
    let names: BTreeSet<_> = words.filter(|word| !word.is_empty()).collect();
    Ok(names.into_iter().map(|name| format!("{name}\n")).collect())
}

/// Returns kube-proxy's metrics, one a line: the type, the name, the names of its labels.
fn metrics(program: &Path, mode: &str) -> Result<String> {
    let node = NetNs::new("node")?;
    let commands = format!("link set lo up\naddress add {ADDRESS}/32 dev lo\n");
    node.ip(&commands)?;
    let server = ApiServer::start(&node, ADDRESS)?;
    server.apply(&service().to_string())?;
    server.make_node(ADDRESS)?;
    let kubeconfig = server.kubeconfig();
    let kube_proxy = KubeProxy::start(&node, program, mode, None, &kubeconfig)?;
    let deadline = Instant::now() + PATIENCE;
    let mut changed = false;
    loop {
        // These requests create the metrics of health probes.
        for path in ["/healthz", "/livez"] {
            let at = (METRICS.ip(), 10256).into();
            _ = http::get(&node, METRICS.ip(), at, path);
        }
        if let Ok((200, text)) = http::get(&node, METRICS.ip(), METRICS, "/metrics")
            && text.contains("kubeproxy_sync_proxy_rules_duration_seconds_count")
        {
            // kube-proxy measures network programming only for changes after its start.
            if !std::mem::replace(&mut changed, true) {
                server.apply(&slice(Timestamp::now()).to_string())?;
            }
            if text.contains("kubeproxy_network_programming_duration_seconds_count")
                && text.contains("kubeproxy_proxy_livez_total{")
            {
                return Ok(names(&text));
            }
        }
        if Instant::now() > deadline {
            let log = kube_proxy.log_tail(100).join("\n");
            bail!("no metrics of mode {mode}: {log}");
        }
        sleep(Duration::from_millis(100));
    }
}

fn names(text: &str) -> String {
    let mut lines = BTreeSet::new();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    for (name, kind) in types.filter_map(|line| line.split_once(' ')) {
        let mut labels = BTreeSet::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (sample, rest) = line.split_at(line.find(['{', ' ']).unwrap_or(line.len()));
            let suffix = sample.strip_prefix(name).unwrap_or("of another");
            if !["", "_bucket", "_sum", "_count"].contains(&suffix) {
                continue;
            }
            let set = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
            let pairs = set.map_or("", |(pairs, _)| pairs).split(',');
            let own = pairs.filter_map(|pair| Some(pair.split_once('=')?.0));
            labels.extend(own.filter(|label| !["le", "quantile"].contains(label)));
        }
        let labels: Vec<_> = labels.into_iter().collect();
        let line = format!("{kind} {name} {}", labels.join(","));
        lines.insert(format!("{}\n", line.trim_end()));
    }
    lines.into_iter().collect()
}

fn output(command: &mut Command) -> Result<String> {
    let ended = command.output().context("start kube-proxy")?;
    let status = ended.status;
    ensure!(status.success(), "kube-proxy ended with {status}");
    Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
}
