// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the agent of this node and sends requests to its HTTP servers. Takes the pin directory,
//! and the servers' addresses if they are given. Returns the answers, or one line that says why
//! there are none. Used by commands that also work without an agent.

use std::{
    ffi::OsString,
    fs,
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, ensure};
use config::Config;
use datapath::{DEFAULT_PIN_DIR, maps::holder_of};
use serde_json::Value;

use super::{
    command_line::words,
    frame::Pins,
    run::{Given, RunArgs},
};

/// The timeout of a request: an agent that hangs must not block the commands that diagnose it.
const PATIENCE: Duration = Duration::from_secs(3);
/// The largest answer of the agent that is read, in bytes. The agent sends no larger ones.
const LONGEST: u64 = 64 << 20;

/// Where the agent is.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct AgentArgs {
    #[command(flatten)]
    pub pins: Pins,
    /// Where the agent serves /healthz [default: by its command line, else port 10256 of this
    /// host].
    #[arg(long, value_name = "IP:PORT")]
    pub healthz_bind_address: Option<SocketAddr>,
    /// Where the agent serves /metrics, /configz and /warnings [default: by its command line, else
    /// port 10249 of this host].
    #[arg(long, value_name = "IP:PORT")]
    pub metrics_bind_address: Option<SocketAddr>,
}

impl AgentArgs {
    /// Returns arguments for the agent of this pin directory, at the addresses of its command line.
    pub(super) fn at(pin_dir: &Path) -> Self {
        Self {
            pins: Pins {
                pin_dir: pin_dir.to_owned(),
            },
            ..Self::default()
        }
    }

    /// Returns the same arguments, with another pin directory if no process uses the default one:
    /// that of the agent that answers at the usual address.
    pub(super) fn located(&self) -> Self {
        let usual = Path::new(DEFAULT_PIN_DIR);
        let mut located = self.clone();
        if self.pins.pin_dir == usual && holder_of(usual).is_none() {
            let settings = Agent::find(self).json("/configz");
            let told = settings.ok().and_then(|settings| {
                let settings = &settings["kubeproxy.config.k8s.io"]["portolan"];
                settings["pinDirectory"].as_str().map(PathBuf::from)
            });
            located.pins.pin_dir = told.unwrap_or(located.pins.pin_dir);
        }
        located
    }
}

/// The agent that uses a pin directory, whether it runs or not.
pub(super) struct Agent {
    /// The id of the agent's process; `None` if no agent runs, or if it is invisible from here.
    pub(super) pid: Option<u32>,
    /// The agent's settings, from its command line and file; the defaults if that cannot be read.
    pub(super) config: Config,
    /// The agent's arguments, with file paths that this process can open, if they can be read.
    pub(super) given: Option<Given>,
    healthz: SocketAddr,
    metrics: SocketAddr,
}

impl Agent {
    /// Finds the agent: the process that has locked the pin directory.
    pub(super) fn find(args: &AgentArgs) -> Self {
        let pid = holder_of(&args.pins.pin_dir);
        let run = pid.and_then(arguments_of);
        let config = run.as_ref().and_then(|run| run.given.settings().ok());
        let config = config.unwrap_or_default();
        let at = |given: Option<SocketAddr>, own| reachable(given.unwrap_or(own));
        Self {
            pid,
            healthz: at(args.healthz_bind_address, config.healthz_bind_address),
            metrics: at(args.metrics_bind_address, config.metrics_bind_address),
            config,
            given: run.map(|run| run.given),
        }
    }

    /// Requests a path from the agent's health server; returns the HTTP status and the body.
    pub(super) fn health(&self, path: &str) -> Result<(u16, String)> {
        get(self.healthz, path)
    }
    /// Requests a path from the agent's metrics server; another status than 200 is an error.
    pub(super) fn metrics(&self, path: &str) -> Result<String> {
        let (status, body) = get(self.metrics, path)?;
        let from = self.metrics;
        ensure!(
            status == 200,
            "the process at {from} answers {status} to {path}: is it another version of portolan, or kube-proxy?"
        );
        Ok(body)
    }
    /// Requests a path from the agent's metrics server, and parses the body as JSON.
    pub(super) fn json(&self, path: &str) -> Result<Value> {
        let from = self.metrics;
        serde_json::from_str(&self.metrics(path)?)
            .map_err(|error| anyhow!("the process at {from} answers no JSON to {path}: {error}"))
    }
}

/// Returns where a server that listens at `address` is reached. KUBE: an unspecified one means all.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        ip if !ip.is_unspecified() => {}
        IpAddr::V4(_) => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(_) => address.set_ip(Ipv6Addr::LOCALHOST.into()),
    }
    address
}

/// Returns the arguments of an agent's process, with file paths that this process can open.
fn arguments_of(pid: u32) -> Option<RunArgs> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let line = String::from_utf8(line).ok()?;
    let words = words(line.split_terminator('\0').map(OsString::from));
    let (_, words) = words.split_first()?;
    words.first().filter(|command| *command == "run")?;
    let mut args = RunArgs::parsed(words.to_vec()).ok()?;
    let files = [&mut args.given.config, &mut args.given.manifests];
    let files = files.into_iter().flatten();
    for file in files.filter(|file| !file.as_os_str().is_empty()) {
        *file = as_seen_by(pid, file);
    }
    Some(args)
}

/// Converts a file path of a process, perhaps in a container, to one that this process can open.
fn as_seen_by(pid: u32, path: &Path) -> PathBuf {
    let (from, rest) = match path.strip_prefix("/") {
        Ok(rest) => ("root", rest),
        Err(_) => ("cwd", path),
    };
    Path::new(&format!("/proc/{pid}/{from}")).join(rest)
}

/// Requests a path from the server at `from`; returns the HTTP status and the body. With HTTP/1.0
/// the server closes the connection after the answer.
pub(super) fn get(from: SocketAddr, path: &str) -> Result<(u16, String)> {
    ensure!(
        from.port() != 0,
        "the agent beside another proxy was not told where to serve {path}: see --service-proxy-name"
    );
    let answer = ask(from, path)
        .map_err(|error| anyhow!("the agent is not reachable at http://{from}{path}: {error}"))?;
    parse(&answer).with_context(|| format!("the process at {from} does not speak HTTP"))
}

fn ask(from: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&from, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {from}\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(LONGEST).read_to_string(&mut answer)?;
    Ok(answer)
}

fn parse(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let mut words = head.strip_prefix("HTTP/1.")?.split_whitespace();
    Some((words.nth(1)?.parse().ok()?, body.to_owned()))
}

/// Returns the value of a metric in `text`, a page of /metrics. `name` may include labels, as the
/// page writes them. `None` if it is missing.
pub(super) fn metric(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix(' ')?;
        value.split(' ').next()?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    #[test]
    fn an_http_answer_is_parsed_into_status_and_body() {
        let parsed = parse("HTTP/1.1 503 Service Unavailable\r\na: b\r\n\r\n{\"x\": 1}\r\n\r\n");
        assert_eq!(parsed, Some((503, "{\"x\": 1}\r\n\r\n".to_owned())));
        for other in ["", "SSH-2.0-OpenSSH\r\n", "HTTP/1.1 x\r\n\r\n"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn an_agent_that_does_not_answer_http_is_named_in_one_line() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = listener.local_addr().expect("its address");
        let serving = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            stream.write_all(b"SSH-2.0\r\n").expect("written");
        });
        let said = || get(address, "/healthz").expect_err("refused").to_string();
        assert!(said().contains(&address.to_string()));
        serving.join().expect("served");
        let silent =
            format!("the agent is not reachable at http://{address}/healthz: Connection refused");
        let said = said();
        assert!(said.starts_with(&silent) && !said.contains('\n'), "{said}");
    }

    #[test]
    fn an_unspecified_listen_address_is_reached_by_loopback() {
        let reached = |address: &str| reachable(address.parse().expect("an address")).to_string();
        assert_eq!(reached("0.0.0.0:10256"), "127.0.0.1:10256");
        assert_eq!(reached("[::]:10256"), "[::1]:10256");
        assert_eq!(reached("10.0.0.1:1"), "10.0.0.1:1");
    }

    #[test]
    fn a_metric_is_found_only_by_its_whole_name_and_labels() {
        let text = "# HELP a_b x\na_bc 7\na_b{k=\"v\"} 3\na_b 2.5\n";
        assert_eq!(metric(text, "a_b"), Some(2.5));
        assert_eq!(metric(text, "a_b{k=\"v\"}"), Some(3.0));
        assert_eq!(metric(text, "a"), None);
    }
}
