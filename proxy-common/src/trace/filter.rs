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
            *address == before.src
                || *address == before.dst
                || *address == after.src
                || *address == after.dst
        };
        let is_given = |address: &V6| *address != V6::UNSPECIFIED;
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

#[cfg(test)]
mod tests {
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

    #[test]
    fn a_filter_wants_what_meets_all_its_conditions() {
        type Set = fn(&mut Filter);
        let met: [Set; 12] = [
            |_| {},
            |filter| filter.clients[0] = wide(CLIENT),
            |filter| filter.clients[0] = wide(SERVICE),
            |filter| filter.clients[0] = wide(BACKEND),
            |filter| filter.clients = [OTHER, CLIENT].map(wide),
            |filter| filter.port = Port::from_host(1025),
            |filter| filter.port = Port::from_host(80),
            |filter| filter.port = Port::from_host(8080),
            |filter| filter.services[0] = 3,
            |filter| filter.services[..3].copy_from_slice(&[1, 2, 3]),
            |filter| filter.protocol = Protocol::TCP,
            |filter| (filter.services[0], filter.port) = (3, Port::from_host(80)),
        ];
        let unmet: [Set; 6] = [
            |filter| filter.clients[0] = wide(OTHER),
            |filter| filter.port = Port::from_host(81),
            |filter| filter.services[0] = 4,
            |filter| filter.protocol = Protocol::UDP,
            // A packet has no process.
            |filter| filter.process = 42,
            |filter| (filter.services[0], filter.port) = (3, Port::from_host(81)),
        ];
        let met = met.into_iter().map(|set| (set, true));
        for (set, wanted) in met.chain(unmet.map(|set| (set, false))) {
            let mut filter = Filter::all(0);
            set(&mut filter);
            assert_eq!(filter.wants(&event()), wanted, "{filter:?}");
        }
    }

    #[test]
    fn zeros_behind_the_last_value_match_nothing() {
        let unread = Event {
            process: 42,
            ..Event::EMPTY
        };
        let [mut of_service, mut of_client, mut of_process] = [Filter::all(0); 3];
        of_service.services[0] = 3;
        of_client.clients[0] = wide(CLIENT);
        of_process.process = 42;
        assert!(!of_service.wants(&unread) && !of_client.wants(&unread));
        assert!(of_process.wants(&unread));
    }
}
