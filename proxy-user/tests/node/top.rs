// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan top` on a node: its numbers are exactly those of the clients.

use std::{
    io::{self, BufRead, BufReader},
    process::Stdio,
};

use crate::{
    connection::{answer_questions, asking},
    reads::EMPTY,
    world::World,
};

/// The length of the IPv4 and UDP headers.
const HEADERS: u64 = 28;

pub(crate) fn top_agrees_exactly_with_what_clients_counted(world: &World) {
    answer_questions(world.server());
    let (mut sent, mut bytes) = (0, 0);
    for client in 0..3_usize {
        let socket = asking(world.client());
        for length in 1..=10 + client {
            socket.send(&vec![b'?'; length]).expect("sent");
            let mut answer = [0; 64];
            assert_eq!(socket.recv(&mut answer).expect("answered"), length);
            sent += 1;
            bytes += length as u64 + HEADERS;
        }
    }
    for _ in 0..4 {
        assert!(world.connect(EMPTY).is_err(), "it is rejected");
    }

    let top = |arguments: &[&str]| world.json(&[&["top"], arguments].concat());
    for arguments in [&["questions"][..], &["questions", "--backends"]] {
        let seen = top(arguments);
        let [row] = seen.as_array().expect("rows").as_slice() else {
            panic!("one row: {seen}")
        };
        let number = |field: &str| row[field].as_u64();
        assert_eq!(number("connections"), Some(3), "{row}");
        assert_eq!(number("packetsIn"), Some(sent), "{row}");
        assert_eq!(number("packetsOut"), Some(sent), "{row}");
        assert_eq!(number("bytesIn"), Some(bytes), "{row}");
        assert_eq!(number("bytesOut"), Some(bytes), "{row}");
        assert!(row["rates"].is_null(), "totals without waiting: {row}");
    }
    let refused = &top(&["empty"])[0]["refused"];
    assert_eq!(refused["rejected_no_endpoint"], 4, "{refused}");
    let reasons = top(&["--reasons"]);
    let mut rows = reasons.as_array().into_iter().flatten();
    let row = rows.find(|row| row["reason"] == "rejected_no_endpoint");
    let row = row.expect("its row");
    assert_eq!(row["count"], 4, "{reasons}");
    assert_eq!(row["page"], "docs/runbooks.md#no-endpoint");

    let rates = ["top", "--watch", "--interval", "0.2", "-o"];
    let path = "jsonpath={.items[0].rates.packetsIn}";
    let mut command = world.asking(&[&rates[..], &[path]].concat());
    let mut watching = world.begin(command.stdout(Stdio::piped()));
    let mut lines = BufReader::new(watching.stdout.take().expect("piped")).lines();
    let is_rate = |line: io::Result<String>| line.expect("text").parse::<u64>().is_ok();
    assert!(lines.any(is_rate), "from the second look on");
    watching.kill().expect("killed");
    watching.wait().expect("its end");
    let table = world.told(&["top", "--sort-by", "refused", "--reverse"]);
    let rows: Vec<_> = table.lines().collect();
    assert!(rows[0].starts_with("SERVICE"), "{table}");
    assert!(rows[1].starts_with("shop/empty"), "{table}");
}
