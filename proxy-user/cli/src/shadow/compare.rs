// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares connections in nf_conntrack, which another proxy has translated, with the decisions of
//! portolan's policy; sums up the result for each service port. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use datapath::read::{Decision, Fate};
use linux::Tracked;
use proxy_common::verdict::is_hairpin;
use serde::Serialize;

use crate::some;

/// Whether the other proxy has treated a connection as portolan would. The texts describe the
/// connection.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Judgement {
    Same,
    /// The other proxy sent the connection to an endpoint that portolan would not choose from.
    Different(String),
    /// The connection went to an endpoint that portolan could choose, but only one of both proxies
    /// masquerades it.
    MasqueradedDifferently(String),
}

/// The result for one service port: how many connections were treated the same, and how many not.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    pub(super) service: String,
    pub(super) same: u32,
    pub(super) different: u32,
    pub(super) masqueraded_differently: u32,
    /// A description of the first connection that differs; None if none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) example: Option<String>,
}

impl Row {
    fn of(service: String) -> Self {
        Self {
            service,
            ..Self::default()
        }
    }
    pub(super) fn connections(&self) -> u32 {
        self.same + self.different + self.masqueraded_differently
    }
    pub(super) fn result(&self) -> &'static str {
        match self {
            Self { different: 1.., .. } => "different",
            Self {
                masqueraded_differently: 1..,
                ..
            } => "masqueraded differently",
            Self { same: 1.., .. } => "same",
            _ => "never seen",
        }
    }
}

/// How many service ports have each result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    same: usize,
    different: usize,
    masqueraded_differently: usize,
    never_seen: usize,
}

impl Summary {
    pub(super) fn of(rows: &[Row]) -> Self {
        let count = |result| rows.iter().filter(|row| row.result() == result).count();
        Self {
            same: count("same"),
            different: count("different"),
            masqueraded_differently: count("masqueraded differently"),
            never_seen: count("never seen"),
        }
    }
    pub(super) fn differs(&self) -> bool {
        self.different + self.masqueraded_differently > 0
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            same,
            different,
            masqueraded_differently,
            never_seen,
        } = self;
        write!(
            f,
            "service ports: {same} same, {different} different, {masqueraded_differently} masqueraded differently, {never_seen} never seen"
        )
    }
}

/// The results so far. Key: the service port.
#[derive(Debug, Default)]
pub(super) struct Comparison(BTreeMap<String, Row>);

impl Comparison {
    /// Creates a comparison with these service ports, without any connection yet.
    pub(super) fn new(services: BTreeSet<String>) -> Self {
        let rows = services.into_iter();
        Self(
            rows.map(|service| (service.clone(), Row::of(service)))
                .collect(),
        )
    }

    pub(super) fn add(&mut self, decision: &Decision, connection: &Tracked) {
        let row = self.0.entry(decision.service.clone());
        let row = row.or_insert_with_key(|service| Row::of(service.clone()));
        let example = match judge(&decision.fate, connection) {
            Judgement::Same => {
                row.same += 1;
                return;
            }
            Judgement::Different(example) => {
                // A wrong endpoint is worse than a different source address, so it replaces the
                // example.
                if row.different == 0 {
                    row.example = None;
                }
                row.different += 1;
                example
            }
            Judgement::MasqueradedDifferently(example) => {
                row.masqueraded_differently += 1;
                example
            }
        };
        row.example.get_or_insert(example);
    }

    /// Returns the results, sorted by service port.
    pub(super) fn rows(self) -> Vec<Row> {
        self.0.into_values().collect()
    }
}

fn judge(fate: &Fate, connection: &Tracked) -> Judgement {
    let (original, reply) = (connection.original, connection.reply);
    let (client, service, backend) = (original.src, original.dst, reply.src);
    let sent = |to: &dyn fmt::Display| {
        let protocol = connection.protocol.name();
        format!("{protocol} {client} -> {service} went to {to}")
    };
    let (endpoints, masquerade) = match fate {
        Fate::Refuse(how) => {
            return Judgement::Different(format!("{}; portolan: {how}", sent(&backend)));
        }
        Fate::Forward {
            endpoints,
            masquerade,
        } => (endpoints, masquerade),
    };
    if !endpoints.contains(&backend) {
        let said = if backend == service {
            sent(&"nobody else, untranslated")
        } else {
            sent(&backend)
        };
        return Judgement::Different(format!("{said}; portolan: one of {}", some(&**endpoints)));
    }
    let is_masqueraded = reply.dst.ip() != client.ip();
    match masquerade {
        Some(masquerade)
            if (*masquerade || is_hairpin(client.ip(), backend.ip())) != is_masqueraded =>
        {
            let other = if is_masqueraded {
                "with the client's own address"
            } else {
                "with an address of the node"
            };
            let seen_as = reply.dst;
            Judgement::MasqueradedDifferently(format!(
                "{} as {seen_as}; portolan: {other}",
                sent(&backend)
            ))
        }
        _ => Judgement::Same,
    }
}

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, rc::Rc};

    use proxy_common::Protocol;

    use super::*;
    use linux::Tuple;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address and port")
    }

    const CLIENT: &str = "10.40.1.10:40000";

    /// Returns a connection to the service that went to `backend`. `seen_as`: the client's address
    /// as the backend sees it.
    fn connection(backend: &str, seen_as: &str) -> Tracked {
        Tracked {
            protocol: Protocol::TCP,
            original: Tuple {
                src: at(CLIENT),
                dst: at("172.30.1.1:80"),
            },
            reply: Tuple {
                src: at(backend),
                dst: at(seen_as),
            },
            status: 0,
            id: 0,
            timeout: 0,
            mark: 0,
            zone: 0,
            protocol_info: Vec::new(),
        }
    }

    fn forward(masquerade: Option<bool>) -> Fate {
        let endpoints = ["10.40.1.20:8080", "10.40.2.20:8080", "10.40.1.10:8080"];
        Fate::Forward {
            endpoints: Rc::new(endpoints.map(at).into()),
            masquerade,
        }
    }

    #[test]
    fn a_connection_to_one_of_portolans_choices_counts_as_the_same() {
        let went = connection("10.40.2.20:8080", CLIENT);
        assert_eq!(judge(&forward(Some(false)), &went), Judgement::Same);
    }

    #[test]
    fn a_connection_to_another_backend_is_reported_with_both_choices() {
        let said = |fate: &Fate, backend| match judge(fate, &connection(backend, CLIENT)) {
            Judgement::Different(said) => said,
            other => panic!("{other:?}"),
        };
        let kept = forward(Some(false));
        assert_eq!(
            said(&kept, "10.40.9.9:8080"),
            "TCP 10.40.1.10:40000 -> 172.30.1.1:80 went to 10.40.9.9:8080; portolan: one of 10.40.1.10:8080, 10.40.1.20:8080, 10.40.2.20:8080"
        );
        assert!(said(&kept, "172.30.1.1:80").contains("untranslated"));
        let refused = said(&Fate::Refuse("rejected"), "10.40.1.20:8080");
        assert!(refused.ends_with("portolan: rejected"), "{refused}");
    }

    #[test]
    fn another_source_address_differs_unless_the_client_reaches_itself() {
        let kept = connection("10.40.1.20:8080", CLIENT);
        let replaced = connection("10.40.1.20:8080", "10.40.0.1:40000");
        for (masquerade, went) in [(true, &kept), (false, &replaced)] {
            let judged = judge(&forward(Some(masquerade)), went);
            assert!(
                matches!(judged, Judgement::MasqueradedDifferently(_)),
                "{judged:?}"
            );
            assert_eq!(judge(&forward(Some(!masquerade)), went), Judgement::Same);
            assert_eq!(judge(&forward(None), went), Judgement::Same);
        }
        let itself = connection("10.40.1.10:8080", "10.40.0.1:40000");
        assert_eq!(judge(&forward(Some(false)), &itself), Judgement::Same);
        // Another port of the client's own address does not count as masqueraded.
        let port = connection("10.40.1.20:8080", "10.40.1.10:55555");
        assert_eq!(judge(&forward(Some(false)), &port), Judgement::Same);
    }

    #[test]
    fn the_worst_connection_decides_the_service_ports_result() {
        let services = ["shop/cart", "shop/quiet"].map(str::to_owned);
        let mut comparison = Comparison::new(services.into());
        let decision = Decision {
            service: "shop/cart".into(),
            fate: forward(Some(false)),
        };
        comparison.add(&decision, &connection("10.40.1.20:8080", CLIENT));
        comparison.add(&decision, &connection("10.40.1.20:8080", "10.40.0.1:1"));
        comparison.add(&decision, &connection("10.40.9.9:8080", CLIENT));
        let rows = comparison.rows();
        let results: Vec<_> = rows.iter().map(Row::result).collect();
        assert_eq!(results, ["different", "never seen"]);
        assert_eq!(rows[0].connections(), 3);
        let example = rows[0].example.as_ref().expect("an example");
        assert!(example.contains("10.40.9.9"), "{example}");
        let summary = Summary::of(&rows);
        assert!(summary.differs());
        assert_eq!(
            summary.to_string(),
            "service ports: 0 same, 1 different, 0 masqueraded differently, 1 never seen"
        );
        assert!(!Summary::of(&rows[1..]).differs());
    }
}
