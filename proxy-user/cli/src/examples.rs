// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The example commands that `--help` shows below each command.

pub(super) const ALL: &str = "\
Examples:
  portolan status                            is all well on this node?
  portolan explain --from 10.40.1.9 --to shop/cart   why is there no answer?
  portolan services shop/cart                what does this service have?
  portolan top --watch                       who is busy now?

`portolan COMMAND --help` has every argument, and examples.";

pub(super) const RUN: &str = "\
Examples:
  portolan run --config /var/lib/kube-proxy/config.conf --hostname-override node-a   kube-proxy's own file
  portolan run --manifests DIR --hostname-override NODE   services of a folder, without a cluster
  portolan run --service-proxy-name canary --kubeconfig FILE
                                             beside another proxy, only services with that label

docs/settings.md explains all settings; some are in the configuration file only.";

pub(super) const TEST: &str = "\
Examples:
  portolan test                              the API server's service, which every cluster has
  portolan test shop/cart                    every address and TCP port of a service
  portolan test shop/cart:http --within 30   try for half a minute

Exit status: 0 if every connection is accepted, 1 if one is not, 2 for input that cannot be read.";

pub(super) const VERSION: &str = "\
Examples:
  portolan version                           what runs here?
  portolan version -o json                   for a script";

pub(super) const CHECK: &str = "\
Examples:
  portolan check                             would it work on this node?
  portolan check --migration --config FILE --kubeconfig FILE   what would differ from kube-proxy?

Exit status: 0 if nothing is in the way and nothing differs, 1 if something differs but works, 2 for input that cannot be read, 3 if \
something is in the way.";

pub(super) const MOUNT_BPFFS: &str = "\
Examples:
  portolan mount-bpffs                       on /sys/fs/bpf, unless there is one";

pub(super) const INIT: &str = "\
Examples:
  portolan init --config FILE                what a DaemonSet does before the agent starts";

pub(super) const WAIT: &str = "\
Examples:
  portolan wait --foreign-connections        then kube-proxy's rules may go
  portolan wait --kube-proxy                 then portolan may go";

pub(super) const SERVICES: &str = "\
Examples:
  portolan services                          every address and port
  portolan services -n shop cart             of one service
  portolan services --address 10.96.0.10     whose address is this?
  portolan services -o jsonpath='{.items[?(@.kind==\"cluster-ip\"&&@.internalEndpoints==0)].service}'   without endpoints";

pub(super) const BACKENDS: &str = "\
Examples:
  portolan backends shop/cart:http           the endpoints of one port
  portolan backends --address 10.40.1.0/24 --count   how many endpoints are in a range?
  portolan backends -o wide --kubeconfig FILE   which pods are they?";

pub(super) const FLOWS: &str = "\
Examples:
  portolan flows shop/cart                   who talks to this service?
  portolan flows --client 10.40.1.9 --watch  what does this client do?
  portolan flows --state unanswered --sort-by idle --reverse   whom does nobody answer, the longest first?
  portolan flows --protocol udp --count      how many are there?";

pub(super) const SOCKETS: &str = "\
Examples:
  portolan sockets shop/cart -o wide         which processes use this service?
  portolan sockets --backend 10.40.1.20      who still talks to this endpoint?";

pub(super) const AFFINITY: &str = "\
Examples:
  portolan affinity shop/cart                which client goes where?
  portolan affinity --address 10.40.1.9 -o json";

pub(super) const STATUS: &str = "\
Examples:
  portolan status                            is all well on this node?
  portolan status -o name                    one word: healthy, unhealthy or unreachable
  portolan status -o jsonpath='{.problems[*]}'

Exit status: 0 if there is no problem, 1 otherwise.";

pub(super) const COUNTERS: &str = "\
Examples:
  portolan counters dropped --nonzero        what was dropped, and why
  portolan counters --watch --nonzero        rates";

pub(super) const TOP: &str = "\
Examples:
  portolan top --watch                       who is busy now?
  portolan top shop/cart --backends          how is it spread over the endpoints?
  portolan top --reasons                     who was refused, and why, so far?
  portolan top --programs                    what do the programs take?";

pub(super) const MAPS: &str = "\
Examples:
  portolan maps --sort-by memory             where is the kernel's memory?
  portolan maps flows                        how full is the flow table?";

pub(super) const WARNINGS: &str = "\
Examples:
  portolan warnings                          what should be looked after?
  portolan warnings cart -o json             what of one service?";

pub(super) const CONFIG: &str = "\
Examples:
  portolan config --changed                  what is not the default, and why
  portolan config conntrack                  settings of one section
  portolan config --config FILE              what would this file mean?";

pub(super) const TRACE: &str = "\
Examples:
  portolan trace --service shop/cart         what happens to the packets and calls of a service
  portolan trace --verdict drop,reject       what is refused, and why
  portolan trace --client 10.244.1.7 --port 80 --limit 20
  portolan trace --port 53 --duration 10 --write dns.pcapng";

pub(super) const DUMP: &str = "\
Examples:
  portolan dump node-a.tar.gz                look into it before you send it: it names services and addresses";

pub(super) const COMPLETIONS: &str = "\
Examples:
  portolan completions bash > /etc/bash_completion.d/portolan
  portolan completions zsh > ~/.zfunc/_portolan";

pub(super) const CLEANUP: &str = "\
Examples:
  portolan cleanup --dry-run                 what would be removed?
  portolan cleanup --drain                   once the last connection has ended";

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use crate::Cli;

    /// Returns the example commands in the help text of a command, without their explanations.
    fn examples(help: &str) -> Vec<String> {
        let lines = help
            .lines()
            .filter_map(|line| line.strip_prefix("  portolan "));
        let commands = lines.map(|line| line.split("  ").next().unwrap_or(line));
        let bare = commands.map(|command| command.split(" > ").next().unwrap_or(command));
        bare.map(|command| command.trim().to_owned()).collect()
    }

    #[test]
    fn every_command_has_examples_that_it_parses() {
        let mut command = Cli::command();
        command.build();
        let top = command
            .get_subcommands()
            .filter(|one| one.get_name() != "help");
        let all = top.flat_map(|one| std::iter::once(one).chain(one.get_subcommands()));
        for one in all.filter(|one| one.get_name() != "help") {
            let help = one
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            let examples = examples(&help);
            assert!(!examples.is_empty(), "{} has none", one.get_name());
            for example in examples {
                let bare = example.replace('\'', "");
                let words = std::iter::once("portolan").chain(bare.split_whitespace());
                if let Err(error) = Cli::try_parse_from(words) {
                    panic!("{example}: {error}");
                }
            }
        }
    }

    #[test]
    fn docs_commands_md_has_every_command() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands.md");
        let page = std::fs::read_to_string(page).expect("the page");
        let mut headings = page.lines().filter_map(|line| line.strip_prefix("## "));
        let headings = headings.by_ref().flat_map(|line| line.split(", "));
        let headings: Vec<_> = headings.collect();
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            assert!(
                headings.contains(&name),
                "docs/commands.md does not have {name}"
            );
        }
    }
}
