// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the life of a flow, packet by packet.

use super::*;
use crate::flow::IdleTimes;

const SYN: Signals = Signals(Signals::SYN);
const ACK: Signals = Signals(Signals::ACK);
const FIN: Signals = Signals(Signals::FIN | Signals::ACK);
const RST: Signals = Signals(Signals::RST);
const SYN_ACK: Signals = Signals(Signals::SYN | Signals::ACK);

/// Returns the state after these packets, of which the first makes the flow; true stands for a
/// reply. All sequence numbers are right.
fn after(protocol: Protocol, packets: &[(bool, Signals)]) -> FlowState {
    packets
        .iter()
        .skip(1)
        .fold(FlowState::NEW, |state, (reply, signals)| {
            let change = if *reply {
                change_by_backend(state, protocol, *signals, || true, || false)
            } else {
                change_by_client(state, protocol, *signals, || true, || true, || true)
            };
            change.of(state)
        })
}

const OPEN: [(bool, Signals); 3] = [(false, SYN), (true, SYN_ACK), (false, ACK)];

/// Returns the state of an established TCP connection after these packets.
fn open_and(packets: &[(bool, Signals)]) -> FlowState {
    after(Protocol::TCP, &[&OPEN, packets].concat())
}

#[test]
fn a_connection_is_established_by_the_clients_acknowledgement() {
    for protocol in [Protocol::TCP, Protocol::SCTP] {
        assert_eq!(after(protocol, &OPEN[..2]).phase(), Phase::Answered);
        assert!(after(protocol, &OPEN[..2]).gives_way());
        assert_eq!(after(protocol, &OPEN).phase(), Phase::Established);
        assert!(!after(protocol, &OPEN).gives_way());
    }
}

#[test]
fn an_acknowledgement_with_a_wrong_number_establishes_no_connection() {
    let answered = after(Protocol::TCP, &OPEN[..2]);
    let change = change_by_client(answered, Protocol::TCP, ACK, || true, || false, || true);
    assert!(change.of(answered).gives_way());
}

#[test]
fn a_repeated_syn_does_not_establish_a_connection() {
    for protocol in [Protocol::TCP, Protocol::SCTP] {
        let repeated = [OPEN[0], OPEN[1], OPEN[0], OPEN[1], OPEN[0]];
        assert_eq!(after(protocol, &repeated).phase(), Phase::Answered);
    }
    let forged = [(false, SYN), (true, SYN_ACK), (false, SYN_ACK)];
    assert_eq!(after(Protocol::TCP, &forged).phase(), Phase::Answered);
}

#[test]
fn a_lone_acknowledgement_is_no_answer_to_a_syn() {
    let refused = [(false, SYN), (true, ACK)];
    assert_eq!(after(Protocol::TCP, &refused).phase(), Phase::Unanswered);
}

#[test]
fn a_udp_conversation_is_established_by_the_second_request() {
    let packets = [(false, Signals::NONE), (true, Signals::NONE)];
    assert_eq!(after(Protocol::UDP, &packets).phase(), Phase::Answered);
    let packets = [packets[0], packets[1], packets[0]];
    assert_eq!(after(Protocol::UDP, &packets).phase(), Phase::Established);
    let late = [(false, SYN), (false, SYN), (true, SYN_ACK), (false, ACK)];
    assert_eq!(after(Protocol::TCP, &late), FlowState::ESTABLISHED);
}

#[test]
fn a_connection_is_closed_by_both_fins_or_one_reset() {
    assert_eq!(open_and(&[(false, FIN)]).phase(), Phase::ClosingByClient);
    assert_eq!(open_and(&[(true, FIN)]).phase(), Phase::ClosingByBackend);
    for packets in [
        &[(false, FIN), (true, FIN)][..],
        &[(true, FIN), (false, FIN)],
        &[(false, RST)],
        &[(true, RST)],
    ] {
        assert!(open_and(packets).is_closed());
        assert!(open_and(packets).gives_way());
    }
}

#[test]
fn the_state_records_if_the_backend_sent_its_fin_first() {
    let by_client = open_and(&[(false, FIN), (true, FIN)]);
    assert!(!by_client.has(FlowState::BACKEND_FIRST));
    let by_backend = open_and(&[(true, FIN), (false, FIN)]);
    assert!(by_backend.has(FlowState::BACKEND_FIRST));
}

#[test]
fn a_connection_whose_fin_nobody_answers_gives_way_and_ends_soon() {
    let times = IdleTimes::DEFAULT;
    let limit = |state| times.limit(Protocol::TCP, state) / 1_000_000_000;
    for by_backend in [false, true] {
        let closing = open_and(&[(by_backend, FIN)]);
        assert!(closing.gives_way());
        assert_eq!(limit(closing), 120);
        for own in [ACK, FIN] {
            let on = open_and(&[(by_backend, FIN), (by_backend, own)]);
            assert!(on.gives_way(), "the same side sends");
        }
        let answered = open_and(&[(by_backend, FIN), (!by_backend, ACK)]);
        assert!(!answered.gives_way());
        assert_eq!(limit(answered), 3600);
        assert_eq!(IdleTimes::AT_ONCE.limit(Protocol::TCP, closing), 0);
        let over = open_and(&[(by_backend, FIN), (!by_backend, ACK), (!by_backend, FIN)]);
        assert!(over.is_closed());
    }
}

#[test]
fn fins_of_both_sides_on_two_cpus_are_both_kept() {
    let state = open_and(&[]);
    let client = change_by_client(state, Protocol::TCP, FIN, || true, || true, || true);
    let backend = change_by_backend(state, Protocol::TCP, FIN, || true, || false);
    assert!(client.of(backend.of(state)).is_closed());
}

#[test]
fn fins_and_resets_with_a_wrong_number_do_not_end_a_connection() {
    for protocol in [Protocol::TCP, Protocol::SCTP] {
        let open = after(protocol, &OPEN);
        for signals in [FIN, RST] {
            let forged = change_by_client(open, protocol, signals, || true, || true, || false);
            assert_eq!(forged, Change::NONE);
            let forged = change_by_backend(open, protocol, signals, || false, || false);
            assert_eq!(forged, Change::NONE);
        }
    }
}

#[test]
fn a_syn_ack_on_an_established_connection_counts_only_after_a_new_syn() {
    let open = open_and(&[]);
    assert!(!takes_answer(open, SYN_ACK));
    let asked = open_and(&[(false, SYN)]);
    assert_eq!(asked.phase(), Phase::Established);
    assert!(takes_answer(asked, SYN_ACK));
    assert_eq!(open_and(&[(false, SYN), (true, SYN_ACK)]), open);
    assert_eq!(
        open_and(&[(false, SYN), (false, ACK)]),
        open,
        "it was forged"
    );
}

#[test]
fn data_after_a_reset_reopens_the_connection() {
    assert_eq!(
        open_and(&[(false, RST), (false, ACK)]),
        FlowState::ESTABLISHED
    );
    assert_eq!(
        open_and(&[(false, RST), (true, ACK)]),
        FlowState::ESTABLISHED
    );
    assert!(open_and(&[(false, RST), (false, FIN)]).is_closed());
    assert!(open_and(&[(false, RST), (false, SYN)]).is_closed());
}

#[test]
fn only_a_syn_an_init_or_a_datagram_may_begin_a_flow() {
    for protocol in [Protocol::TCP, Protocol::SCTP] {
        assert!(may_begin(protocol, SYN));
        for signals in [ACK, SYN_ACK, Signals(Signals::SYN | Signals::RST)] {
            assert!(!may_begin(protocol, signals));
        }
    }
    assert!(may_begin(Protocol::UDP, Signals::NONE));
}

#[test]
fn only_a_syn_on_a_closing_connection_begins_a_new_flow() {
    let anew =
        |signals, state| begins_anew(Protocol::TCP, signals, state, || true, || true, || true);
    for state in [
        open_and(&[(false, FIN)]),
        open_and(&[(true, FIN)]),
        open_and(&[(true, RST)]),
    ] {
        assert_eq!(anew(SYN, state), Anew::Ended);
        assert_eq!(anew(ACK, state), Anew::No);
    }
    for state in [
        FlowState::NEW,
        FlowState::ANSWERED,
        FlowState::ESTABLISHED,
        FlowState::ANSWERED.with(FlowState::REPEATED),
    ] {
        assert_eq!(anew(SYN, state), Anew::No, "{state:?}");
    }
}

#[test]
fn a_syn_or_datagram_begins_a_new_flow_if_its_backend_no_longer_serves() {
    for (protocol, signals) in [(Protocol::UDP, Signals::NONE), (Protocol::TCP, SYN)] {
        let anew = |serves| {
            begins_anew(
                protocol,
                signals,
                FlowState::ANSWERED,
                || true,
                || false,
                || serves,
            )
        };
        assert_eq!(anew(false), Anew::Ended);
        assert_eq!(anew(true), Anew::No);
    }
    let open = FlowState::ESTABLISHED;
    let anew =
        |signals, genuine| begins_anew(Protocol::TCP, signals, open, || true, || genuine, || false);
    assert_eq!(anew(ACK, true), Anew::No, "a connection keeps its backend");
    assert_eq!(anew(SYN, true), Anew::Ended);
    assert_eq!(anew(SYN, false), Anew::No, "the SYN may be forged");
}

#[test]
fn the_second_repetition_of_an_unanswered_syn_goes_to_another_backend() {
    for protocol in [Protocol::TCP, Protocol::SCTP] {
        let anew = |state, repeats| begins_anew(protocol, SYN, state, || repeats, || true, || true);
        let first = after(protocol, &[(false, SYN)]);
        assert_eq!(anew(first, true), Anew::No);
        let second = after(protocol, &[(false, SYN), (false, SYN)]);
        assert_eq!(anew(second, true), Anew::Unanswered);
        // The client's port is reused for a new connection.
        assert_eq!(anew(second, false), Anew::No);
        let another =
            change_by_client(second, protocol, SYN, || false, || true, || true).of(second);
        assert_eq!(anew(another, true), Anew::No, "its first repetition");
    }
    let datagrams = after(Protocol::UDP, &[(false, Signals::NONE); 3]);
    assert_eq!(
        begins_anew(
            Protocol::UDP,
            Signals::NONE,
            datagrams,
            || true,
            || true,
            || true
        ),
        Anew::No
    );
}

/// Returns the state of a TCP flow that was picked up mid-stream after these packets.
fn picked_up_and(packets: &[(bool, Signals)]) -> FlowState {
    packets
        .iter()
        .fold(FlowState::PICKED_UP, |state, (reply, signals)| {
            let change = if *reply {
                change_by_backend(state, Protocol::TCP, *signals, || true, || false)
            } else {
                change_by_client(state, Protocol::TCP, *signals, || true, || true, || true)
            };
            change.of(state)
        })
}

#[test]
fn a_picked_up_connection_is_established_by_backend_then_client_packets() {
    let by_client = picked_up_and(&[(false, ACK), (false, ACK)]);
    assert!(by_client.gives_way(), "a client alone proves nothing");
    assert_eq!(by_client.phase(), Phase::Unanswered);
    let answered = picked_up_and(&[(true, ACK)]);
    assert_eq!(answered.phase(), Phase::Answered);
    assert!(answered.gives_way());
    let wrong = change_by_client(answered, Protocol::TCP, ACK, || true, || false, || true);
    assert!(wrong.of(answered).gives_way());
    let open = picked_up_and(&[(true, ACK), (false, ACK)]);
    assert_eq!(open, FlowState::ESTABLISHED);
    let by_fin = picked_up_and(&[(true, ACK), (false, FIN)]);
    assert_eq!(by_fin.phase(), Phase::ClosingByClient);
    assert!(picked_up_and(&[(true, RST)]).is_closed());
    assert!(picked_up_and(&[(false, FIN), (true, FIN)]).is_closed());
}

#[test]
fn only_the_first_ack_reply_of_a_picked_up_connection_is_its_answer() {
    assert!(takes_answer(FlowState::PICKED_UP, ACK));
    for other in [SYN, FIN, RST] {
        assert!(!takes_answer(FlowState::PICKED_UP, other));
    }
    let answered = FlowState::PICKED_UP.with(FlowState::ANSWERED);
    assert!(!takes_answer(answered, ACK));
    assert!(!takes_answer(FlowState::NEW, ACK));
}

#[test]
fn a_connection_whose_client_is_silent_after_data_ends_sooner() {
    let reply =
        |state, data| change_by_backend(state, Protocol::TCP, ACK, || true, || data).of(state);
    let limit = |state| IdleTimes::DEFAULT.limit(Protocol::TCP, state) / 1_000_000_000;
    let sent = reply(FlowState::ESTABLISHED, true);
    assert_eq!((limit(sent), limit(reply(sent, false))), (300, 300));
    assert!(!sent.gives_way());
    let received = change_by_client(sent, Protocol::TCP, ACK, || true, || true, || true).of(sent);
    assert_eq!(received, FlowState::ESTABLISHED);
    assert_eq!(
        (limit(received), limit(reply(received, false))),
        (86_400, 86_400)
    );
}

#[test]
fn a_syn_on_a_picked_up_connection_begins_a_new_flow() {
    let answered = FlowState::PICKED_UP.with(FlowState::ANSWERED);
    for state in [FlowState::PICKED_UP, answered] {
        let anew = |signals| begins_anew(Protocol::TCP, signals, state, || true, || false, || true);
        assert_eq!(anew(SYN), Anew::Ended);
        assert_eq!(anew(ACK), Anew::No);
    }
}
