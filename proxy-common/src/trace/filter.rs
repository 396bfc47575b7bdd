// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which events `portolan trace` wants. The same function runs in the kernel and on the host.

use super::Event;
use crate::{Addr, Port, Protocol, V6};

/// Maximum number of service ports in a filter.
pub const SERVICES: usize = 16;
/// Maximum number of a client's addresses. KUBE: a pod has one of each family.
pub const CLIENTS: usize = 2;

/// An event is wanted if it meets all conditions. A condition on addresses, ports or the protocol
/// is met by either end, before or after translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Filter {
    /// The outcomes that are wanted, one bit for each: checked first, because most packets concern
    /// no service.
    pub outcomes: u64,
    /// Addresses, and zeros after the last one; all zeros: any.
    pub clients: [V6; CLIENTS],
    /// Ids of service ports, and zeros after the last one; all zeros: any.
    pub services: [u32; SERVICES],
    /// The process of a socket call; 0: any, and packets.
    pub process: u32,
    /// 0: any.
    pub port: Port,
    /// 0: any.
    pub protocol: Protocol,
    pub _pad: u8,
}

impl Filter {
    /// Returns a filter that wants every event whose outcome is in this mask.
    pub const fn all(outcomes: u64) -> Self {
        Self {
            outcomes,
            clients: [V6::UNSPECIFIED; CLIENTS],
            services: [0; SERVICES],
            process: 0,
            port: Port::ANY,
            protocol: Protocol::ANY,
            _pad: 0,
        }
    }

    /// Whether the filter may want an event with this outcome.
    #[inline(always)]
    pub fn wants_outcome(&self, event: &Event) -> bool {
        self.outcomes >> (event.outcome & 63) & 1 != 0
    }

    /// Whether the event meets all conditions but that on its outcome.
    #[inline(always)]
    pub fn wants(&self, event: &Event) -> bool {
        let (before, after) = (&event.before, &event.after);
        let has = |address: &V6| {
            is(address, &before.src)
                || is(address, &before.dst)
                || is(address, &after.src)
                || is(address, &after.dst)
        };
        let is_given = |address: &V6| !is(address, &V6::UNSPECIFIED);
        let [first, second] = &self.clients;
        // VERIFIER: all are compared, without a branch for each.
        let of_service = |id: u32| {
            self.services
                .iter()
                .fold(false, |found, one| found | (*one == id))
        };
        (self.process == 0 || event.process == self.process)
            && (self.protocol == Protocol::ANY
                || before.protocol == self.protocol
                || after.protocol == self.protocol)
            && (self.port == Port::ANY
                || before.src_port == self.port
                || before.dst_port == self.port
                || after.src_port == self.port
                || after.dst_port == self.port)
            && (self.services[0] == 0 || event.service != 0 && of_service(event.service))
            && (!is_given(first) || has(first) || is_given(second) && has(second))
    }
}

/// Whether two addresses are the same; by words, because `==` would become a call.
#[inline(always)]
fn is(one: &V6, other: &V6) -> bool {
    let (one, other) = (one.words(), other.words());
    (one[0] ^ other[0]) | (one[1] ^ other[1]) | (one[2] ^ other[2]) | (one[3] ^ other[3]) == 0
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::{Counter, V4, trace::Tuple};

    fn wide(octets: [u8; 4]) -> V6 {
        V4 { octets }.widened()
    }

    const CLIENT: [u8; 4] = [10, 0, 0, 5];
    const SERVICE: [u8; 4] = [10, 96, 0, 10];
    const BACKEND: [u8; 4] = [10, 40, 1, 10];
    const OTHER: [u8; 4] = [10, 40, 1, 11];

    /// A client's packet to a service, which gets a backend's address.
    fn event() -> Event {
        let tuple = |dst, dst_port| Tuple {
            src: wide(CLIENT),
            dst: wide(dst),
            src_port: Port::from_host(1025),
            dst_port: Port::from_host(dst_port),
            protocol: Protocol::TCP,
            family: 4,
            ..Tuple::NONE
        };
        Event {
            before: tuple(SERVICE, 80),
            after: tuple(BACKEND, 8080),
            outcome: Counter::ForwardedNew as u32,
            service: 3,
            ..Event::EMPTY
        }
    }

    /// Returns a filter with these conditions, of which no other is set.
    fn with(set: impl FnOnce(&mut Filter)) -> Filter {
        let mut filter = Filter::all(0);
        set(&mut filter);
        filter
    }

    fn clients(clients: &[[u8; 4]]) -> Filter {
        with(|filter| {
            for (place, address) in filter.clients.iter_mut().zip(clients) {
                *place = wide(*address);
            }
        })
    }

    fn services(ids: &[u32]) -> Filter {
        with(|filter| filter.services[..ids.len()].copy_from_slice(ids))
    }

    fn port(port: u16) -> Filter {
        with(|filter| filter.port = Port::from_host(port))
    }

    fn protocol(protocol: Protocol) -> Filter {
        with(|filter| filter.protocol = protocol)
    }

    fn process(process: u32) -> Filter {
        with(|filter| filter.process = process)
    }

    #[rstest]
    #[case::anything(Filter::all(0), true)]
    #[case::source(clients(&[CLIENT]), true)]
    #[case::destination_before(clients(&[SERVICE]), true)]
    #[case::destination_after(clients(&[BACKEND]), true)]
    #[case::other_address(clients(&[OTHER]), false)]
    #[case::second_address(clients(&[OTHER, CLIENT]), true)]
    #[case::source_port(port(1025), true)]
    #[case::port_before(port(80), true)]
    #[case::port_after(port(8080), true)]
    #[case::other_port(port(81), false)]
    #[case::service(services(&[3]), true)]
    #[case::last_service(services(&[1, 2, 3]), true)]
    #[case::other_service(services(&[4]), false)]
    #[case::protocol(protocol(Protocol::TCP), true)]
    #[case::other_protocol(protocol(Protocol::UDP), false)]
    #[case::a_packet_has_no_process(process(42), false)]
    #[case::all_conditions(Filter { port: Port::from_host(80), ..services(&[3]) }, true)]
    #[case::all_conditions_but_one(Filter { port: Port::from_host(81), ..services(&[3]) }, false)]
    fn a_filter_wants_what_meets_all_its_conditions(#[case] filter: Filter, #[case] wanted: bool) {
        assert_eq!(filter.wants(&event()), wanted);
    }

    #[test]
    fn zeros_behind_the_last_value_match_nothing() {
        let unread = Event {
            process: 42,
            ..Event::EMPTY
        };
        assert!(!services(&[3]).wants(&unread), "of no service");
        assert!(!clients(&[CLIENT]).wants(&unread), "without addresses");
        assert!(process(42).wants(&unread));
    }

    #[test]
    fn a_filter_wants_only_the_outcomes_in_its_mask() {
        let event = event();
        assert!(Filter::all(1 << Counter::ForwardedNew as u32).wants_outcome(&event));
        assert!(!Filter::all(1 << Counter::Untouched as u32).wants_outcome(&event));
    }
}
