// SPDX-License-Identifier: Apache-2.0 OR MIT
//! With `xdp`: listens to changes of routes, neighbours, rules, addresses and interfaces, so that
//! XDP's stored next hops are looked up again at once. Without these messages XDP uses a stored
//! next hop for a second at most. Started by `agent::run`.

use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use rtnetlink::{MulticastGroup, new_multicast_connection};
use tokio::{sync::mpsc, time::sleep};

/// The shortest time between two notices of changed routes: neighbours are confirmed all the time.
const AT_MOST_EVERY: Duration = Duration::from_millis(20);
/// Pause before listening to the kernel is tried again.
const PAUSE: Duration = Duration::from_secs(5);

/// Returns a channel that gets a notice after each change of routes; several changes at about the
/// same time make one notice.
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

/// Waits for the next notice of a channel. Without a channel, returns None at once, which `select!`
/// in the agent's loop ignores.
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
        // One notice that still waits in the channel is enough.
        if let Err(mpsc::error::TrySendError::Closed(())) = sender.try_send(()) {
            return;
        }
        // Messages that arrive during this pause wait in the socket, and become the next notice.
        sleep(AT_MOST_EVERY).await;
        while messages.next().now_or_never().flatten().is_some() {}
        _ = sender.try_send(());
    }
}
