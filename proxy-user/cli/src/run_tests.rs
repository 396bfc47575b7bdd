// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests for the agent's command lines, some by what kube-proxy does (proxy-user/kube-proxy).

use config::SocketBalancing;
use rstest::rstest;

use super::*;
use crate::command_line::words;

fn config(flags: &str) -> Config {
    settings(flags).expect("valid")
}

fn line(flags: &str) -> Result<RunArgs, clap::Error> {
    line_of(flags.split_whitespace())
}

fn line_of<'a>(arguments: impl Iterator<Item = &'a str>) -> Result<RunArgs, clap::Error> {
    let all = ["run"].into_iter().chain(arguments);
    RunArgs::parsed(words(all.map(Into::into)))
}

fn settings(flags: &str) -> Result<Config, ConfigError> {
    line(flags).expect("flags").given.settings()
}

/// Writes a configuration file with these settings into a new folder.
fn file(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config.yaml");
    let header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    fs::write(&path, format!("{header}{text}")).expect("a file");
    let path = path.to_str().expect("a plain path").to_owned();
    (folder, path)
}

/// Those of kube-proxy are compared with what a real one does, below.
#[test]
fn with_a_file_flags_are_ignored_as_by_kube_proxy_and_named() {
    let (_folder, path) = file("clusterCIDR: 10.1.0.0/16\nportolan: {socketBalancing: all}\n");
    let config = config(&format!(
        "--config {path} --cluster-cidr 10.2.0.0/16 --metrics-bind-address 0.0.0.0:1 --socket-balancing host --pin-dir /p -v 9 \
         --cgroup-root /c --node-ip 10.0.0.1,fd00::1"
    ));
    assert_eq!(config.socket_balancing, SocketBalancing::Host);
    assert_eq!(config.cgroup_root.as_deref(), Some(Path::new("/c")));
    assert_eq!(config.node_ips.len(), 2);
    assert_eq!(config.log_level, "trace");
    assert_eq!(config.pin_directory, Path::new("/p"));
    assert!(!config.sources.contains_key("metricsBindAddress"));
    let mut ignored_flags = config.ignored_flags;
    ignored_flags.sort();
    assert_eq!(ignored_flags, ["--cluster-cidr", "--metrics-bind-address"]);
}

#[test]
fn a_canary_takes_kubeconfig_and_listen_addresses_from_flags_over_a_file() {
    let (_folder, path) = file(
        "clientConnection: {kubeconfig: /var/lib/kube-proxy/kubeconfig.conf}\nmode: nftables\n",
    );
    let config = config(&format!(
        "--service-proxy-name canary --config {path} --kubeconfig /k --healthz-bind-address 127.0.0.1:7 --cluster-cidr 10.2.0.0/16"
    ));
    assert_eq!(config.kubeconfig.as_deref(), Some(Path::new("/k")));
    assert_eq!(config.healthz_bind_address.port(), 7);
    assert_eq!(config.metrics_bind_address.port(), 0, "kube-proxy has it");
    assert_eq!(config.unallocated_cluster_ips, UnallocatedClusterIps::Pass);
    assert_eq!(config.ignored_flags, ["--cluster-cidr"]);
}

#[test]
fn programs_that_serve_manifests_never_give_way_unless_the_file_says_it() {
    let after = |flags: &str| config(flags).abandoned_after;
    assert_eq!((after(""), after("--manifests /m")), (6 * 3600, 0));
    let (_folder, path) = file("portolan: {abandonedAfter: 1500ms}\n");
    assert_eq!(after(&format!("--manifests /m --config {path}")), 2);
}

#[test]
fn a_proxy_name_is_a_labels_value() {
    let named = |flags: &str| config(flags).service_proxy_name;
    let canary = named("--service-proxy-name canary.1");
    assert_eq!(canary.as_deref(), Some("canary.1"));
    assert!(named("--service-proxy-name=").is_none() && named("").is_none());
    let refused = settings("--service-proxy-name a,b").expect_err("refused");
    assert!(refused.to_string().contains("label's value"), "{refused}");
}

#[test]
fn kube_proxys_recorded_command_lines_give_the_same_settings() {
    let folder = format!("--config={}/", config::testing::folder().display());
    let versions = config::testing::compare("args", |path| {
        let arguments = fs::read_to_string(path).expect("arguments");
        let arguments = arguments.replace("--config=./", &folder);
        let line = line_of(arguments.lines()).map_err(|error| error.to_string())?;
        let settings = line.given.settings();
        settings.map_err(|error| error.to_string())
    });
    for version in versions {
        assert!(version.taken > 5, "{}", version.taken);
    }
}

/// Others are compared with what a real kube-proxy takes, above.
#[rstest]
#[case("--nodeport-addresses=", "")]
#[case("--write-config-to= --cluster-cidr=", "")]
#[case("--conntrack-udp-timeout=500ms", "--conntrack-udp-timeout=1s")]
#[case("--cleanup=false --cleanup=F", "")]
#[case("--profiling=F --init-only=0 --feature-gates=", "")]
#[case("--bind-address=010.1.2.3", "--bind-address=10.1.2.3")]
#[case("--healthz-bind-address=010.1.2.3", "--healthz-bind-address=10.1.2.3")]
#[case("-v=4 -v 300", "--v=300")]
#[case("--v=2", "-v2")]
fn spellings_of_flags_that_kube_proxy_allows_are_equivalent(
    #[case] one: &str,
    #[case] other: &str,
) {
    let [one, other] = [one, other].map(|flags| Config {
        // Whether a value comes from a default or was written out must not matter here.
        sources: [].into(),
        ..config(flags)
    });
    assert_eq!(one, other);
}

#[rstest]
#[case("--oom-score-adj -998", "--oom-score-adj")]
#[case("--profiling=T --profiling", "--profiling")]
#[case("--ipvs_scheduler rr", "--ipvs-scheduler")]
fn flags_without_effect_are_accepted_in_every_spelling(#[case] flags: &str, #[case] unused: &str) {
    assert_eq!(config(flags).unused, [unused]);
}

#[rstest]
#[case("--masquerade-all=")]
#[case("--conntrack-min=")]
#[case("--conntrack-min=1.5")]
#[case("--conntrack-udp-timeout=-5s")]
#[case("-v -1")]
fn flag_values_that_kube_proxy_refuses_are_refused(#[case] flags: &str) {
    let taken = line(flags).is_ok_and(|run| run.given.settings().is_ok());
    assert!(!taken, "{flags}");
}

#[test]
fn a_flag_after_two_dashes_is_left_as_it_is() {
    let line = ["portolan", "--a_b=c_d", "e_f", "--", "--a_b"];
    let words = words(line.map(Into::into).into_iter());
    assert_eq!(words, ["portolan", "--a-b=c_d", "e_f", "--", "--a_b"]);
}

#[test]
fn a_changed_file_is_refused_if_the_next_agent_could_not_start_with_it() {
    let changed = |flags: &str| line(flags).expect("flags").given.changed_settings();
    let error = changed("--kubeconfig /nonexistent").expect_err("not there");
    let said = "clientConnection.kubeconfig: \"/nonexistent\" cannot be read (No such file";
    assert!(error.to_string().starts_with(said), "{error}");
    assert!(changed("--kubeconfig /proc/self/stat").is_ok());
    assert!(changed("").is_ok());
}

#[test]
fn a_nodes_name_is_in_lower_case_and_is_the_hosts_if_not_given() {
    assert_eq!(node_name(Some(" Node-A ")).expect("a name"), "node-a");
    assert!(node_name(Some(" ")).is_err());
    assert!(!node_name(None).expect("the host's").is_empty());
}
