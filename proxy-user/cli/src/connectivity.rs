// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan test`: connects to the addresses of a service from this node, as its clients do; or,
//! in a pod without maps, to addresses that are given. With `--serve` it is the server of such a
//! test: `helm test` runs both.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    process::ExitCode,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use datapath::read::{Frontend, Reader};

use super::{
    args::{Select, ServiceArg},
    frame::Pins,
    signals::end_by_signal,
    table::{Column, column, plain, table},
    terminal::Page,
};

/// How long one connection may take. A SYN is repeated after a second.
const PATIENCE: Duration = Duration::from_secs(3);
/// The pause between two attempts of `--within`.
const PAUSE: Duration = Duration::from_millis(500);
/// The service that every cluster has.
const USUAL: &str = "default/kubernetes";

/// Arguments of `portolan test`.
#[derive(clap::Args, Clone, Debug)]
pub struct TestArgs {
    #[command(flatten)]
    pub pins: Pins,
    /// The service: NAME, NAMESPACE/NAME, or either with :PORT, which is a name or a number
    /// [default: default/kubernetes].
    #[arg(value_name = "NAME", conflicts_with_all = ["connect", "serve"])]
    pub name: Option<ServiceArg>,
    /// The service's namespace.
    #[arg(long, short, value_name = "NAMESPACE", requires = "name")]
    pub namespace: Option<String>,
    /// Connect to this address instead, without the maps; may be repeated.
    #[arg(long, value_name = "IP:PORT", conflicts_with = "serve", value_parser = socket)]
    pub connect: Vec<SocketAddr>,
    /// How often to connect to each address: each time another endpoint may answer. Shown is the
    /// slowest connection, or the first that fails.
    #[arg(long, value_name = "TIMES", default_value_t = 1)]
    pub count: u32,
    /// Also connect to each endpoint of the service, past its addresses.
    #[arg(long, conflicts_with_all = ["connect", "serve"])]
    pub each: bool,
    /// Seconds for which failed connections are tried again.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub within: u64,
    /// Accept connections at this port until SIGTERM.
    #[arg(long, value_name = "PORT")]
    pub serve: Option<u16>,
}

/// Parses an address with a port. One of IPv6 may lack brackets, as in joined variables.
fn socket(text: &str) -> Result<SocketAddr, String> {
    let joined = || {
        let (address, port) = text.rsplit_once(':')?;
        Some(SocketAddr::new(address.parse().ok()?, port.parse().ok()?))
    };
    let found = text.parse().ok().or_else(joined);
    found.ok_or_else(|| "use an address with a port, as 10.96.0.1:443".to_owned())
}

/// One address, and what came of the connection to it.
struct Tried {
    kind: &'static str,
    address: SocketAddr,
    outcome: io::Result<Duration>,
}

const COLUMNS: &[Column<Tried>] = &[
    column("KIND", 0, |tried| plain(tried.kind)),
    column("ADDRESS", 0, |tried| plain(tried.address)),
    column("RESULT", 0, |tried| plain(result(&tried.outcome))),
];

fn result(outcome: &io::Result<Duration>) -> String {
    match outcome {
        Ok(took) => format!("connected in {:.1} ms", took.as_secs_f64() * 1e3),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            format!("no answer in {} s", PATIENCE.as_secs())
        }
        Err(error) => error.to_string(),
    }
}

/// Connects, and prints a line for each address. The exit status is 1 if a connection failed.
pub(super) fn run(args: &TestArgs) -> Result<ExitCode> {
    if let Some(port) = args.serve {
        return serve(port);
    }
    let given = args.connect.iter().map(|address| ("given", *address));
    let (targets, note) = match args.connect.is_empty() {
        true => of_service(args)?,
        false => (given.collect(), String::new()),
    };
    let until = Instant::now() + Duration::from_secs(args.within);
    let tried = targets.into_iter().map(|(kind, address)| Tried {
        kind,
        address,
        outcome: (0..args.count).try_fold(Duration::ZERO, |slowest, _| {
            Ok(slowest.max(connect(address, until)?))
        }),
    });
    let tried: Vec<_> = tried.collect();
    let page = Page::of_stdout();
    table(&mut io::stdout().lock(), &page, COLUMNS, true, &tried)?;
    print!("{note}");
    let failed = tried.iter().filter(|tried| tried.outcome.is_err()).count();
    if failed == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    let all = tried.len();
    println!("{failed} of {all} failed; `portolan explain --from node --to ADDRESS` says why");
    Ok(ExitCode::FAILURE)
}

fn connect(address: SocketAddr, until: Instant) -> io::Result<Duration> {
    loop {
        let begun = Instant::now();
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(_) => return Ok(begun.elapsed()),
            Err(error) if Instant::now() >= until => return Err(error),
            Err(_) => sleep(PAUSE),
        }
    }
}

/// Returns the addresses of the service's TCP ports that a process of this node can connect to,
/// each with its kind, and a note about the others.
fn of_service(args: &TestArgs) -> Result<(Vec<(&'static str, SocketAddr)>, String)> {
    let select = Select {
        name: args.name.clone().or_else(|| USUAL.parse().ok()),
        namespace: args.namespace.clone(),
        ..Select::default()
    };
    select.check()?;
    let reader = Reader::open(&args.pins.pin_dir)?;
    select.check_known(&reader)?;
    let mut rows = reader.frontends()?;
    rows.retain(|row| {
        let (service, name) = (&row.service, &row.port_name);
        select.wants(service, name, row.port, row.protocol, &[])
    });
    let settings = reader.settings()?;
    let internal = [settings.internal_v4.into(), settings.internal_v6.into()];
    let mut targets = targets(&rows, &reader.node_port_addresses()?, &internal);
    if args.each {
        let mut backends = reader.backends()?;
        backends.retain(|row| {
            let (service, name, port) = (&row.service, &row.port_name, row.service_port);
            row.protocol == "TCP" && select.wants(service, name, port, row.protocol, &[])
        });
        targets.extend(backends.iter().map(|row| ("backend", row.address)));
    }
    let name = select.name.as_ref().map_or("", |name| &name.name);
    ensure!(
        !targets.is_empty(),
        "service {name:?} has no TCP port to connect to; `portolan explain --protocol udp --follow` asks one of UDP"
    );
    let is_other = |row: &&Frontend| row.port != 0 && row.protocol != "TCP";
    let note = match rows.iter().filter(is_other).count() {
        0 => String::new(),
        count => format!("not tried: {count} addresses of UDP and SCTP\n"),
    };
    Ok((targets, note))
}

/// A node port is tried at an address of its family among `own`: the node's internal one, if that
/// is among them; a bridge's is no client's way.
fn targets(
    rows: &[Frontend],
    own: &[IpAddr],
    internal: &[IpAddr],
) -> Vec<(&'static str, SocketAddr)> {
    let first = own.iter().filter(|one| internal.contains(one));
    let own: Vec<_> = first.chain(own).collect();
    let at = |row: &Frontend| {
        let is_v6 = row.ip_family == "IPv6";
        let mut fitting = own.iter().filter(|address| address.is_ipv6() == is_v6);
        row.address.or_else(|| fitting.next().copied().copied())
    };
    let is_tcp = |row: &&Frontend| row.protocol == "TCP" && row.port != 0;
    let target = |row: &Frontend| Some((row.kind, SocketAddr::new(at(row)?, row.port)));
    rows.iter().filter(is_tcp).filter_map(target).collect()
}

/// Accepts connections and closes each once the client has.
fn serve(port: u16) -> Result<ExitCode> {
    let signals = end_by_signal()?;
    let any: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
    let listener = TcpListener::bind(&any.map(|any| SocketAddr::new(any, port))[..]);
    let listener = listener.with_context(|| format!("listen at port {port}"))?;
    signals.done();
    println!("accepting connections at port {port}");
    io::stdout().flush()?;
    for mut stream in listener.incoming().flatten() {
        stream.set_read_timeout(Some(PATIENCE))?;
        _ = stream.read(&mut [0]);
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::tests::rows;

    #[test]
    fn node_ports_are_tried_at_the_nodes_own_address_of_their_family() {
        // The first of IPv4 is a bridge's.
        let own = ["fd00::7", "10.40.1.1", "192.0.2.7", "198.51.100.1"];
        let own = own.map(|text| text.parse().expect("an address"));
        let found = targets(&rows(), &own, &own[2..3]).into_iter();
        let found = found.map(|(kind, address)| format!("{kind} {address}"));
        let wanted = [
            "cluster-ip 172.30.1.1:80",
            "node-port 192.0.2.7:30080",
            "cluster-ip 172.30.200.201:8443",
        ];
        assert_eq!(found.collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn addresses_of_the_environment_are_read() {
        for (text, address) in [
            ("10.96.0.1:443", "10.96.0.1:443"),
            ("[fd00::1]:443", "[fd00::1]:443"),
            ("fd00::1:443", "[fd00::1]:443"),
        ] {
            assert_eq!(socket(text), Ok(address.parse().expect("an address")));
        }
        assert!(socket("10.96.0.1").is_err() && socket(":443").is_err());
    }
}
