// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask docs`: runs the commands of the documentation pages, word by word, in the cluster
//! that `cluster up` has built, while clients send requests, and reports how long each took and how
//! many requests failed.

mod background;
mod page;
mod run;
mod steps;
mod words;

use anyhow::{Context, Result, ensure};

use self::{
    run::Rehearsal,
    steps::{LEFT_OUT, LeftOut, STEPS, Step},
};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only name the commands, and those that are left out
    #[arg(long)]
    list: bool,
    /// Begin with the round from kube-proxy that has this number
    #[arg(long, default_value_t = 1)]
    round: usize,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let commands = page::all()?;
    if arguments.list {
        for command in &commands {
            let reason =
                left_out(command).map_or(String::new(), |why| format!("   (left out: {why})"));
            println!("{command}{reason}");
        }
        return Ok(());
    }
    let tools = super::standing()?;
    let mut rehearsal = Rehearsal::new(&tools, commands)?;
    let mut round = 0;
    let steps = STEPS.iter().filter(|step| {
        round += usize::from(matches!(step, Step::KubeProxy(_)));
        round >= arguments.round
    });
    let ended = steps.into_iter().try_for_each(|step| {
        eprintln!("docs: {step:?}");
        rehearsal.go(*step).with_context(|| format!("{step:?}"))
    });
    println!("{}", rehearsal.table());
    ended?;
    let failed = rehearsal.end()?;
    ensure!(failed == 0, "{failed} requests failed");
    Ok(())
}

fn left_out(command: &page::Command) -> Option<&'static str> {
    let found = LEFT_OUT.iter().find(|left_out| is_meant(left_out, command));
    found.map(|(.., why)| *why)
}

fn is_meant((page, section, start, _): &LeftOut, command: &page::Command) -> bool {
    *page == command.page
        && (section.is_empty() || *section == command.section)
        && command.line.starts_with(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_in_the_pages_is_run_or_left_out_for_a_reason() {
        for command in page::all().unwrap() {
            let tried = STEPS.iter().any(|step| match step {
                Step::Busy(page, section, part)
                | Step::Quiet(page, section, part)
                | Step::Beside(page, section, part) => {
                    *page == command.page
                        && *section == command.section
                        && command.line.contains(part)
                }
                Step::Said(line) => command.line == *line,
                _ => false,
            });
            let known = tried || left_out(&command).is_some();
            assert!(
                known,
                "{command}: neither a step of the rehearsal nor left out"
            );
        }
    }

    #[test]
    fn every_command_left_out_is_on_its_page() {
        let commands = page::all().unwrap();
        for left_out in LEFT_OUT {
            let found = commands.iter().any(|command| is_meant(left_out, command));
            assert!(found, "{left_out:?}");
        }
    }
}
