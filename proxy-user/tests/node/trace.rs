// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan trace` on a node: it shows real packets and calls, its flags leave others out, and
//! it leaves no program or map behind.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    agent::{holds, send_signal, wait},
    commands::fields_are,
    reads::EMPTY,
    world::{CART, CLIENT, PATIENCE, World},
};

/// A running `portolan trace -o json`, and the lines that it has printed.
pub(crate) struct Tracing {
    child: Child,
    stderr: BufReader<ChildStderr>,
    lines: Arc<Mutex<Vec<Value>>>,
}

impl Tracing {
    /// Starts the trace and waits until its programs are attached.
    pub(crate) fn start(world: &World, flags: &str) -> Self {
        let command = world.asking("trace -o json");
        Self::begin(world, command, flags, "watching packets")
    }

    /// The same with a command that has `trace -o json` already; `watching` says what it watches.
    pub(crate) fn begin(world: &World, mut command: Command, flags: &str, watching: &str) -> Self {
        command.arg("--manifests").arg(world.manifests());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = world.begin(command.args(flags.split_whitespace()));
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let lines = Arc::new(Mutex::new(Vec::new()));
        let taken = Arc::clone(&lines);
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).expect("JSON");
                taken.lock().expect("the lines").push(line);
            }
        });
        let mut said = stderr.by_ref().lines().map_while(Result::ok);
        // What cannot be shown is named before.
        let first = said.find(|line| !line.contains("not shown: "));
        let first = first.expect("a line");
        assert!(first.contains(watching), "{first}");
        Self {
            child,
            stderr,
            lines,
        }
    }

    /// The lines that the trace has printed so far.
    pub(crate) fn lines(&self) -> Vec<Value> {
        self.lines.lock().expect("the lines").clone()
    }

    /// Waits for a line that `is_it` accepts.
    pub(crate) fn wait(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let mut found = None;
        holds(PATIENCE, what, || {
            found = self.lines().into_iter().find(&is_it);
            found.is_some()
        });
        found.unwrap_or_else(|| panic!("{what}: {:#?}", self.lines()))
    }

    /// Sends a signal and waits for the end; returns the status and the messages on standard error.
    pub(crate) fn end(mut self, signal: Signal) -> (ExitStatus, String) {
        // The trace may have ended by itself.
        _ = send_signal(self.child.id(), signal);
        let status = self.child.wait().expect("its end");
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).expect("text");
        (status, said)
    }
}

fn outcome(line: &Value) -> &str {
    line["outcome"].as_str().expect("an outcome")
}

/// Waits for a line with this outcome, and compares its values (see [`fields_are`]).
fn shows(trace: &Tracing, expected: &str, values: &str) {
    let line = trace.wait(expected, |line| outcome(line) == expected);
    fields_are(&line, values);
}

pub(crate) fn trace_shows_packets_and_calls_before_and_after_translation(world: &World) {
    let trace = Tracing::start(world, "");
    let mut open = world.connect(CART).expect("served");
    assert_eq!(open.echo("hello"), "hello");
    assert!(!world.answers(EMPTY), "it is rejected");
    let interface = world.interface_to(CLIENT);
    let values = format!(
        "hook=ingress interface={interface} protocol=TCP signals=[S] before/from/address=10.40.1.10 \
         before/to/address=172.30.1.1 before/to/port=80 after/to/address=10.40.1.20 \
         after/to/port=8080 service=shop/cart verdict=forward"
    );
    shows(&trace, "forwarded_new", &values);
    let values = "hook=egress before/from/address=10.40.1.20 after/from/address=172.30.1.1 service=shop/cart";
    shows(&trace, "reply_translated", values);
    let values = "verdict=reject service=shop/empty page=docs/runbooks.md#no-endpoint";
    shows(&trace, "rejected_no_endpoint", values);

    let own = world.connect_from_node(CART).expect("served");
    assert!(world.connect_from_node(EMPTY).is_err());
    let values = format!(
        "hook=connect process/pid={} before/to/address=172.30.1.1 after/to/address=10.40.1.20 service=shop/cart",
        std::process::id()
    );
    shows(&trace, "socket_translated", &values);
    let is_refused = |line: &Value| line["error"] == "Connection refused";
    let call = trace.wait("the refused call", is_refused);
    assert_eq!(outcome(&call), "rejected_no_endpoint");
    drop((open, own));
    // All packets of the connection, including its FIN, are shown from the client's side.
    let last = trace.wait("the answer's end", |line| {
        let signals = line["signals"].as_str().unwrap_or_default();
        outcome(line) == "reply_translated" && signals.contains('F')
    });
    assert_eq!(last["before"]["from"]["address"], "10.40.1.20", "{last}");

    let (status, said) = trace.end(Signal::SIGINT);
    assert!(status.success(), "{said}");
    assert!(said.contains("shown, none lost"), "{said}");
}

pub(crate) fn trace_applies_its_flags_its_count_and_its_rate(world: &World) {
    let trace = Tracing::start(world, "--service empty --verdict reject");
    let _open = world.connect(CART).expect("served");
    for _ in 0..3 {
        assert!(!world.answers(EMPTY));
    }
    trace.wait("a refusal", |line| outcome(line) == "rejected_no_endpoint");
    let (_, said) = trace.end(Signal::SIGTERM);
    assert!(said.contains("3 shown, none lost"), "{said}");

    let trace = Tracing::start(world, "--limit 2 --client 10.40.1.10 --port 80");
    for _ in 0..3 {
        assert!(!world.answers(EMPTY));
    }
    wait(PATIENCE, "two lines", || trace.lines().len() >= 2);
    let lines = Arc::clone(&trace.lines);
    let (status, said) = trace.end(Signal::SIGCONT);
    assert!(status.success() && said.contains("2 shown"), "{said}");
    assert_eq!(lines.lock().expect("the lines").len(), 2);

    let trace = Tracing::start(world, "--rate 1");
    for _ in 0..20 {
        assert!(!world.answers(EMPTY));
    }
    trace.wait("one", |line| outcome(line) == "rejected_no_endpoint");
    thread::sleep(Duration::from_millis(600));
    let (_, said) = trace.end(Signal::SIGINT);
    assert!(said.contains("beyond --rate"), "{said}");
}

pub(crate) fn a_second_trace_is_refused_but_not_after_the_first_was_killed(world: &World) {
    let trace = Tracing::start(world, "");
    let (code, said) = world.refused("trace");
    assert_eq!(code, Some(1), "{said}");
    let named = "another `portolan trace` is at work";
    assert!(said.contains(named), "{said}");
    trace.end(Signal::SIGKILL);
    let cgroup = world.cgroup.path().to_str().expect("a path");
    let words = ["-j", "cgroup", "show", cgroup];
    let links = world.node().feed("bpftool", &words, "");
    if let Ok(links) = links {
        let links: Value = serde_json::from_str(&links).expect("JSON");
        assert_eq!(links.as_array().map(Vec::len), Some(9), "{links}");
    }
    thread::sleep(Duration::from_secs(4));
    let trace = Tracing::start(world, "");
    assert!(!world.answers(EMPTY));
    trace.wait("a refusal", |line| outcome(line) == "rejected_no_endpoint");
    trace.end(Signal::SIGINT);
}
