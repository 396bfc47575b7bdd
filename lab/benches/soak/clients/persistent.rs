// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients that hold connections to pods of which one goes without a word. The connections to it
//! end; all others stay.

use std::{
    io::{self, ErrorKind},
    time::Duration,
};

use super::{Calls, Client, streams::Open};
use crate::{pods::Phase, record::Begun};

/// How many connections a client holds, and how many more once the new pod is there. So many that
/// each of four pods has some.
const COUNT: usize = 24;
/// Connections to the pod that has gone must have ended after this time: 3 s until it counts as
/// gone, two walks through the flow table, and the next repetition of a segment.
const TO_END: Duration = Duration::from_secs(25);
/// A silent client sends again after this time.
const SILENCE: Duration = Duration::from_secs(11);

/// A connection that is held, the last exchange on it, and what had become of the pod that goes
/// when it was opened.
type Held = (Open, Begun, Phase);

/// A client that holds connections.
#[derive(Default)]
pub(super) struct Holder {
    held: Vec<Option<Held>>,
    next: usize,
}

impl Client for Holder {
    fn exchange(&mut self, calls: &mut Calls<'_>) {
        let departure = &calls.world.departure;
        let phase = departure.phase();
        let count = match phase {
            Phase::Replaced(_) => 2 * COUNT,
            _ => COUNT,
        };
        self.held.resize_with(count, || None);
        self.next = (self.next + 1) % count;
        let is_silent = self.next.is_multiple_of(2);
        let held = &mut self.held[self.next];
        if let Some((open, begun, opened)) = held
            && departure.concerns(open.by, *opened)
        {
            if is_over(open, *begun, calls, phase, is_silent) {
                *held = None;
            }
            return;
        }
        let (mut kept, opened) = match held.take() {
            Some((open, begun, opened)) => (Some((open, begun)), opened),
            None => (None, phase),
        };
        Open::ask(&mut kept, calls, (0, u32::MAX, 100));
        *held = kept.map(|(open, begun)| (open, begun, opened));
    }
}

/// Returns whether the connection to the pod that goes has ended, or should have, and counts it.
fn is_over(
    held: &mut Open,
    last: Begun,
    calls: &mut Calls<'_>,
    phase: Phase,
    is_silent: bool,
) -> bool {
    let (Phase::Gone(at) | Phase::Replaced(at)) = phase else {
        return false;
    };
    let speaks = !is_silent || at.elapsed() >= SILENCE;
    let begun = last.again();
    let departure = &calls.world.departure;
    let has_to_end = departure.has_to_end;
    let fault = match held.connection.end(calls, speaks) {
        None if has_to_end && at.elapsed() >= TO_END => {
            io::Error::other("the pod has gone, and the connection hangs")
        }
        None => return false,
        Some(error)
            if !has_to_end
                || [ErrorKind::ConnectionReset, ErrorKind::ConnectionAborted]
                    .contains(&error.kind()) =>
        {
            departure.count(calls.tally.plan.origin.is_at_socket());
            return true;
        }
        Some(error) => error,
    };
    calls.note(&begun.ends::<()>(&Err(fault)));
    true
}
