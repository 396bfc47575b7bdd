// SPDX-License-Identifier: Apache-2.0 OR MIT
//! With `xdp`: listens to changes of routes, neighbours, rules, addresses and interfaces, so that
//! XDP's stored next hops are looked up again at once. Without these messages XDP uses a stored
//! next hop for a second at most. Started by `agent::run`.

use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use linux::interfaces::subscribe;
use rtnetlink::MulticastGroup;
use tokio::{sync::mpsc, time::sleep};

/// The shortest time between two notices of changed routes: neighbours are confirmed all the time.
const AT_MOST_EVERY: Duration = Duration::from_millis(20);
/// Pause before listening to the kernel is tried again.
const PAUSE: Duration = Duration::from_secs(5);

/// Sends a notice after each change of routes; several changes at about the same time make one
/// notice. Ends when the receiver is closed.
pub(super) async fn follow(notices: mpsc::Sender<()>) {
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
    while !notices.is_closed() {
        match subscribe(&groups) {
            Ok(mut messages) => {
                while messages.next().await.is_some() {
                    // One notice that still waits in the channel is enough.
                    if let Err(mpsc::error::TrySendError::Closed(())) = notices.try_send(()) {
                        return;
                    }
                    // Messages that arrive during this pause wait in the socket, and become the
                    // next notice.
                    sleep(AT_MOST_EVERY).await;
                    while messages.next().now_or_never().flatten().is_some() {}
                    _ = notices.try_send(());
                }
            }
            Err(error) => tracing::warn!(
                "routes cannot be followed: {error}; next hops are asked for each second"
            ),
        }
        sleep(PAUSE).await;
    }
}
