// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of what a comparison packet by packet does not reach: packets on two processors at once,
//! and idle times. What each packet does to a flow's state: `proxy-user/tests/fuzz`, whose model
//! has the same bits.

use super::*;
use crate::flow::IdleTimes;

const ACK: Signals = Signals(Signals::ACK);
const FIN: Signals = Signals(Signals::FIN | Signals::ACK);

fn client_sends(state: FlowState, signals: Signals) -> Change {
    change_by_client(state, Protocol::TCP, signals, || true, || true, || true)
}

fn backend_sends(state: FlowState, signals: Signals) -> Change {
    change_by_backend(state, Protocol::TCP, signals, || true, || false)
}

#[test]
fn fins_of_both_sides_on_two_cpus_are_both_kept() {
    let state = FlowState::ESTABLISHED;
    let (client, backend) = (client_sends(state, FIN), backend_sends(state, FIN));
    assert!(client.of(backend.of(state)).is_closed());
}

#[test]
fn a_connection_whose_fin_nobody_answers_gives_way_and_ends_soon() {
    let times = IdleTimes::DEFAULT;
    let limit = |state| times.limit(Protocol::TCP, state) / 1_000_000_000;
    let open = FlowState::ESTABLISHED;
    let by_client = client_sends(open, FIN).of(open);
    let by_backend = backend_sends(open, FIN).of(open);
    for (closing, answered) in [
        (by_client, backend_sends(by_client, ACK).of(by_client)),
        (by_backend, client_sends(by_backend, ACK).of(by_backend)),
    ] {
        assert!(closing.gives_way());
        assert_eq!(limit(closing), 120);
        assert_eq!(IdleTimes::AT_ONCE.limit(Protocol::TCP, closing), 0);
        assert!(!answered.gives_way());
        assert_eq!(limit(answered), 3600);
    }
}

#[test]
fn a_connection_whose_client_is_silent_after_data_ends_sooner() {
    let sends =
        |state, data| change_by_backend(state, Protocol::TCP, ACK, || true, || data).of(state);
    let limit = |state| IdleTimes::DEFAULT.limit(Protocol::TCP, state) / 1_000_000_000;
    let sent = sends(FlowState::ESTABLISHED, true);
    assert_eq!((limit(sent), limit(sends(sent, false))), (300, 300));
    assert!(!sent.gives_way());
    let received = client_sends(sent, ACK).of(sent);
    assert_eq!(received, FlowState::ESTABLISHED);
    assert_eq!(limit(sends(received, false)), 86_400);
}
