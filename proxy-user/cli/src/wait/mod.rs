// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan wait`: waits until the node no longer needs the rules of the previous proxy, or until
//! kube-proxy serves the node. The objects in `deploy/` run it before kube-proxy's rules are
//! removed, and before portolan's programs are. The first it reads from the settings that the agent
//! stores in the maps.

mod kube_proxy;

use std::{
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use datapath::{DatapathError, read::Reader};
use proxy_common::Settings;

use self::kube_proxy::KubeProxyArgs;
use super::{frame::Pins, signals::end_by_signal};

const EVERY: Duration = Duration::from_secs(1);
/// How long no connection must need the rules: an agent that just started may not have looked.
const SETTLED: Duration = Duration::from_secs(10);

/// Arguments of `portolan wait`.
#[derive(clap::Args, Clone, Debug)]
pub struct WaitArgs {
    #[command(flatten)]
    pub pins: Pins,
    /// Wait until portolan serves this node, and no connection of another proxy needs its rules.
    #[arg(long)]
    pub foreign_connections: bool,
    /// Wait until kube-proxy serves this node: it is healthy, and has written its rules since it
    /// began.
    #[arg(long)]
    pub kube_proxy: bool,
    #[command(flatten)]
    pub of_kube_proxy: KubeProxyArgs,
    /// Fail with this reason, for a hook of the chart.
    #[arg(long, value_name = "REASON")]
    pub refuse: Option<String>,
    /// Wait for SIGTERM at the end, because a container of a DaemonSet must not exit.
    #[arg(long)]
    pub stay: bool,
}

const NOT_SERVED: &str = "portolan does not serve this node yet; waiting for its agent";
const HELD: &str = "connections of another proxy may need its rules; the agent's log says which";
const GONE: &str = "no connection of another proxy needs its rules";

/// Returns a sentence about connections of another proxy.
fn foreign_connections(pin_dir: &Path) -> Result<&'static str, DatapathError> {
    let read = Reader::without_names(pin_dir).and_then(|reader| reader.settings());
    match read {
        Err(
            DatapathError::NothingPinned { .. }
            | DatapathError::NoSuchMap { .. }
            | DatapathError::OtherVersion { .. },
        ) => Ok(NOT_SERVED),
        read => read.map(|settings| by_settings(&settings)),
    }
}

fn by_settings(settings: &Settings) -> &'static str {
    match settings.node_netns {
        // No agent has stored settings in the maps yet.
        0 => NOT_SERVED,
        _ if settings.has(Settings::RULES_MAY_GO) => GONE,
        _ => HELD,
    }
}

/// Waits as the arguments ask, and prints what it waits for.
pub(super) fn run(args: &WaitArgs) -> Result<()> {
    if let Some(reason) = &args.refuse {
        bail!("{reason}");
    }
    let signals = end_by_signal()?;
    if args.foreign_connections {
        wait(SETTLED, || {
            let sentence = foreign_connections(&args.pins.pin_dir)?;
            Ok((sentence == GONE, sentence.to_owned()))
        })?;
    }
    if args.kube_proxy {
        wait(Duration::ZERO, || Ok(kube_proxy::ask(args.of_kube_proxy)))?;
    }
    if args.stay {
        println!("done; waiting for SIGTERM");
        signals.stay();
    }
    Ok(())
}

/// Waits until `read` has returned true for this long, and prints each new sentence.
fn wait(settled: Duration, read: impl Fn() -> Result<(bool, String)>) -> Result<()> {
    let (mut known, mut since) = (String::new(), Instant::now());
    loop {
        let (is_end, sentence) = read()?;
        if known != sentence {
            println!("{sentence}");
            since = Instant::now();
        }
        if is_end && since.elapsed() >= settled {
            return Ok(());
        }
        known = sentence;
        sleep(EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapath::maps::pins::layout_dir;

    #[test]
    fn a_node_whose_maps_are_not_all_made_is_not_served() -> Result<()> {
        let pins = tempfile::tempdir()?;
        std::fs::create_dir(layout_dir(pins.path()))?;
        assert_eq!(foreign_connections(pins.path())?, NOT_SERVED);
        Ok(())
    }

    #[test]
    fn empty_settings_mean_not_served() {
        assert_eq!(by_settings(&Settings::EMPTY), NOT_SERVED);
        let served = Settings {
            node_netns: 7,
            flags: Settings::RULES_MAY_GO,
            ..Settings::EMPTY
        };
        assert_eq!(by_settings(&served), GONE);
        let held = Settings { flags: 0, ..served };
        assert_eq!(by_settings(&held), HELD);
    }
}
