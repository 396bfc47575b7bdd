// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The project's own commands (`cargo xtask ...`), one module each. Read `setup` first: every
//! command that builds calls it first.

mod cargo;
mod cluster;
mod command;
mod cross;
mod deploy;
mod fs;
mod host;
mod image;
mod kernels;
mod lab;
mod lint;
mod monitor;
mod oci;
mod release;
mod setup;
mod summary;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use cluster::suites;

#[derive(Parser)]
#[command(bin_name = "cargo xtask", about = "portolan's own commands")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Find or install everything the other commands need
    Setup,
    /// Check format, lints, documentation and the project's own rules
    Lint(lint::Arguments),
    /// Run the tests; without a name, all of them and the lints
    Test(test::Arguments),
    /// Compare the kernel programs with a model, by random sequences of packets and changes (root)
    Fuzz(lab::Fuzz),
    /// Live an ordinary life on a node until ports and pods have come round, or disturb it by
    /// `--disturb`; nothing may fail (root)
    Soak(lab::Passed),
    /// Show the main job on a node made of network namespaces; --keep: let it stay (root)
    Demo(lab::Passed),
    /// Run conformance cases against the real agent (root)
    Conformance(lab::Passed),
    /// Build the container image as an OCI archive
    Image(image::Arguments),
    /// Make everything that a release has: image, archives, chart, bills of materials,
    /// checksums, a signature
    Release(release::Arguments),
    /// Boot Debian's kernels in qemu, run tests in each, and write what came of it (root)
    Kernels(kernels::Arguments),
    /// Build real nodes and a control plane on this machine, with portolan or kube-proxy (root)
    #[command(subcommand)]
    Cluster(cluster::Action),
    /// Run upstream Kubernetes' own tests in the cluster that `cluster up` has built (root)
    E2e(suites::E2e),
    /// Run the Gateway API's own conformance suite in that cluster (root)
    Gateway,
    /// Renew what tests know of the real kube-proxy: proxy-user/kube-proxy (root)
    KubeProxy,
    /// Measure (root)
    Bench(lab::Arguments),
    /// Check the alerts by promtool, and run their tests
    Monitor,
    /// Compare portolan with kube-proxy and with no proxy, and write a report (root)
    Lab(lab::Passed),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Setup => setup::run(setup::Needs::All).map(drop),
        Command::Lint(arguments) => lint::run(&arguments),
        Command::Test(arguments) => test::run(&arguments),
        Command::Fuzz(arguments) => lab::fuzz(&arguments),
        Command::Soak(arguments) => lab::soak(&arguments),
        Command::Demo(arguments) => lab::demo(&arguments),
        Command::Conformance(arguments) => lab::conformance(&arguments),
        Command::Image(arguments) => image::run(&arguments),
        Command::Release(arguments) => release::run(&arguments),
        Command::Kernels(arguments) => kernels::run(&arguments),
        Command::Cluster(action) => cluster::run(&action),
        Command::E2e(arguments) => suites::e2e(&arguments),
        Command::Gateway => suites::gateway(),
        Command::KubeProxy => lab::ask_kube_proxy(),
        Command::Bench(arguments) => lab::bench(&arguments),
        Command::Monitor => monitor::run(),
        Command::Lab(arguments) => lab::compare(&arguments),
    };
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    eprintln!("error: {error:#}");
    ExitCode::FAILURE
}
