// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan run`: the agent's flags, which override the configuration file.

use std::{
    env,
    ffi::OsString,
    fs,
    net::IpAddr,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process,
};

use agent::Ended;
use anyhow::{Context, bail};
use clap::{
    ArgAction, Args, FromArgMatches,
    builder::{OsStringValueParser, TypedValueParser},
};
use config::{
    Config, ConfigError, ConfigFile, RawConfig, Source, UnallocatedClusterIps, telemetry,
};
use control::{model::Converter, warnings::Warnings};
use datapath::maps::pins;
use source::{
    SourceError,
    api_server::{Access, ApiServer},
    manifests::Manifests,
};

use super::{
    cleanup,
    flags::{SettingFlags, go_bool},
};

pub(super) const KUBECONFIG: &str = "clientConnection.kubeconfig";
const HEALTHZ: &str = "healthzBindAddress";
const METRICS: &str = "metricsBindAddress";
const PROXY_NAME: &str = "portolan.serviceProxyName";
const ABANDONED_AFTER: &str = "portolan.abandonedAfter";
/// The settings that a canary takes from flags although there is a file.
const OF_CANARY: &[&str] = &[KUBECONFIG, HEALTHZ, METRICS];

/// Makes clap's parser for a path that may be empty. KUBE: an empty path means none.
fn perhaps_empty() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// Returns the path; None if it is not given or empty.
pub(super) fn given_path(path: Option<&PathBuf>) -> Option<&Path> {
    let given = path.filter(|path| !path.as_os_str().is_empty());
    given.map(PathBuf::as_path)
}

/// Arguments of `portolan run`; flags that kube-proxy has keep its names.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct RunArgs {
    #[command(flatten)]
    pub given: Given,
    /// Write all settings (from flags, file and defaults) to a file and exit.
    #[arg(long, value_name = "FILE", value_parser = perhaps_empty())]
    pub write_config_to: Option<PathBuf>,
    /// Remove every trace of portolan from this node and exit, like `portolan cleanup`.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t, default_missing_value = "true", value_parser = go_bool, hide_default_value = true, value_name = "BOOL")]
    pub cleanup: bool,
}

/// Where objects and settings come from.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Given {
    /// Folder of Service, EndpointSlice and Node manifests (YAML, JSON) to serve and follow,
    /// instead of an API server.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kubeconfig", "master"])]
    pub manifests: Option<PathBuf>,
    /// Addresses of the API servers, with commas between them, not of their service; override the
    /// kubeconfig's. Others are learned from the service's endpoints.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub master: Vec<String>,
    /// Configuration file. Beside it only the flags of portolan's own settings, of logs and of the
    /// node's name mean something.
    #[arg(long, value_name = "FILE", value_parser = perhaps_empty())]
    pub config: Option<PathBuf>,
    /// The node's addresses, one of each IP family, used if its Node object has no InternalIP.
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    pub node_ip: Vec<IpAddr>,
    /// Root of the cgroup2 hierarchy, to which the socket hooks are attached [default: where
    /// cgroup2 is mounted].
    #[arg(long, value_name = "DIR")]
    pub cgroup_root: Option<PathBuf>,
    /// kube-proxy's log level, if --log-level is not given: 0 to 3 is info, 4 and 5 debug, 6 and
    /// more trace.
    #[arg(short = 'v', long = "v", value_name = "LEVEL")]
    pub verbosity: Option<u32>,
    #[command(flatten)]
    pub flags: SettingFlags,
}

impl RunArgs {
    /// Parses the words of an agent's command line, from `run` on.
    pub(super) fn parsed(words: Vec<OsString>) -> Result<Self, clap::Error> {
        let command = Self::augment_args(clap::Command::new("run")).args_override_self(true);
        Self::from_arg_matches(&command.try_get_matches_from(words)?)
    }
}

impl Given {
    /// Returns whether no argument is given, except perhaps the pin directory.
    pub(super) fn is_empty(&self) -> bool {
        let SettingFlags(flags) = &self.flags;
        let paths = [&self.manifests, &self.config, &self.cgroup_root];
        paths.iter().all(|path| path.is_none())
            && self.master.is_empty()
            && self.verbosity.is_none()
            && self.node_ip.is_empty()
            && flags.keys().all(|key| key == "portolan.pinDirectory")
    }
    /// Returns the settings, from the flags and the configuration file.
    pub fn settings(&self) -> Result<Config, ConfigError> {
        self.settings_keeping(&[])
    }

    /// Returns the settings, from the flags and the configuration file. With a file, only flags
    /// that a file cannot replace are used, and those of the settings in `kept`. A canary's file
    /// may be that of the proxy beside it, so it says neither the kubeconfig nor where to listen.
    pub(super) fn settings_keeping(&self, kept: &[&str]) -> Result<Config, ConfigError> {
        let SettingFlags(given) = &self.flags;
        let (file, flags) = match given_path(self.config.as_ref()) {
            Some(path) => {
                let file = RawConfig::read(path)?;
                let is_canary = given.has(PROXY_NAME) || file.has(PROXY_NAME);
                let kept = if is_canary { OF_CANARY } else { kept };
                (file, given.clone().drop_ignored_flags(kept))
            }
            None => (RawConfig::default(), given.clone()),
        };
        let verbosity = self.verbosity.map(RawConfig::with_verbosity);
        let flags = flags.or(verbosity.unwrap_or_default());
        let of_file = file.keys().map(|key| (key, Source::File));
        let sources = of_file.chain(flags.keys().map(|key| (key, Source::Flag)));
        let mut config = Config {
            node_ips: self.node_ip.clone(),
            cgroup_root: self.cgroup_root.clone(),
            sources: sources.collect(),
            ..flags.or(file).check()?
        };
        if self.manifests.is_some() && !config.sources.contains_key(ABANDONED_AFTER) {
            config.abandoned_after = 0;
        }
        if config.is_canary() {
            config.unallocated_cluster_ips = UnallocatedClusterIps::Pass;
            let addresses = [
                (HEALTHZ, &mut config.healthz_bind_address),
                (METRICS, &mut config.metrics_bind_address),
            ];
            for (_, address) in addresses.into_iter().filter(|(key, _)| !given.has(key)) {
                address.set_port(0);
            }
        }
        Ok(config)
    }

    /// Returns the folder of manifests as a source of objects for this node; None if none is given.
    pub(super) fn manifests(&self, config: &Config, node: &str) -> Option<Manifests> {
        let folder = self.manifests.as_ref()?;
        Some(Manifests::new(folder, converter(config, node)))
    }

    /// Returns the API server as a source of objects for this node.
    pub(super) fn api_server(&self, config: &Config, node: &str) -> Result<ApiServer, SourceError> {
        let access = Access::new(config.kubeconfig.clone(), self.master.clone())?;
        let mut server = ApiServer::new(access, converter(config, node));
        server.service_cidrs = config.unallocated_cluster_ips == UnallocatedClusterIps::Drop;
        Ok(server)
    }

    /// Returns what follows the configuration file, if there is one. Call this before `settings`.
    pub(super) fn config_file(&self) -> Option<ConfigFile> {
        let (path, given) = (given_path(self.config.as_ref())?, self.clone());
        let read = Box::new(move || given.changed_settings());
        Some(ConfigFile::new(path.to_owned(), read))
    }

    /// Returns the settings of the changed file. Fails if an agent could not start with them.
    fn changed_settings(&self) -> Result<Config, ConfigError> {
        let config = self.settings()?;
        if let (Some(file), None) = (&config.kubeconfig, &self.manifests)
            && let Err(error) = fs::File::open(file)
        {
            return Err(ConfigError::Invalid {
                key: KUBECONFIG,
                value: file.display().to_string(),
                remedy: format!("cannot be read ({error}); correct it, or put the file there"),
            });
        }
        Ok(config)
    }
}

/// Returns what converts Kubernetes objects for this node.
pub(super) fn converter(config: &Config, node: &str) -> Converter {
    let mut converter = Converter::new(node);
    converter.link_local = config.serve_link_local;
    converter.proxy_name.clone_from(&config.service_proxy_name);
    converter.gateways = config.gateway_api;
    converter.keeps_nodes = config.header_port().is_some();
    converter
}

/// Runs the agent until SIGTERM or SIGINT; or does what --cleanup or --write-config-to ask instead.
pub(super) fn run(args: &RunArgs) -> anyhow::Result<()> {
    let given = &args.given;
    let file = given.config_file();
    let config = given.settings()?;
    if let Some(file) = given_path(args.write_config_to.as_ref()) {
        return fs::write(file, config::render(&config)?)
            .with_context(|| format!("write the settings to {}", file.display()));
    }
    if args.cleanup {
        return cleanup::remove(&config.pin_directory, false);
    }
    telemetry::start(&config.log_level, config.log_format)?;
    let node_name = node_name(config.hostname_override.as_deref())?;
    let ended = if let Some(source) = given.manifests(&config, &node_name) {
        run_with(config, file, &node_name, source, Warnings::default())?
    } else {
        let source = given.api_server(&config, &node_name)?;
        source.keep_servers(config.pin_directory.join(pins::SERVERS));
        let (source, warnings) = source.with_events();
        run_with(config, file, &node_name, source, warnings)?
    };
    match ended {
        Ended::Outdated => start_anew(),
        Ended::Stopped => Ok(()),
    }
}

fn run_with(
    config: Config,
    file: Option<ConfigFile>,
    node_name: &str,
    source: impl source::ObjectSource,
    warnings: Warnings,
) -> anyhow::Result<Ended> {
    // The agent's loop runs on the main thread; the worker thread answers health checks meanwhile.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("start the runtime")?;
    let ended = runtime.block_on(agent::run(config, file, node_name, source, warnings));
    // Connections that clients keep open must not delay the exit.
    runtime.shutdown_background();
    ended
}

/// Replaces this process by a new agent with the same arguments. Pinned programs and maps stay, and
/// a supervisor does not see the process end.
fn start_anew() -> anyhow::Result<()> {
    let mut arguments = env::args_os();
    // Not by its name: another version may have replaced the program's file meanwhile.
    let mut command = process::Command::new("/proc/self/exe");
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    // `exec` returns only if it fails. The supervisor then starts the next agent.
    let error = command.args(arguments).exec();
    Err(error).context("start anew with the changed configuration")
}

/// Returns the node's name. KUBE: the host name in lower case, unless one is given.
pub(super) fn node_name(given: Option<&str>) -> anyhow::Result<String> {
    let name = match given {
        Some(name) => name.to_owned(),
        None => fs::read_to_string("/proc/sys/kernel/hostname")
            .context("read the host name; name the node with --hostname-override")?,
    };
    let name = name.trim().to_lowercase();
    if name.is_empty() {
        bail!("the node's name is empty; set it with --hostname-override");
    }
    Ok(name)
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
