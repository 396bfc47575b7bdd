// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads netfilter: chains that forward, rules of others, another proxy's, and the client's
//! connections in nf_conntrack. Called by `look`.

use std::{io, net::SocketAddr};

use datapath::read::{Asked, Explained};

use super::{
    host::{Chain, Host, PassedHooks, SentElsewhere},
    look::number,
};
use crate::check::finding::Finding;

/// With more connections than this in nf_conntrack, its table is not searched, because that would
/// take too long.
const TRACKED: u64 = 65_536;

/// Reads netfilter into the facts about the host.
pub(super) fn read(host: &mut Host, asked: &Asked, explained: &Explained) {
    match forward_chains(host.v6) {
        Ok(chains) => host.chains = chains,
        Err(error) => host
            .unread
            .push(Finding::unread("chains that forward", &error)),
    }
    match linux::nft_chains() {
        Ok(chains) => host.kube_proxy = chains,
        Err(error) => host.unread.push(Finding::unread("nf_tables", &error)),
    }
    let passed = PassedHooks::new(host);
    match linux::rules_of_others(|chain| passed.contain(chain)) {
        Ok(rules) => host.rules = rules,
        Err(error) => host
            .unread
            .push(Finding::unread("rules of nf_tables", &error)),
    }
    match linux::legacy_rules(host.v6, &passed.hooks) {
        Ok(rules) => host.legacy_rules = rules,
        Err(error) => host
            .unread
            .push(Finding::unread("rules of iptables-legacy", &error)),
    }
    let count = number("netfilter/nf_conntrack_count").unwrap_or(0);
    if count > TRACKED {
        let found = format!("holds {count} connections, too many to look through here");
        host.unread.push(Finding::note("nf_conntrack", found));
        return;
    }
    let mut tracked = Vec::new();
    let visited = linux::tracked(|connection| {
        let is_to = |to: SocketAddr| to == asked.to || explained.to.contains(&to);
        let original = connection.original;
        let is_own = connection.protocol == asked.protocol
            && original.src.ip() == asked.client
            && (asked.client_port == 0 || original.src.port() == asked.client_port)
            && is_to(original.dst);
        if is_own && connection.is_sent_elsewhere() {
            tracked.push(SentElsewhere {
                client: original.src,
                to: original.dst,
                sent_to: connection.reply.src,
            });
        }
    });
    match visited {
        Ok(()) => host.tracked = tracked,
        Err(error) => host.unread.push(Finding::unread("nf_conntrack", &error)),
    }
}

fn forward_chains(v6: bool) -> io::Result<Vec<Chain>> {
    let mut found = Vec::new();
    for chain in linux::forward_chains()? {
        if !chain.sees(v6) {
            continue;
        }
        let own = chain.own_rules()?.len();
        found.push(Chain {
            name: chain.to_string(),
            drops: chain.drops(),
            rules: chain.rules()? > own,
            accepts_ours: own > 0,
        });
    }
    let legacy = linux::legacy_forward()?.into_iter();
    found.extend(legacy.filter(|chain| chain.v6 == v6).map(|chain| Chain {
        name: format!("FORWARD of {}", chain.program),
        drops: chain.drops,
        rules: chain.has_rules,
        accepts_ours: false,
    }));
    Ok(found)
}
