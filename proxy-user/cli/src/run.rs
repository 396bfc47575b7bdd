// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan run`: the agent's flags, which override the configuration file.

use std::{
    env, fs,
    net::IpAddr,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process,
};

use agent::Ended;
use anyhow::{Context, bail};
use clap::{
    ArgAction,
    builder::{OsStringValueParser, TypedValueParser},
};
use config::{
    Config, ConfigError, ConfigFile, RawConfig, Source, UnallocatedClusterIps, telemetry,
};
use control::{model::Converter, warnings::Warnings};
use datapath::SHADOW_PIN_DIR;
use source::{
    SourceError,
    api_server::{Access, ApiServer},
    manifests::Manifests,
};

use super::{
    BadInput, cleanup,
    flags::{SettingFlags, go_bool},
    shadow,
};

pub(super) const KUBECONFIG: &str = "clientConnection.kubeconfig";
const HEALTHZ: &str = "healthzBindAddress";
const METRICS: &str = "metricsBindAddress";

/// Makes clap's parser for a path that may be empty. KUBE: an empty path means none.
fn perhaps_empty() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// Returns the path; None if it is not given or empty.
pub(super) fn given_path(path: Option<&PathBuf>) -> Option<&Path> {
    path.map(PathBuf::as_path)
        .filter(|path| !path.as_os_str().is_empty())
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
    /// Run beside another proxy and only count what would become of packets: `portolan shadow
    /// report` compares. Servers for health and metrics only where their flags are given; pins by
    /// default in /sys/fs/bpf/portolan-shadow. Leaves nothing when it ends.
    #[arg(long)]
    pub shadow: bool,
}

impl RunArgs {
    /// Returns the settings, from the flags and the configuration file.
    pub(super) fn settings(&self) -> Result<Config, ConfigError> {
        Ok(self.as_shadow(self.given.settings_keeping(self.kept())?))
    }

    /// Returns the settings after the configuration file has changed, as
    /// [`Given::changed_settings`] does.
    fn changed_settings(&self) -> Result<Config, ConfigError> {
        Ok(self.as_shadow(self.given.changed_settings(self.kept())?))
    }

    /// Returns the settings whose flags are used although there is a configuration file. Only a
    /// shadow has some: those that the other proxy's file cannot give.
    fn kept(&self) -> &'static [&'static str] {
        match self.shadow {
            true => &[KUBECONFIG, HEALTHZ, METRICS],
            false => &[],
        }
    }

    /// With `--shadow`, which runs beside another proxy and reads that proxy's configuration file:
    /// takes listen addresses and pin directory from flags only. Without the flags there is no
    /// server, and pins are in `SHADOW_PIN_DIR`. Otherwise changes nothing.
    fn as_shadow(&self, mut config: Config) -> Config {
        if !self.shadow {
            return config;
        }
        config.shadow = true;
        let SettingFlags(flags) = &self.given.flags;
        if !flags.has("portolan.pinDirectory") {
            config.pin_directory = SHADOW_PIN_DIR.into();
        }
        if !flags.has(HEALTHZ) {
            config.healthz_bind_address.set_port(0);
        }
        if !flags.has(METRICS) {
            config.metrics_bind_address.set_port(0);
        }
        config
    }
}

/// Where objects and settings come from.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Given {
    /// Folder of Service, EndpointSlice and Node manifests (YAML, JSON) to serve and follow,
    /// instead of an API server.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kubeconfig", "master"])]
    pub manifests: Option<PathBuf>,
    /// Address of the API server, not of its service; overrides the kubeconfig's.
    #[arg(long, value_name = "ADDRESS")]
    pub master: Option<String>,
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

impl Given {
    /// Returns whether no argument is given, except perhaps the pin directory.
    pub(super) fn is_empty(&self) -> bool {
        let SettingFlags(flags) = &self.flags;
        let Self {
            manifests: None,
            master: None,
            config: None,
            cgroup_root: None,
            verbosity: None,
            ..
        } = self
        else {
            return false;
        };
        self.node_ip.is_empty() && flags.keys().all(|key| key == "portolan.pinDirectory")
    }
    /// Returns the settings, from the flags and the configuration file.
    pub fn settings(&self) -> Result<Config, ConfigError> {
        self.settings_keeping(&[])
    }

    /// Returns the settings, from the flags and the configuration file. With a file, only flags
    /// that a file cannot replace are used, and those of the settings in `kept`.
    pub(super) fn settings_keeping(&self, kept: &[&str]) -> Result<Config, ConfigError> {
        let SettingFlags(flags) = self.flags.clone();
        let (file, flags) = match given_path(self.config.as_ref()) {
            Some(path) => (RawConfig::read(path)?, flags.drop_ignored_flags(kept)),
            None => (RawConfig::default(), flags),
        };
        let verbosity = self.verbosity.map(RawConfig::with_verbosity);
        let flags = flags.or(verbosity.unwrap_or_default());
        let of_file = file.keys().map(|key| (key, Source::File));
        let sources = of_file.chain(flags.keys().map(|key| (key, Source::Flag)));
        Ok(Config {
            node_ips: self.node_ip.clone(),
            cgroup_root: self.cgroup_root.clone(),
            sources: sources.collect(),
            ..flags.or(file).check()?
        })
    }

    /// Returns the folder of manifests as a source of objects for this node; None if none is given.
    pub(super) fn manifests(&self, config: &Config, node: &str) -> Option<Manifests> {
        let converter = Converter::new(node)
            .with_link_local(config.serve_link_local)
            .with_gateways(config.gateway_api);
        let folder = self.manifests.as_ref()?;
        Some(Manifests::new(folder, converter))
    }

    /// Returns the API server as a source of objects for this node.
    pub(super) fn api_server(&self, config: &Config, node: &str) -> Result<ApiServer, SourceError> {
        let access = Access::new(config.kubeconfig.clone(), self.master.clone())?;
        let service_cidrs = config.unallocated_cluster_ips == UnallocatedClusterIps::Drop;
        Ok(ApiServer::new(access, node)
            .with_service_cidrs(service_cidrs)
            .with_link_local(config.serve_link_local)
            .with_gateways(config.gateway_api))
    }

    /// Returns the settings after the configuration file has changed. Fails if an agent could not
    /// start with them.
    fn changed_settings(&self, kept: &[&str]) -> Result<Config, ConfigError> {
        let config = self.settings_keeping(kept)?;
        match &config.kubeconfig {
            Some(file) if self.manifests.is_none() => match fs::File::open(file) {
                Ok(_) => Ok(config),
                Err(error) => Err(ConfigError::Invalid {
                    key: "clientConnection.kubeconfig",
                    value: file.display().to_string(),
                    remedy: format!("cannot be read ({error}); correct it, or put the file there"),
                }),
            },
            _ => Ok(config),
        }
    }
}

/// Runs the agent until SIGTERM or SIGINT; or does what --cleanup or --write-config-to ask instead.
pub(super) fn run(args: &RunArgs) -> anyhow::Result<()> {
    let given = &args.given;
    if args.shadow && args.cleanup {
        let reason = "--shadow and --cleanup cannot be used together; use one of them";
        return Err(BadInput(reason.to_owned()).into());
    }
    let file = given_path(given.config.as_ref()).map(|path| {
        let args = args.clone();
        ConfigFile::new(path.to_owned(), Box::new(move || args.changed_settings()))
    });
    let config = args.settings()?;
    if let Some(file) = given_path(args.write_config_to.as_ref()) {
        return fs::write(file, config::render(&config)?)
            .with_context(|| format!("write the settings to {}", file.display()));
    }
    if args.cleanup {
        return cleanup::remove(&config.pin_directory, false);
    }
    telemetry::start(&config.log_level, config.log_format)?;
    let serving = given.settings()?.pin_directory;
    shadow::check_alone(&config, &serving, SHADOW_PIN_DIR.as_ref())?;
    let pins = config.pin_directory.clone();
    match follow(args, config, file) {
        Ok(Ended::Outdated) => start_anew(),
        Ok(Ended::Stopped) if args.shadow => shadow::remove(&pins),
        Ok(Ended::Stopped) => Ok(()),
        Err(error) => {
            if args.shadow {
                // Errors are ignored: the shadow may not have started, and the directory may be
                // empty or belong to another agent.
                _ = shadow::remove(&pins);
            }
            Err(error)
        }
    }
}

/// Runs the agent with the Kubernetes objects of the folder of manifests or of the API server.
fn follow(args: &RunArgs, config: Config, file: Option<ConfigFile>) -> anyhow::Result<Ended> {
    let given = &args.given;
    let node_name = node_name(config.hostname_override.as_deref())?;
    if let Some(source) = given.manifests(&config, &node_name) {
        return run_with(config, file, &node_name, source, Warnings::default());
    }
    let source = given.api_server(&config, &node_name)?;
    if config.shadow {
        // A shadow writes no events to Kubernetes, because it does not serve the objects.
        return run_with(config, file, &node_name, source, Warnings::default());
    }
    let (source, warnings) = source.with_writing().with_events(config.object_events);
    run_with(config, file, &node_name, source, warnings)
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
    // Another version may have replaced the program's file meanwhile, so the file's name is not
    // used.
    let mut command = process::Command::new("/proc/self/exe");
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    // `exec` returns only if it fails. The supervisor then starts the next agent.
    let error = command.args(arguments).exec();
    Err(error).context("start anew with the changed configuration")
}

/// Returns the node's name. KUBE: it is the host name in lower case, unless it is overridden by
/// `given`.
pub(super) fn node_name(given: Option<&str>) -> anyhow::Result<String> {
    let host;
    let name = match given {
        Some(name) => name,
        None => {
            host = fs::read_to_string("/proc/sys/kernel/hostname")
                .context("read the host name; name the node with --hostname-override")?;
            &host
        }
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
