// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The log lines of the kernel programs: contradictions that they find in the maps, and every
//! packet of a service if they were loaded with the option `log_packets`. Started by `agent`.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use aya::Ebpf;
use aya_log::EbpfLogger;
use proxy_common::{Counter, Protocol};

/// A reader of the programs' log lines.
pub struct ProgramLog {
    logger: EbpfLogger<Lines>,
}

/// Receives the programs' log lines and writes them to the agent's log.
struct Lines;

impl log::Log for Lines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        let text = record.args().to_string();
        let line = render(&text).unwrap_or(text);
        if record.level() == log::Level::Error {
            tracing::error!(
                "{line}; the maps contradict each other: restart the agent and report this"
            );
        } else {
            tracing::info!("{line}");
        }
    }
    fn flush(&self) {}
}

impl ProgramLog {
    pub(crate) fn open(ebpf: &mut Ebpf) -> Result<Self, aya_log::Error> {
        let logger = EbpfLogger::init_with_logger(ebpf, Lines)?;
        Ok(Self { logger })
    }
    /// Copies the programs' log lines into the agent's log at this interval. Never returns.
    pub async fn follow(mut self, every: Duration) {
        let mut tick = tokio::time::interval(every);
        loop {
            tick.tick().await;
            self.logger.flush();
        }
    }
}

/// Returns a program's log line with names in place of the numbers that `proxy-ebpf/src/tc/log.rs`
/// writes; `None` if the line has another form.
fn render(text: &str) -> Option<String> {
    let words: Vec<_> = text.split(' ').collect();
    let [
        "interface",
        interface,
        "protocol",
        protocol,
        "from",
        source,
        source_port,
        "to",
        destination,
        destination_port,
        "outcome",
        outcome,
    ] = words[..]
    else {
        return None;
    };
    let socket = |address: &str, port: &str| -> Option<SocketAddr> {
        Some((address.parse::<IpAddr>().ok()?, port.parse::<u16>().ok()?).into())
    };
    let counter = Counter::ALL.get(outcome.parse::<usize>().ok()?)?;
    let protocol = match Protocol(protocol.parse().ok()?).name() {
        "?" => format!("protocol {protocol}"),
        name => name.to_owned(),
    };
    Some(format!(
        "{}: {protocol} {} -> {} at interface {interface}",
        counter.name(),
        socket(source, source_port)?,
        socket(destination, destination_port)?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_a_packets_log_line_are_replaced_by_names() {
        const V4: &str = "forwarded_new: UDP 10.0.0.1:1025 -> 10.96.0.10:53 at interface 7";
        const V6: &str = "forwarded_hit: TCP [fd00::1]:1025 -> [fd00:96::1]:80 at interface 7";
        for (line, shown) in [
            ("17 from 10.0.0.1 1025 to 10.96.0.10 53 outcome 2", Some(V4)),
            ("6 from fd00::1 1025 to fd00:96::1 80 outcome 1", Some(V6)),
            ("something else", None),
            ("6 from a 1025 to fd00:96::1 80 outcome 1", None),
            ("6 from fd00::1 1025 to fd00:96::1 80 outcome 999", None),
        ] {
            let line = format!("interface 7 protocol {line}");
            assert_eq!(render(&line).as_deref(), shown, "{line}");
        }
        assert_eq!(render("something else"), None);
    }
}
