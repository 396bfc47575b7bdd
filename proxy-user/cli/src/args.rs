// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The arguments that the listing commands share: which rows to list, and how to show them. Their
//! names are kubectl's. `services`, `backends`, `flows`, `sockets` and `affinity` have all of them;
//! commands with an overview have only [`Show`].

use std::{
    fmt::{self, Display, Formatter},
    net::{IpAddr, SocketAddr},
    str::FromStr,
    time::Duration,
};

use anyhow::Result;
use datapath::read::Reader;
use ipnet::IpNet;
use proxy_common::Protocol;

use super::{
    format::Format,
    frame::{BadInput, Pins},
};

/// Arguments of a list.
#[derive(clap::Args, Clone, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    pub pins: Pins,
    #[command(flatten)]
    pub select: Select,
    #[command(flatten)]
    pub show: Show,
}

/// The heading in --help of arguments that say how to show something.
const SHOWING: &str = "How to show it";
/// The heading in --help of arguments that select rows.
pub(super) const SELECTION: &str = "What to list";

/// Which rows to list.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = SELECTION)]
pub struct Select {
    /// A service: NAME, NAMESPACE/NAME, or either with :PORT, which is a name or a number.
    #[arg(value_name = "NAME")]
    pub name: Option<ServiceArg>,
    /// Only services of this namespace.
    #[arg(
        long,
        short,
        value_name = "NAMESPACE",
        conflicts_with = "all_namespaces"
    )]
    pub namespace: Option<String>,
    /// Services of all namespaces, which is the default.
    #[arg(long, short = 'A')]
    pub all_namespaces: bool,
    /// Only rows with this address, or with one of this range, in any of their columns.
    #[arg(long, value_name = "IP[/BITS]", value_parser = range)]
    pub address: Option<IpNet>,
    /// Only rows with this port in any of their columns.
    #[arg(long, value_name = "NUMBER")]
    pub port: Option<u16>,
    /// Only rows of this protocol.
    #[arg(long, value_name = "PROTOCOL", ignore_case = true, value_parser = PROTOCOLS)]
    pub protocol: Option<String>,
}

/// The protocols that services have, as flags.
const PROTOCOLS: [&str; 3] = ["tcp", "udp", "sctp"];

/// Returns the protocol of services with this name, in any case.
pub(super) fn protocol_named(name: &str) -> Option<Protocol> {
    let known = [Protocol::TCP, Protocol::UDP, Protocol::SCTP];
    let mut named = known.into_iter();
    named.find(|protocol| protocol.name().eq_ignore_ascii_case(name))
}

/// A service as a user writes it: NAME or NAMESPACE/NAME, perhaps with :PORT.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceArg {
    pub namespace: Option<String>,
    pub name: String,
    /// The port's name or number, if one is given.
    pub port: Option<String>,
}

/// Writes the argument as `NAMESPACE/NAME:PORT`, without the parts that the user did not give.
impl Display for ServiceArg {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)?;
        match &self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

impl FromStr for ServiceArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kinds = ["services/", "service/", "svc/"];
        let named = kinds.iter().find_map(|kind| text.strip_prefix(kind));
        let (service, port) = match named.unwrap_or(text).split_once(':') {
            Some((service, port)) => (service, Some(port)),
            None => (named.unwrap_or(text), None),
        };
        let (namespace, name) = match service.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, service),
        };
        let is_label = |word: &str| {
            let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            !word.is_empty() && word.len() <= 63 && word.chars().all(fits)
        };
        let words = [Some(name), namespace, port];
        if !words.into_iter().flatten().all(is_label) {
            return Err("use NAME, NAMESPACE/NAME, or either with :PORT".to_owned());
        }
        Ok(Self {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
            port: port.map(str::to_owned),
        })
    }
}

impl ServiceArg {
    /// Returns whether this means the service with this name, written as NAMESPACE/NAME.
    pub(super) fn means(&self, service: &str) -> bool {
        let (namespace, name) = service.split_once('/').unwrap_or(("", service));
        self.name == name && self.namespace.as_ref().is_none_or(|one| one == namespace)
    }
    /// Returns whether this means a service's port of this name, or with one of these numbers.
    pub(super) fn means_port(&self, name: &str, numbers: &[u16]) -> bool {
        self.port.as_ref().is_none_or(|wanted| {
            wanted == name || wanted.parse().is_ok_and(|one| numbers.contains(&one))
        })
    }
}

fn range(text: &str) -> Result<IpNet, String> {
    let address = text.parse::<IpAddr>().map(IpNet::from);
    let range = address.or_else(|_| text.parse());
    range.map_err(|_| "use an IP address, or a range as 10.0.0.0/8".to_owned())
}

/// Splits a service port's name, such as `shop/cart:http`, into those of the service and the port.
pub(super) fn split_port(name: &str) -> (&str, &str) {
    name.split_once(':').unwrap_or((name, ""))
}

impl Select {
    /// Fails if the name and --namespace contradict each other.
    pub(super) fn check(&self) -> Result<(), BadInput> {
        let of_name = self.name.as_ref().and_then(|name| name.namespace.as_ref());
        match (of_name, &self.namespace) {
            (Some(one), Some(other)) if one != other => Err(BadInput(format!(
                "NAME is of the namespace {one}, and --namespace is {other}"
            ))),
            _ => Ok(()),
        }
    }
    /// Returns whether the arguments select this service, written as NAMESPACE/NAME.
    pub(super) fn wants_service(&self, service: &str) -> bool {
        let (namespace, _) = service.split_once('/').unwrap_or(("", service));
        self.name.as_ref().is_none_or(|name| name.means(service))
            && self.namespace.as_ref().is_none_or(|one| one == namespace)
    }
    /// Returns whether the arguments select a row about this service port, which shows `ends`.
    pub(super) fn wants(
        &self,
        service: &str,
        port_name: &str,
        port: u16,
        protocol: &str,
        ends: &[SocketAddr],
    ) -> bool {
        let is_own = |wanted: &ServiceArg| wanted.means_port(port_name, &[port]);
        let has_port = |port| ends.iter().any(|end| end.port() == port);
        let has_address = |range: IpNet| ends.iter().any(|end| range.contains(&end.ip()));
        let protocols = self.protocol.as_ref();
        // The cheap comparisons come first, because there may be very many rows.
        self.port.is_none_or(has_port)
            && protocols.is_none_or(|wanted| wanted.eq_ignore_ascii_case(protocol))
            && self.address.is_none_or(has_address)
            && self.wants_service(service)
            && self.name.as_ref().is_none_or(is_own)
    }
    /// Returns the given filters and `more`, as a user writes them. The service is not among them,
    /// because one that is not served is an error.
    pub(super) fn filters(&self, more: &[(&str, Option<String>)]) -> String {
        let protocol = self.protocol.as_ref().map(|one| one.to_uppercase());
        let port = self.name.as_ref().and_then(|name| name.port.clone());
        let own = [
            ("the port", port),
            ("--address", self.address.map(|range| range.to_string())),
            ("--port", self.port.map(|port| port.to_string())),
            ("--protocol", protocol),
        ];
        let given = own.iter().chain(more).filter_map(|(flag, value)| {
            let value = value.as_ref().filter(|value| !value.is_empty())?;
            Some(format!("{flag} {value}"))
        });
        given.collect::<Vec<_>>().join(" and ")
    }
    /// Fails if the arguments name a service or a namespace that is not in the maps: an empty list
    /// would hide that the name is wrong.
    pub(super) fn check_known(&self, reader: &Reader) -> Result<()> {
        if (self.name.is_none() && self.namespace.is_none())
            || reader.serves(|service| self.wants_service(service))
        {
            return Ok(());
        }
        let name = self.name.as_ref();
        let within = name.and_then(|name| name.namespace.as_ref());
        let within = within.or(self.namespace.as_ref());
        let within = within.map_or_else(String::new, |name| format!(" in the namespace {name}"));
        let name = name.map_or_else(String::new, |name| format!(" {:?}", name.name));
        anyhow::bail!("no service{name}{within} is served here")
    }
}

/// How to show anything.
#[derive(clap::Args, Clone, PartialEq, Debug)]
#[command(next_help_heading = SHOWING)]
pub struct Look {
    /// Format of the output; wide is every column, never cut.
    #[arg(long, short, value_name = "FORMAT", value_enum, default_value_t)]
    pub output: Format,
    /// Show it again and again, until interrupted.
    #[arg(long, short)]
    pub watch: bool,
    /// Seconds between two looks of --watch.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds, requires = "watch")]
    pub interval: Duration,
}

/// How to show rows.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = SHOWING)]
pub struct Show {
    #[command(flatten)]
    pub look: Look,
    /// Sort by this column.
    #[arg(long, value_name = "COLUMN")]
    pub sort_by: Option<String>,
    /// The other way round: the greatest first.
    #[arg(long)]
    pub reverse: bool,
    /// Leave out the table's headings.
    #[arg(long)]
    pub no_headers: bool,
    /// Show at most so many rows.
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Only count the rows.
    #[arg(long, conflicts_with_all = ["sort_by", "reverse", "no_headers", "limit"])]
    pub count: bool,
}

impl Show {
    /// Fails if a flag would have no effect with the chosen output format.
    pub(super) fn check(&self) -> Result<(), BadInput> {
        match self.look.output {
            Format::Table | Format::Wide => Ok(()),
            _ if self.no_headers => Err(BadInput(
                "--no-headers is for tables; other formats have no headings".to_owned(),
            )),
            _ => Ok(()),
        }
    }
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.trim_end_matches('s').parse::<f64>().ok();
    let seconds = seconds.filter(|seconds| (0.1..=3600.0).contains(seconds));
    let duration = seconds.map(Duration::from_secs_f64);
    duration.ok_or_else(|| "use seconds from 0.1 to 3600".to_owned())
}

#[cfg(test)]
#[path = "args_tests.rs"]
pub(super) mod tests;
