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

use anyhow::Result;
use datapath::{DatapathError, read::Reader};
use proxy_common::Settings;

use self::kube_proxy::{KubeProxy, KubeProxyArgs};
use super::{frame::Pins, signals::end_by_signal};

const EVERY: Duration = Duration::from_secs(1);
/// How long no connection must need the rules until that counts: an agent that has just started may
/// not have checked yet.
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
    /// Wait for SIGTERM at the end, because a container of a DaemonSet must not exit.
    #[arg(long)]
    pub stay: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    NotServed,
    Held,
    Gone,
}

impl State {
    fn of(settings: &Settings) -> Self {
        if settings.node_netns == 0 {
            // No agent has stored settings in the maps yet.
            Self::NotServed
        } else if settings.has(Settings::RULES_MAY_GO) {
            Self::Gone
        } else {
            Self::Held
        }
    }
    fn read(pin_dir: &Path) -> Result<Self, DatapathError> {
        let read = Reader::without_names(pin_dir).and_then(|reader| reader.settings());
        match read {
            Err(
                DatapathError::NothingPinned { .. }
                | DatapathError::NoSuchMap { .. }
                | DatapathError::OtherVersion { .. },
            ) => Ok(Self::NotServed),
            read => read.map(|settings| Self::of(&settings)),
        }
    }
    fn sentence(self) -> &'static str {
        match self {
            Self::NotServed => "portolan does not serve this node yet; waiting for its agent",
            Self::Held => {
                "connections of another proxy may need its rules; the agent's log says which"
            }
            Self::Gone => "no connection of another proxy needs its rules",
        }
    }
}

/// Waits as the arguments ask, and prints what it waits for.
pub(super) fn run(args: &WaitArgs) -> Result<()> {
    let signals = end_by_signal()?;
    if args.foreign_connections {
        wait(SETTLED, || {
            let state = State::read(&args.pins.pin_dir)?;
            Ok((state == State::Gone, state.sentence().to_owned()))
        })?;
    }
    if args.kube_proxy {
        wait(Duration::ZERO, || {
            let state = KubeProxy::ask(args.of_kube_proxy);
            Ok((
                state == KubeProxy::Serves,
                state.sentence(args.of_kube_proxy),
            ))
        })?;
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
        assert!(State::read(pins.path())? == State::NotServed);
        Ok(())
    }

    #[test]
    fn empty_settings_mean_not_served() {
        assert!(State::of(&Settings::EMPTY) == State::NotServed);
        let served = Settings {
            node_netns: 7,
            flags: Settings::RULES_MAY_GO,
            ..Settings::EMPTY
        };
        assert!(State::of(&served) == State::Gone);
        let held = Settings { flags: 0, ..served };
        assert!(State::of(&held) == State::Held);
    }
}
