// SPDX-License-Identifier: Apache-2.0 OR MIT
//! With `xdp`: listens to changes of routes, neighbours, rules, addresses and interfaces, so that
//! the next hops that XDP keeps are looked up again at once. Without these messages XDP trusts them
//! for a second. Started by `agent::run`.

use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use rtnetlink::{MulticastGroup, new_multicast_connection};
use tokio::{sync::mpsc, time::sleep};

/// The shortest time between two notices: neighbours are confirmed all the time.
const AT_MOST_EVERY: Duration = Duration::from_millis(20);
/// Pause before another attempt.
const PAUSE: Duration = Duration::from_secs(5);

/// Returns a channel with a notice of each change; several changes at a time are one notice.
pub(super) fn follow() -> mpsc::Receiver<()> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        while !sender.is_closed() {
            listen(&sender).await;
            sleep(PAUSE).await;
        }
    });
    receiver
}

/// Waits for the next notice of a channel; forever, if there is no channel.
pub(super) async fn changed(channel: &mut Option<mpsc::Receiver<()>>) -> Option<()> {
    match channel {
        Some(channel) => channel.recv().await,
        None => None,
    }
}

async fn listen(sender: &mpsc::Sender<()>) {
    let groups = [
        MulticastGroup::Link,
        MulticastGroup::Neigh,
        MulticastGroup::Ipv4Ifaddr,
        MulticastGroup::Ipv6Ifaddr,
        MulticastGroup::Ipv4Route,
        MulticastGroup::Ipv6Route,
        MulticastGroup::Ipv4Rule,
        MulticastGroup::Ipv6Rule,
    ];
    let mut messages = match new_multicast_connection(&groups) {
        Ok((connection, _, messages)) => {
            tokio::spawn(connection);
            messages
        }
        Err(error) => {
            tracing::warn!(
                "routes cannot be followed: {error}; next hops are asked for each second"
            );
            return;
        }
    };
    while messages.next().await.is_some() {
        // A notice that waits stands for all.
        if let Err(mpsc::error::TrySendError::Closed(())) = sender.try_send(()) {
            return;
        }
        // What arrives meanwhile waits in the socket, and becomes the next notice.
        sleep(AT_MOST_EVERY).await;
        while messages.next().now_or_never().flatten().is_some() {}
        _ = sender.try_send(());
    }
}
