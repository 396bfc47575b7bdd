// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the servers over real sockets on loopback.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream},
    time::Duration,
};

use control::{object::ObjectName, plan::HealthCheckPlan, warnings::Warnings};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    health::{self, AppliedNode, Health},
    serve,
    service_health::{self, Update},
};
use crate::metrics::HealthAnswers;

const SOON: Duration = Duration::from_secs(10);

/// Returns the complete answer to a GET request at a port of loopback; None without an answer.
async fn get(port: u16, path: &'static str) -> Option<String> {
    let asking = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    });
    asking.await.expect("no panic")
}

/// Asks again until there is an answer.
async fn until<T>(what: &str, asked: impl AsyncFn() -> Option<T>) -> T {
    let waiting = async {
        loop {
            match asked().await {
                Some(answer) => return answer,
                None => sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let answer = timeout(SOON, waiting).await;
    answer.unwrap_or_else(|_| panic!("not in time: {what}"))
}

/// Repeats a GET request until the answer contains all these texts.
async fn answer_with(port: u16, texts: &[&str]) -> String {
    let has_all = |answer: &String| texts.iter().all(|text| answer.contains(text));
    let asked = async || get(port, "/").await.filter(has_all);
    until(&texts.join(", "), asked).await
}

/// Returns a listener at a port of its own, and the port.
async fn listen(at: Ipv4Addr) -> (TcpListener, u16) {
    let listener = TcpListener::bind((at, 0)).await.expect("bind");
    let port = listener.local_addr().expect("bound").port();
    (listener, port)
}

async fn free_port() -> u16 {
    listen(Ipv4Addr::LOCALHOST).await.1
}

#[tokio::test]
async fn healthz_shows_the_node_and_its_eligibility_and_livez_ignores_it() {
    let (listener, port) = listen(Ipv4Addr::LOCALHOST).await;
    let (health, stop) = (Health::default(), CancellationToken::new());
    let router = health::router(health.clone(), HealthAnswers::default());
    let serving = tokio::spawn(serve(listener, router, stop.clone()));
    let answers = async |path: &'static str, texts: &[&str]| {
        let answer = get(port, path).await.expect("an answer");
        for text in texts {
            assert!(answer.contains(text), "{text}: {answer}");
        }
    };
    let late = "the lists of objects have not arrived yet";
    answers("/healthz", &["HTTP/1.1 503", "\"lastUpdated\":null", late]).await;
    answers("/livez", &["HTTP/1.1 200"]).await;

    let node = AppliedNode {
        name: "node-a".into(),
        resource_version: "7".into(),
    };
    health.set_applied(Some(node.clone()), true);
    let named = r#""nodeEligible":true,"node":{"name":"node-a","resourceVersion":"7"}"#;
    answers("/healthz", &["HTTP/1.1 200", named, "\"lastUpdated\":\"20"]).await;

    health.set_applied(Some(node), false);
    answers("/healthz", &["HTTP/1.1 503", "\"nodeEligible\":false"]).await;
    answers("/livez", &["HTTP/1.1 200"]).await;

    stop.cancel();
    let ended = timeout(SOON, serving).await.expect("in time");
    ended.expect("without fault");
    assert_eq!(get(port, "/healthz").await, None);
}

struct Ports {
    updates: mpsc::UnboundedSender<Vec<Update>>,
    addresses: watch::Sender<BTreeSet<IpAddr>>,
    warnings: Warnings,
}

impl Ports {
    fn start() -> Self {
        let (updates, receiver) = mpsc::unbounded_channel();
        let every: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let (addresses, at) = watch::channel(every.into());
        let (health, warnings) = (Health::default(), Warnings::default());
        health.set_applied(None, true);
        let (reported, stop) = (warnings.clone(), CancellationToken::new());
        tokio::spawn(service_health::run(receiver, at, health, reported, stop));
        Self {
            updates,
            addresses,
            warnings,
        }
    }
    fn set(&self, name: &str, plan_of: Option<(u16, usize)>) {
        let plan = |(port, local_endpoints)| HealthCheckPlan {
            port,
            local_endpoints,
        };
        let update = (ObjectName::new("shop", name), plan_of.map(plan));
        self.updates.send(vec![update]).expect("it listens");
    }
    async fn warning(&self, text: &str) -> String {
        let asked = async || {
            let mut all = self.warnings.all().into_iter();
            let warning = all.find(|warning| warning.reason.contains(text));
            warning.map(|warning| warning.to_string())
        };
        until(text, asked).await
    }
}

#[tokio::test]
async fn a_health_check_port_follows_its_service() {
    let (ports, port) = (Ports::start(), free_port().await);
    ports.set("cart", Some((port, 2)));
    let answer = answer_with(port, &["HTTP/1.1 200"]).await;
    let body = r#"{"service":{"namespace":"shop","name":"cart"},"localEndpoints":2,"serviceProxyHealthy":true}"#;
    let header = "x-load-balancing-endpoint-weight: 2\r\n";
    assert!(
        answer.ends_with(body) && answer.contains(header),
        "{answer}"
    );
    ports.set("cart", Some((port, 0)));
    answer_with(port, &["HTTP/1.1 503", "\"localEndpoints\":0"]).await;
    let other = free_port().await;
    ports.set("cart", Some((other, 1)));
    answer_with(other, &["HTTP/1.1 200"]).await;
    ports.set("cart", None);
    let is_free = async || get(other, "/").await.is_none().then_some(());
    until("the port is given back", is_free).await;
    assert_eq!(get(port, "/").await, None);
}

#[tokio::test]
async fn two_services_cannot_share_a_health_check_port() {
    let (ports, port) = (Ports::start(), free_port().await);
    ports.set("cart", Some((port, 1)));
    ports.set("till", Some((port, 0)));
    let expected = format!(
        "Service shop/till: healthCheckNodePort {port} is already used by Service shop/cart; give one of the two another port"
    );
    assert_eq!(ports.warning("is already used by").await, expected);
    answer_with(port, &["\"name\":\"cart\""]).await;
    ports.set("cart", None);
    answer_with(port, &["\"name\":\"till\"", "503"]).await;
    assert_eq!(ports.warnings.all(), []);
}

#[tokio::test]
async fn a_health_check_port_in_use_gives_a_warning_and_is_retried_on_a_busy_node() {
    let (squatter, port) = listen(Ipv4Addr::UNSPECIFIED).await;
    let (ports, other) = (Ports::start(), free_port().await);
    ports.set("cart", Some((port, 1)));
    let answered = async {
        let warning = ports.warning("cannot listen").await;
        let begins = "Service shop/cart: cannot listen on its healthCheckNodePort at 0.0.0.0:";
        assert!(
            warning.starts_with(&format!("{begins}{port}: ")),
            "{warning}"
        );
        drop(squatter);
        answer_with(port, &["HTTP/1.1 200", "\"name\":\"cart\""]).await;
        assert_eq!(ports.warnings.all(), []);
    };
    // Updates about another service come without end, so that the server is always busy.
    let busy = async {
        for local in (0..).cycle() {
            ports.set("till", Some((other, local)));
            sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        () = busy => panic!("it never ends"),
        () = answered => {}
    }
}

#[tokio::test]
async fn a_health_check_port_is_answered_at_the_addresses_of_node_ports_only() {
    let (ports, port) = (Ports::start(), free_port().await);
    let [one, two]: [IpAddr; 2] = [[127, 0, 0, 1].into(), [127, 0, 0, 2].into()];
    let answers = |ip: IpAddr| TcpStream::connect((ip, port)).is_ok();
    let becomes = async |wanted: [bool; 2]| {
        let waiting = async {
            while [one, two].map(answers) != wanted {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let in_time = timeout(Duration::from_secs(1), waiting).await;
        in_time.unwrap_or_else(|_| panic!("{wanted:?}: {:?}", ports.warnings.all()));
        assert_eq!(ports.warnings.all(), []);
    };
    ports.set("cart", Some((port, 1)));
    becomes([true, true]).await;
    for (at, wanted) in [
        (vec![two], [false, true]),
        (vec![one, two], [true, true]),
        (vec![one], [true, false]),
        (vec![], [false, false]),
        (vec![Ipv4Addr::UNSPECIFIED.into()], [true, true]),
        (vec![one], [true, false]),
    ] {
        ports.addresses.send_replace(at.into_iter().collect());
        becomes(wanted).await;
    }
    let refused = TcpStream::connect((Ipv6Addr::LOCALHOST, port)).expect_err("one address");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    ports.set("cart", None);
    becomes([false, false]).await;
}
