// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan explain`: says where a packet or connection goes, and why there is no answer. It
//! decides by the pinned maps, compares that with a dry run of the kernel's programs, and checks
//! the host. It works without an agent, and changes nothing. This file and `look` read facts; the
//! other files decide from them.

mod dry;
mod endpoints;
pub(crate) mod follow;
mod host;
mod interfaces;
mod listeners;
mod look;
mod losses;
pub(super) mod names;
mod netfilter;
mod path;
mod question;
mod reasons;
mod refusal;
mod report;
mod resolve;
mod rows;
mod words;

use std::{net::SocketAddr, process::ExitCode};

use anyhow::{Context, Result};
use control::causes::chain;
use datapath::{
    maps::pins,
    read::{Asked, By, Explained, Reader},
};
use proxy_common::{Counter, Origin, Settings};

use self::{
    endpoints::Listed,
    host::{Host, Unasked},
    interfaces::HookedInterfaces,
    names::Names,
    question::From,
    reasons::Wanted,
    report::{Pointed, Report, Verdict},
    rows::{DryRunRow, ServiceRow},
};
use super::{Output, Pins, check::finding::Finding, status_of};

/// Arguments of `portolan explain`.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct ExplainArgs {
    /// Who asks: an address, with a port to ask about an open connection (10.0.0.7,
    /// 10.0.0.7:40000), pod/NAMESPACE/NAME, or node for a process of this node.
    #[arg(long, value_name = "CLIENT")]
    pub from: String,
    /// What is asked for: ADDRESS:PORT, or a service, NAME or NAMESPACE/NAME, with :PORT behind it
    /// where it has several.
    #[arg(long, value_name = "DESTINATION")]
    pub to: String,
    /// The namespace of a service or pod that is written without one.
    #[arg(long, short, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// tcp, udp or sctp.
    #[arg(long, default_value = "tcp")]
    pub protocol: String,
    /// The client's process connects a socket, which the socket hooks see first. Always so for a
    /// process of this node.
    #[arg(long)]
    pub socket: bool,
    /// The interface that the client's packets come in by [default: that of the node's route to
    /// it].
    #[arg(long, value_name = "NAME", conflicts_with = "socket")]
    pub interface: Option<String>,
    /// Also connect from this node to the endpoints (TCP), for a second each at most, and run
    /// foreign tc programs before portolan's on such a packet, which they may count. Without it
    /// nothing is sent but what the kernel sends before a packet: it asks next hops that it does
    /// not know to answer for their link-layer address (ARP, neighbour solicitation).
    #[arg(long)]
    pub probe: bool,
    /// Follow one real packet through the node: every station says what it did to it, and the one
    /// that lost it is named. A pod of this node sends it from its own network namespace, this
    /// node from a socket; of any other client, a packet is put into the interface that its
    /// packets come in by. A TCP connection is closed at once.
    #[arg(long)]
    pub follow: bool,
    /// With --follow: send nothing, and follow the client's next packet, within a minute.
    #[arg(long, requires = "follow")]
    pub next: bool,
    /// Leave out the dry run, in which the kernel verifies the programs anew: it takes most of a
    /// second.
    #[arg(long)]
    pub no_dry_run: bool,
    #[command(flatten)]
    pub names: names::NameArgs,
    #[command(flatten)]
    pub pins: Pins,
    /// Format of the output: table is text for people.
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,
}

/// Exit statuses and examples for --help.
pub const AFTER_HELP: &str = "Exit status: 0 if it would be answered, 1 if something differs or may be in the way, 2 for input that \
cannot be read, 3 if it would not be answered, 4 if portolan's part is in order, but rules or programs of others may judge the packet.\n\nExamples:\n  portolan explain --from 10.244.1.7 --to 10.96.0.10:53 --protocol udp\n  \
portolan explain --from pod/shop/cart-5d9 --to shop/pay:http --kubeconfig ~/.kube/config\n  \
portolan explain --from node --to default/kubernetes --probe\n  \
portolan explain --from 192.0.2.7:51234 --to 198.51.100.1:443 --interface eth1 -o json";

/// The page about what was not asked.
const RULES_OF_OTHERS: &str = "docs/explain.md#rules-of-others";

/// Prints the explanation, and returns its exit status.
pub(super) fn run(args: &ExplainArgs) -> ExitCode {
    let printed = explain(args).and_then(|report| {
        report.print(args.output)?;
        Ok(report.code())
    });
    status_of(printed)
}

fn explain(args: &ExplainArgs) -> Result<Report> {
    let from = question::from(&args.from, args.namespace.as_deref())?;
    let to = question::to(&args.to, args.namespace.as_deref())?;
    let protocol = question::protocol(&args.protocol)?;
    let pin_dir = &args.pins.pin_dir;
    let mut reader = Reader::without_names(pin_dir)?;
    let names = Names::new(&args.names);
    let places = HookedInterfaces::new(pin_dir)?;
    let clients = resolve::clients(&from, &names)?;
    let settings = reader.settings()?;
    let is_outside = resolve::is_outside(&reader, &places, &from, &settings);
    let to = resolve::destination(&reader, &to, protocol, &clients, is_outside)?;
    let client = resolve::client(args, &from, &clients, &settings, to)?;
    let (way, by) = resolve::enter(args, &reader, &places, &from, client)?;
    let mut asked = Asked {
        protocol,
        client,
        client_port: match from {
            From::Address(_, port) => port,
            _ => 0,
        },
        to,
        by,
    };
    let mut notes = Vec::new();
    let index = way.1.as_ref().map_or(0, |place| place.index);
    let explained = ask(&mut reader, &mut asked, index, &mut notes)?;
    if !pins::is_held(pin_dir) {
        let found = "no agent runs: the programs go on with the maps as they are";
        notes.push(note("portolan", found.to_owned()));
    }
    notes.extend(losses::notes(explained.counter, &reader.counters()?));
    let host = look::read(
        &reader, &places, pin_dir, &asked, &explained, way, args.probe,
    )?;
    let objects = match &explained.frontend {
        Some(frontend) if endpoints::are_asked_for(&explained) => {
            names.service(&frontend.service, &mut notes)
        }
        _ => None,
    };
    let wanted = wanted(&asked, &explained, pins::is_held(pin_dir));
    let listed = objects.as_ref().zip(wanted);
    let mut report = describe(&reader, &asked, &explained, &host, listed)?;
    if !matches!(from, From::Address(..)) {
        report.client = format!("{} ({})", args.from, report.client);
    }
    report.findings.extend(notes);
    report.goes_on = !args.probe && host.endpoints.iter().any(host::Endpoint::is_beyond);
    if args.follow {
        let (followed, finding) = follow::run(args, &asked, &explained, &host)?;
        // They have been asked.
        report.findings.retain(|one| one.page != RULES_OF_OTHERS);
        let finding = finding.filter(|one| !refusal::is_told(&one.finding, &explained, &asked));
        report.findings.extend(finding);
        report.followed = Some(followed);
    } else {
        run_dry(args, &reader, &asked, &explained, &host, &mut report);
    }
    report.conclude();
    Ok(report)
}

/// Decides by the maps what happens. If the socket hooks leave a pod's socket alone, decides for
/// its packet instead. `interface`: the index of the interface that the packet comes in by.
fn ask(
    reader: &mut Reader,
    asked: &mut Asked,
    interface: u32,
    notes: &mut Vec<Pointed>,
) -> Result<Explained> {
    let mut about = |asked: &Asked| {
        reader
            .explain(asked)?
            .context("client and destination are of different IP families")
    };
    let explained = about(asked)?;
    if asked.by == By::PodSocket && explained.counter == Counter::SocketUntouched {
        if let Some(because) = explained.because {
            let found = format!("the socket hooks leave it to the packet path: {because}");
            notes.push(note("the client's socket", found));
        }
        asked.by = By::Interface(interface);
        return about(asked);
    }
    let is_packet = matches!(asked.by, By::Interface(_));
    let by_socket = explained.settings.has(Settings::POD_SOCKETS);
    if is_packet && by_socket && explained.origin == Some(Origin::Pod) {
        let found = "pods' connections are translated at the socket first (socketBalancing: all); ask about that with --socket";
        notes.push(note("the client's socket", found.to_owned()));
    }
    Ok(explained)
}

/// Returns the service port that is asked for; None if no service has the destination.
fn wanted<'a>(asked: &Asked, explained: &'a Explained, agent: bool) -> Option<Wanted<'a>> {
    let frontend = explained.frontend.as_ref()?;
    let (namespace, name) = frontend.service.split_once('/')?;
    Some(Wanted {
        namespace,
        name,
        port: &frontend.port_name,
        protocol: asked.protocol,
        v6: asked.to.is_ipv6(),
        agent,
    })
}

fn note(about: &str, found: String) -> Pointed {
    Pointed::new(Finding::note(about, found), "docs/explain.md")
}

/// Creates the report, without the dry run. `listed`: what Kubernetes has of the service.
fn describe(
    reader: &Reader,
    asked: &Asked,
    explained: &Explained,
    host: &Host,
    listed: Listed<'_>,
) -> Result<Report> {
    let mut findings: Vec<_> = refusal::of_policy(explained, asked, listed)
        .into_iter()
        .collect();
    findings.extend(refusal::of_objects(explained, listed));
    findings.extend(host::findings(host));
    let unasked = Unasked::new(host);
    if !unasked.is_empty() {
        let found = format!("{}: {}", unasked.describe(), unasked.list());
        let finding = Finding::note("others", found);
        findings.push(Pointed::new(finding, RULES_OF_OTHERS));
    }
    let client = match asked.client_port {
        0 => asked.client.to_string(),
        port => SocketAddr::new(asked.client, port).to_string(),
    };
    let source = words::source(explained, asked);
    let own = look::masquerade_address(reader, host)?;
    let is_masqueraded = host.endpoints.iter().any(|one| one.masqueraded);
    // True if the packet is masqueraded only where the client is its own endpoint (hairpin), which
    // concerns one of several endpoints.
    let only_itself = !explained.masquerades && host.endpoints.iter().any(|one| !one.masqueraded);
    let source = source.map(|text| match own.filter(|_| is_masqueraded) {
        Some(own) if only_itself => format!("{text}, which then sees {own}"),
        Some(own) => format!("{text}; the endpoint sees {own}"),
        None if explained.masquerades && host.is_own() => {
            "kept: the endpoint is a process of this node, so the packet does not leave it"
                .to_owned()
        }
        None => text,
    });
    Ok(Report {
        client,
        destination: asked.to.to_string(),
        protocol: asked.protocol.name(),
        hook: words::hook(asked, host.incoming.as_ref().map(|place| &*place.link.name)),
        verdict: Verdict::Answered,
        answered: None,
        summary: String::new(),
        outcome: explained.counter.name(),
        meaning: explained.counter.help().trim(),
        service: explained.frontend.as_ref().map(ServiceRow::new),
        origin: words::origin(explained, asked),
        endpoints: endpoints::rows(explained, listed),
        affinity: words::affinity(explained, asked),
        source,
        flow: explained.flow.clone(),
        path: host.path,
        way_back: words::way_back(
            explained,
            asked,
            own.filter(|_| is_masqueraded && !only_itself),
        ),
        dry_run: None,
        followed: None,
        unasked,
        findings,
        goes_on: false,
    })
}

/// Adds the results of the dry run to the report, or the reason why it was not run.
fn run_dry(
    args: &ExplainArgs,
    reader: &Reader,
    asked: &Asked,
    explained: &Explained,
    host: &Host,
    report: &mut Report,
) {
    let left_out = |reason: String| DryRunRow {
        left_out: Some(reason),
        ..DryRunRow::default()
    };
    if !matches!(asked.by, By::Interface(_)) {
        report.dry_run = Some(left_out("the kernel cannot run socket hooks dry".into()));
        return;
    }
    if args.no_dry_run {
        return;
    }
    match dry::run(reader, asked, explained, host) {
        Ok((row, finding)) => {
            report.dry_run = Some(row);
            report.findings.extend(finding);
        }
        Err(error) => {
            let reason = format!("not possible: {}", chain(error.as_ref()));
            report.dry_run = Some(left_out(reason));
        }
    }
}
