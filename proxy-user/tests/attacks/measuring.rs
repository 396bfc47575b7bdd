// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Without a proxy no attack harms the clients, so what the other tests measure is the proxy, not a
//! limit of clients or servers.

use std::time::Duration;

use lab::attacks::{
    kinds::{self, Closes, From},
    proxies::Proxy,
};

use crate::node::attacked;

#[test]
fn without_a_proxy_floods_break_no_connection() {
    let length = Duration::from_secs(2);
    let seen = attacked(Proxy::Direct, "", |served| {
        kinds::syn_flood(served, From::Outside, 200, length)
    });
    assert_eq!((seen.lost, seen.open), (0, 200), "{seen:?}");
    assert!(seen.sent > 5_000, "a flood: {seen:?}");
    assert!(seen.during.share() >= 0.95, "{seen:?}");
    let seen = attacked(Proxy::Direct, "", |served| {
        kinds::datagram_flood(served, length)
    });
    assert!(seen.sent > 5_000, "a flood: {seen:?}");
    assert!(seen.queries.share() >= 0.95, "{seen:?}");
}

#[test]
fn without_a_proxy_short_connections_never_fail() {
    let window = Duration::from_secs(1);
    for closes in [Closes::Client, Closes::Server] {
        let seen = attacked(Proxy::Direct, "", |served| {
            kinds::short(served, closes, 2, window)
        });
        assert_eq!(seen.failed, 0, "{closes:?}: {seen:?}");
        assert!(seen.kept() > 0.3, "{closes:?}: {seen:?}");
    }
}
