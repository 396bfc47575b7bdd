// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan explain`: says where a packet or connection goes, and why there is no answer. It
//! decides by the pinned maps, works without an agent, and changes nothing. What the node does
//! beside portolan is asked by a real packet (`follow`).

mod endpoints;
pub(crate) mod follow;
mod interfaces;
mod question;
mod reasons;
mod refusal;
mod report;
mod resolve;
mod words;

use std::{
    net::{IpAddr, SocketAddr},
    process::ExitCode,
};

use anyhow::{Context, Result};
use control::causes::chain;
use datapath::{
    maps::pins,
    read::{Asked, By, Explained, Reader},
};
use proxy_common::{Counter, Origin, Settings};
use source::service::ServiceObjects;

use self::{
    interfaces::HookedInterfaces,
    question::From,
    reasons::Wanted,
    report::{Report, Verdict},
    resolve::Passage,
    words::ServiceRow,
};
use super::{
    finding::Finding,
    frame::{Output, Pins, exit_status},
    names::{NameArgs, Names},
    terminal::print_report,
};

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
    /// process of this node and, where pods' sockets are translated, for a pod, unless a port or an
    /// interface is given.
    #[arg(long)]
    pub socket: bool,
    /// The interface that the client's packets come in by [default: that of the node's route to
    /// it].
    #[arg(long, value_name = "NAME", conflicts_with = "socket")]
    pub interface: Option<String>,
    /// Follow one real packet through the node: every station says what it did to it, and the one
    /// that lost it is named. A pod of this node sends it from its own network namespace, this
    /// node from a socket; of any other client, a packet is put into the interface that its
    /// packets come in by. A TCP connection is closed at once.
    #[arg(long)]
    pub follow: bool,
    /// With --follow: send nothing, and follow the client's next packet, within a minute.
    #[arg(long, requires = "follow")]
    pub next: bool,
    /// With --follow: send packets, 64 at most, until each endpoint has got one, and say of each
    /// what became of it. Of a service with client affinity, one.
    #[arg(long, requires = "follow", conflicts_with = "next")]
    pub each: bool,
    #[command(flatten)]
    pub names: NameArgs,
    #[command(flatten)]
    pub pins: Pins,
    /// Format of the output: table is text for people.
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,
}

pub(super) fn run(args: &ExplainArgs) -> ExitCode {
    let printed = explain(args).and_then(|report| {
        print_report(args.output, &report, || report.text())?;
        Ok(report.verdict as u8)
    });
    exit_status(printed)
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
    let is_outside = resolve::is_outside(&places, &from, &settings);
    let to = resolve::destination(&reader, &to, protocol, &clients, is_outside)?;
    let is_fitting = |client: &IpAddr| client.is_ipv4() == to.is_ipv4();
    let client = match from {
        From::Node if to.is_ipv4() => Some(settings.internal_v4.into()),
        From::Node => Some(settings.internal_v6.into()),
        _ => clients.into_iter().find(is_fitting),
    };
    let who = &args.from;
    let client = client
        .with_context(|| format!("--from {who} and --to {to} are of different IP families"))?;
    let (incoming, by) = match from {
        From::Node => (None, By::NodeSocket),
        _ => resolve::enter(args, &places, client)?,
    };
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
    let index = incoming.as_ref().map_or(0, |place| place.index);
    let explained = ask(&mut reader, &mut asked, args, index, &mut notes)?;
    let agent = pins::is_held(pin_dir);
    if !agent {
        notes.push(Finding::of("no-agent", &[]));
    }
    let passage = Passage::read(&places, pin_dir, &asked, &explained, incoming)?;
    // Neither an open connection nor a port that is not served depends on endpoints.
    let depends_on_endpoints =
        explained.flow.is_none() && explained.counter != Counter::RejectedUnserved;
    let objects = match &explained.frontend {
        Some(frontend) if depends_on_endpoints => {
            names.service(&frontend.service).unwrap_or_else(|error| {
                notes.push(Finding::of("names-unknown", &[&chain(error.as_ref())]));
                None
            })
        }
        _ => None,
    };
    let listed = objects.as_ref();
    let listed = listed.and_then(|all| wanted(all, &asked, &explained, agent));
    let mut report = describe(&reader, &asked, &explained, &passage, listed)?;
    if !matches!(from, From::Address(..)) {
        report.client = format!("{} ({})", args.from, report.client);
    }
    report.findings.extend(notes);
    if args.follow {
        for (followed, finding) in follow::all(args, &asked, &explained, &passage)? {
            let finding = finding.filter(|one| !refusal::is_told(one, &explained, &asked));
            report.findings.extend(finding);
            if args.each {
                report.tell(&followed);
            }
            _ = report.followed.get_or_insert(followed);
        }
    }
    report.conclude();
    Ok(report)
}

/// Decides by the maps what happens: to a pod's socket, where such are translated; if the socket
/// hooks leave it alone, to its packet, which comes in by the interface of this index.
fn ask(
    reader: &mut Reader,
    asked: &mut Asked,
    args: &ExplainArgs,
    interface: u32,
    notes: &mut Vec<Finding>,
) -> Result<Explained> {
    let mut about = |asked: &Asked| {
        let explained = reader.explain(asked)?;
        explained.context("client and destination are of different IP families")
    };
    let mut explained = about(asked)?;
    // A port belongs to a connection whose packets are seen, an interface to packets.
    let is_packet = asked.client_port != 0 || args.interface.is_some();
    let by_socket = explained.settings.has(Settings::POD_SOCKETS);
    if by_socket && explained.origin == Some(Origin::Pod) && !is_packet {
        asked.by = By::PodSocket;
        explained = about(asked)?;
    }
    if asked.by == By::PodSocket && explained.counter == Counter::SocketUntouched {
        if let Some(because) = explained.because {
            notes.push(Finding::of("socket-left", &[&because]));
        }
        asked.by = By::Interface(interface);
        return about(asked);
    }
    Ok(explained)
}

/// Returns the service port that is asked for; None if no service has the destination.
fn wanted<'a>(
    objects: &'a ServiceObjects,
    asked: &Asked,
    explained: &'a Explained,
    agent: bool,
) -> Option<Wanted<'a>> {
    let frontend = explained.frontend.as_ref()?;
    let (namespace, name) = frontend.service.split_once('/')?;
    Some(Wanted {
        objects,
        namespace,
        name,
        port: &frontend.port_name,
        protocol: asked.protocol,
        v6: asked.to.is_ipv6(),
        agent,
    })
}

/// Creates the report, without a followed packet. `listed`: what Kubernetes has of the service.
fn describe(
    reader: &Reader,
    asked: &Asked,
    explained: &Explained,
    passage: &Passage,
    listed: Option<Wanted<'_>>,
) -> Result<Report> {
    let mut findings = Vec::from_iter(refusal::of_policy(explained, asked, listed));
    findings.extend(refusal::of_objects(explained, listed));
    findings.extend(refusal::of_programs(passage, asked));
    let client = match asked.client_port {
        0 => asked.client.to_string(),
        port => SocketAddr::new(asked.client, port).to_string(),
    };
    let source = words::source(explained, asked);
    let own = passage.masquerade_address(reader)?;
    // True if the packet is masqueraded only where the client is its own endpoint (hairpin), which
    // concerns one of several endpoints.
    let mut others = explained.to.iter();
    let only_itself = !explained.masquerades && others.any(|to| to.ip() != asked.client);
    let source = source.map(|text| match own {
        Some(own) if only_itself => format!("{text}, which then sees {own}"),
        Some(own) => format!("{text}; the endpoint sees {own}"),
        None if explained.masquerades && passage.is_own => {
            "kept: the endpoint is a process of this node, so the packet does not leave it"
                .to_owned()
        }
        None => text,
    });
    let incoming = passage.incoming.as_ref();
    Ok(Report {
        client,
        destination: asked.to.to_string(),
        protocol: asked.protocol.name(),
        hook: words::hook(asked, incoming.map(|place| &*place.link.name)),
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
        way_back: words::way_back(explained, asked, own.filter(|_| !only_itself)),
        followed: None,
        findings,
    })
}
