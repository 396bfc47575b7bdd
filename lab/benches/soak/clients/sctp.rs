// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client that sends the first packet of an SCTP association and reads the second, from a new
//! port each time.

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
};

use lab::traffic::{clients, probe::Outcome};
use proxy_common::Protocol;

use super::{Begun, Calls, Client};
use crate::record::Exchange;

#[derive(Default)]
pub(super) struct Associations;

impl Client for Associations {
    fn exchange(&mut self, calls: &mut Calls<'_>, note: &mut dyn FnMut(Exchange)) {
        let mut begun = Begun::now(calls.address());
        let answer = answer(calls, &mut begun);
        note(begun.ends(&answer));
    }
}

fn answer(calls: &Calls<'_>, begun: &mut Begun) -> io::Result<()> {
    // A loopback address here makes the kernel choose the source.
    let client = clients::Client::new(calls.namespace, IpAddr::V4(Ipv4Addr::LOCALHOST));
    let attempt = client.call(Protocol::SCTP, begun.to, 0);
    let attempt = attempt.map_err(|error| io::Error::other(format!("{error:#}")))?;
    begun.local = Some(attempt.source);
    match attempt.outcome {
        Outcome::Answered(_) => Ok(()),
        other => Err(io::Error::other(format!("{other:?}"))),
    }
}
