// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `portolan dump`: writes one archive for a bug report, with JSON and text files. It contains what
//! the commands that read the maps show, the agent's answers, and the host's state. Credentials are
//! not read at all: no kubeconfig, no token, no file that a setting names.

mod archive;
mod host;

use std::path::PathBuf;

use anyhow::Result;
use config::{Config, telemetry};
use datapath::{
    chains, pinned_links,
    read::{Reader, pinned_maps},
};

use self::archive::Archive;
use super::{
    agent::{Agent, AgentArgs},
    check, counters, flows, run, settings, sockets, status,
};

/// Arguments of `portolan dump`.
#[derive(clap::Args, Clone, Debug)]
pub struct DumpArgs {
    /// The archive to write, as FILE.tar.gz; - for standard output.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Put in at most so many flows and sockets.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub flows: usize,
    #[command(flatten)]
    pub agent: AgentArgs,
}

/// Writes the archive, and prints what could not be put into it.
pub(super) fn run(args: &DumpArgs) -> Result<()> {
    let agent = Agent::find(&args.agent);
    let status = status::read(&args.agent)?;
    let node = run::node_name(agent.config.hostname_override.as_deref());
    let mut dump = Archive::create(&args.file, &node.unwrap_or_else(|_| "node".to_owned()))?;
    dump.add("README.txt", include_bytes!("README.txt"))?;
    dump.json("status.json", Ok::<_, anyhow::Error>(status))?;
    maps(&mut dump, args)?;
    answers(&mut dump, &agent)?;
    let config = Config {
        pin_directory: args.agent.pins.pin_dir.clone(),
        ..agent.config.clone()
    };
    dump.json("check.json", check::seen(&config))?;
    dump.json("interfaces.json", host::interfaces(&agent.config))?;
    dump.json("chains.json", Ok::<_, anyhow::Error>(chains()))?;
    dump.add("kernel.txt", host::kernel().as_bytes())?;
    dump.add("sysctls.txt", host::sysctls().as_bytes())?;
    for error in dump.finish()? {
        telemetry::fail(&anyhow::anyhow!("not in the dump: {error}"));
    }
    Ok(())
}

/// Adds the contents of the pinned maps to the archive.
fn maps(dump: &mut Archive, args: &DumpArgs) -> Result<()> {
    let pin_dir = &args.agent.pins.pin_dir;
    dump.json("programs.json", pinned_links(pin_dir))?;
    dump.json("maps.json", pinned_maps(pin_dir))?;
    let reader = match Reader::open(pin_dir) {
        Ok(reader) => reader,
        Err(error) => {
            dump.errors.push(error.to_string());
            return Ok(());
        }
    };
    dump.json("services.json", reader.frontends())?;
    dump.json("backends.json", reader.backends())?;
    dump.json("affinity.json", reader.affinities())?;
    dump.json("flows.json", flows::rows(&reader, |_| true, args.flows))?;
    let sockets = reader.sockets().map(|mut rows| {
        rows.truncate(args.flows);
        sockets::with_owners(rows, &sockets::owners(true))
    });
    dump.json("sockets.json", sockets)?;
    let counters = reader.counters();
    dump.json("counters.json", counters.map(|all| counters::rows(&all)))?;
    let settings = reader.settings();
    dump.text("settings.txt", settings.map(|all| format!("{all:#?}\n")))
}

/// Adds the answers of the agent's HTTP servers to the archive.
fn answers(dump: &mut Archive, agent: &Agent) -> Result<()> {
    for path in ["/healthz", "/livez"] {
        let body = agent.health(path).map(|(_, body)| body);
        dump.text(&format!("agent{path}.json"), body)?;
    }
    dump.text("agent/metrics.txt", agent.metrics("/metrics"))?;
    let configz = agent.json("/configz");
    dump.json("config.json", configz.as_ref().map(settings::rows))?;
    dump.json("agent/configz.json", configz)?;
    dump.json("warnings.json", super::warnings::read(agent))
}
