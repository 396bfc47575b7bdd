// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan flows`: lists connections that are translated packet by packet. There may be very
//! many, so each row takes little memory.

use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    rc::Rc,
};

use anyhow::Result;
use datapath::read::{Flow, Reader};
use serde::{Serialize, Serializer};

use super::{
    args::{ListArgs, SELECTION, split_port},
    cell::Name,
    frame::interface_name,
    list::{Row, list_maps},
    names::{EndArg, NameArgs, Names},
    table::{Column, Tone, Value, WIDE, column, cut, plain, toned},
};

/// The names of all protocols and states that flows can have.
const WORDS: [&str; 11] = [
    "?",
    "ICMP",
    "SCTP",
    "TCP",
    "UDP",
    "unanswered",
    "answered",
    "established",
    "closing-by-client",
    "closing-by-backend",
    "closed",
];
const STATES: [&str; 6] = [WORDS[5], WORDS[6], WORDS[7], WORDS[8], WORDS[9], WORDS[10]];

/// Arguments of `portolan flows`.
#[derive(clap::Args, Clone, Debug)]
pub struct FlowArgs {
    #[command(flatten)]
    pub list: ListArgs,
    /// Only flows of the client with this address, or of this pod: pod/NAMESPACE/NAME, or pod/NAME
    /// with --namespace.
    #[arg(long, value_name = "CLIENT", help_heading = SELECTION)]
    pub client: Option<EndArg>,
    /// Only flows to the endpoint with this address, or to this pod.
    #[arg(long, value_name = "ENDPOINT", help_heading = SELECTION)]
    pub backend: Option<EndArg>,
    /// Only flows in this state, or in one of these.
    #[arg(long, value_name = "STATE", value_delimiter = ',', value_parser = STATES, help_heading = SELECTION)]
    pub state: Vec<String>,
    #[command(flatten)]
    pub names: NameArgs,
}

impl FlowArgs {
    fn wants(&self, flow: &Flow) -> bool {
        let ends = [flow.client, flow.frontend, flow.backend];
        let (service, port_name) = split_port(&flow.service);
        let (port, select) = (flow.frontend.port(), &self.list.select);
        let is_of = |end: &Option<EndArg>, address: SocketAddr| {
            end.as_ref().is_none_or(|end| end.has(address.ip()))
        };
        is_of(&self.client, flow.client)
            && is_of(&self.backend, flow.backend)
            && (self.state.is_empty() || self.state.iter().any(|state| state == flow.state))
            && select.wants(service, port_name, port, flow.protocol, &ends)
    }
}

/// An IP address and a port, in less memory than a [`SocketAddr`] takes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct End {
    ip: IpAddr,
    port: u16,
}

impl From<SocketAddr> for End {
    fn from(address: SocketAddr) -> Self {
        let (ip, port) = (address.ip(), address.port());
        Self { ip, port }
    }
}

impl From<End> for Value {
    fn from(end: End) -> Self {
        SocketAddr::new(end.ip, end.port).into()
    }
}

impl Serialize for End {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        SocketAddr::new(self.ip, self.port).serialize(serializer)
    }
}

/// A protocol or a state of a flow, as an index into [`WORDS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Word(u8);

impl Word {
    fn of(text: &str) -> Self {
        let at = WORDS.iter().position(|word| *word == text);
        Self(at.unwrap_or_default() as u8)
    }
    fn text(self) -> &'static str {
        WORDS[usize::from(self.0)]
    }
}

impl Serialize for Word {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.text())
    }
}

// Half a million rows fit into 60 MiB.
const _: () = assert!(size_of::<FlowRow>() * 500_000 < 60 << 20);

/// A row of the list: a [`Flow`] in about 100 bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FlowRow {
    service: Name,
    protocol: Word,
    client: End,
    frontend: End,
    backend: End,
    translated_port: Option<u16>,
    masquerade: Option<End>,
    masqueraded: bool,
    carried: bool,
    state: Word,
    idle_seconds: u32,
    client_pod: Option<Name>,
    backend_pod: Option<Name>,
    past_stack_by: Option<NonZeroU32>,
}

impl Row for FlowRow {
    const COLUMNS: &'static [Column<Self>] = &[
        cut("SERVICE", 0, |row| plain(Rc::clone(&row.service))),
        column("PROTOCOL", 4, |row| plain(Value::Word(row.protocol.text()))),
        column("CLIENT", 0, |row| plain(row.client)),
        column("FRONTEND", 2, |row| plain(row.frontend)),
        column("BACKEND", 0, |row| plain(row.backend)),
        column("SEEN-AS", 5, |row| plain(seen_as(row))),
        column("STATE", 0, |row| {
            let tone = match row.state.text() {
                "unanswered" => Tone::Warn,
                "established" => Tone::Good,
                _ => Tone::Plain,
            };
            toned(Value::Word(row.state.text()), tone)
        }),
        column("IDLE", 3, |row| {
            plain(Value::Seconds(row.idle_seconds.into()))
        }),
        column("CLIENT-POD", WIDE, |row| plain(row.client_pod.clone())),
        column("BACKEND-POD", WIDE, |row| plain(row.backend_pod.clone())),
        column("CLIENT-KEPT", WIDE, |row| {
            plain(row.carried.then_some(Value::Word("yes")))
        }),
        column("PAST-STACK-BY", WIDE, |row| {
            plain(row.past_stack_by.map(|index| interface_name(index.get())))
        }),
    ];
    fn name(&self) -> String {
        let [client, frontend] = [self.client, self.frontend].map(Value::from);
        format!("flow/{}/{client}/{frontend}", self.protocol.text())
    }
}

/// Returns the source that the backend sees; nothing if it is the client's own.
fn seen_as(flow: &FlowRow) -> Value {
    match (flow.masquerade, flow.masqueraded, flow.translated_port) {
        (Some(source), _, _) => source.into(),
        (None, true, _) => "(no packet sent yet)".into(),
        (None, false, Some(port)) => format!("port {port}").into(),
        (None, false, None) => Value::None,
    }
}

pub(super) fn run(args: &FlowArgs) -> Result<()> {
    let mut args = args.clone();
    let namespace = args.list.select.namespace.clone();
    for end in [&mut args.client, &mut args.backend].into_iter().flatten() {
        end.look_up(namespace.as_deref(), &args.names)?;
    }
    let text = |end: &Option<EndArg>| end.as_ref().map(ToString::to_string);
    let filters = [
        ("--client", text(&args.client)),
        ("--backend", text(&args.backend)),
        ("--state", Some(args.state.join(","))),
    ];
    let mut pods = Names::of_list(&args.list.show, &args.names);
    list_maps(&args.list, &filters, |reader| {
        let mut rows = rows(&reader, |flow| args.wants(flow), usize::MAX)?;
        let ends = rows.iter().flat_map(|row| [row.client.ip, row.backend.ip]);
        pods.learn(ends);
        for row in &mut rows {
            row.client_pod = pods.at(row.client.ip);
            row.backend_pod = pods.at(row.backend.ip);
        }
        Ok(rows)
    })
}

/// Returns a row for each flow that `wants` accepts, at most `most` rows.
pub(super) fn rows(
    reader: &Reader,
    wants: impl Fn(&Flow) -> bool,
    most: usize,
) -> Result<Vec<FlowRow>> {
    let mut rows = Vec::new();
    let mut names = HashSet::new();
    reader.each_flow(wants, |flow| {
        if rows.len() < most {
            rows.push(row(&mut names, flow));
        }
    })?;
    Ok(rows)
}

fn row(names: &mut HashSet<Name>, flow: Flow) -> FlowRow {
    let service = match names.get(&flow.service) {
        Some(known) => Rc::clone(known),
        None => {
            let new = Name::new(flow.service);
            names.insert(Rc::clone(&new));
            new
        }
    };
    FlowRow {
        service,
        protocol: Word::of(flow.protocol),
        client: flow.client.into(),
        frontend: flow.frontend.into(),
        backend: flow.backend.into(),
        translated_port: flow.translated_port,
        masquerade: flow.masquerade.map(End::from),
        masqueraded: flow.masqueraded,
        carried: flow.carried,
        state: Word::of(flow.state),
        idle_seconds: flow.idle_seconds.try_into().unwrap_or(u32::MAX),
        client_pod: None,
        backend_pod: None,
        past_stack_by: flow.past_stack_by.and_then(NonZeroU32::new),
    }
}

#[cfg(test)]
#[path = "flows_tests.rs"]
pub(super) mod tests;
