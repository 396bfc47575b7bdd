// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Renders the page docs/settings.md from the table of settings.

use clap::CommandFactory;
use cli::Cli;
use config::{
    Config,
    setting::{Group, Kind, Setting},
    table,
};
use datapath::{
    Capacities,
    maps::{Shape, shapes},
};

/// The beginning of the page.
const ABOUT: &str = include_str!("settings.md");

const UNUSED: &str = "\
They are accepted, so that kube-proxy's file and command line work unchanged. The agent logs those that are given a value.";

const AT_ONCE: &str = "These are in force a second or two after the file has changed:";

const DIFFERENCES: &str = "\
For the same file or command line, `/configz` shows the values that kube-proxy shows, but for these; a test compares them. A \
setting without a value is `null`, where kube-proxy shows an empty text.";

/// Returns the page.
pub(crate) fn page() -> String {
    let mut page = format!("{ABOUT}\n");
    page.extend(table::groups().iter().map(group));
    page += "## Flags without a key in the file\n\n";
    let in_table = |flag: &str| table::settings().any(|setting| setting.flag == Some(flag));
    let command = Cli::command();
    let run = command.find_subcommand("run");
    let arguments = run.into_iter().flat_map(clap::Command::get_arguments);
    for arg in arguments.filter(|arg| !arg.is_hide_set()) {
        if arg.get_long().is_some_and(in_table) {
            continue;
        }
        let short = arg.get_short().map(|name| format!("`-{name}`"));
        let long = arg.get_long().map(|name| format!("`--{name}`"));
        let names: Vec<_> = short.into_iter().chain(long).collect();
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        page += &item(&format!("{}: {help}.", names.join(", ")));
    }
    page += &chapter("\n", "kube-proxy's settings that mean nothing here", UNUSED);
    for unused in table::unused() {
        let keys = unused.keys.iter().map(|key| format!("`{key}`"));
        let flags = unused.flags.iter().map(|flag| format!("`--{flag}`"));
        let names: Vec<_> = keys.chain(flags).collect();
        page += &item(&format!("{}: {}", names.join(", "), unused.why));
    }
    page += &chapter("\n", "Settings that change at once", AT_ONCE);
    let keys = table::settings().filter(|setting| setting.at_once);
    let keys: Vec<_> = keys.map(|setting| setting.key).collect();
    page += &wrap(&format!("`{}`\n", keys.join("`, `")), "");
    let title = "Where the value in force is not kube-proxy's";
    page += &chapter("\n", title, DIFFERENCES);
    let differences = table::DIFFERENCES.iter();
    page.extend(differences.map(|(key, why)| item(&format!("`{key}`: {why}"))));
    page
}

/// Returns the chapter of a group of settings.
fn group(group: &Group) -> String {
    let mut text = chapter("", group.title, &group.about);
    let sizes = |setting: &Setting| matches!(setting.kind, Kind::Entries(_));
    if group.settings.iter().any(sizes) {
        let maps = shapes(&Capacities::default());
        // The page must not depend on the machine that writes it.
        let fixed = maps.iter().filter(|shape| !shape.is_per_processor());
        let total = rounded(fixed.map(Shape::reserved).sum());
        let about = format!(
            "On a machine with 2 GiB of memory or more, all maps together reserve {total} at first; the counters for each \
             processor come on top. The memory of an entry counts all maps of that size, for IPv4 and IPv6 together."
        );
        text += &format!("{}\n\n", wrap(&about, ""));
    }
    for setting in &group.settings {
        let default = setting.unset.clone();
        let default = default.unwrap_or_else(|| format!("`{}`", setting.default()));
        let mut facts = match setting.kind {
            Kind::Entries(field) => format!("Memory: {}.", memory(field)),
            Kind::Bool(_) => format!("Default: {default}."),
            _ => format!("Value: {}. Default: {default}.", setting.values()),
        };
        facts.extend(setting.flag.map(|flag| format!(" Flag: `--{flag}`.")));
        let (facts, what) = (wrap(&facts, ""), wrap(&setting.what, ""));
        text += &format!("### `{}`\n\n{facts}\n\n{what}\n\n", setting.key);
    }
    text
}

fn chapter(before: &str, title: &str, about: &str) -> String {
    format!("{before}## {title}\n\n{}\n\n", wrap(about, ""))
}

/// Returns an item of a Markdown list.
fn item(text: &str) -> String {
    wrap(&format!("- {text}"), "  ") + "\n"
}

/// Breaks a text into lines of at most 120 characters. All lines but the first begin with `indent`.
fn wrap(text: &str, indent: &str) -> String {
    let mut words = text.split(' ');
    let mut lines = vec![words.next().unwrap_or_default().to_owned()];
    for word in words {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= 120 => *line += &format!(" {word}"),
            _ => lines.push(format!("{indent}{word}")),
        }
    }
    lines.join("\n")
}

/// Returns, as text, the memory for each entry of those maps whose capacity `field` selects.
fn memory(field: fn(&mut Config) -> &mut u32) -> String {
    let mut config = Config {
        capacities: Capacities::default(),
        ..Config::default()
    };
    let before = shapes(&config.capacities);
    let entries = *field(&mut config);
    *field(&mut config) *= 2;
    // One setting is the first size of both tables.
    config.capacities.flows_v6 = config.capacities.flows;
    let after = shapes(&config.capacities);
    let grown = before.iter().zip(&after);
    let grown = grown.filter(|(a, b)| a != b && !b.is_per_processor());
    let grown: Vec<_> = grown.map(|(_, shape)| shape).collect();
    // Memory grows with the capacity, so half of the memory for the doubled size is that of
    // `entries`.
    let total: u64 = grown.iter().map(|shape| shape.reserved() / 2).sum();
    let in_use: u64 = grown.iter().map(|shape| shape.in_use()).sum();
    let reserved = match total {
        0 => "nothing is reserved".to_owned(),
        total => {
            let each = total / u64::from(entries);
            format!("{each} bytes per entry, {} for {entries}", rounded(total))
        }
    };
    match in_use {
        0 => reserved,
        bytes => format!("{reserved}; {bytes} bytes more while an entry is in use"),
    }
}

fn rounded(bytes: u64) -> String {
    match bytes {
        0..0x20_0000 => format!("{} KiB", (bytes + (1 << 9)) >> 10),
        _ => format!("{} MiB", (bytes + (1 << 19)) >> 20),
    }
}
