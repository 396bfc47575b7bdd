// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Renders the page docs/settings.md from the table of settings.

use std::fmt::Write;

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

const ABOUT_PAGE: &str = "\
<!-- Written by portolan-pages from proxy-user/config/src/table -->
";

const ABOUT: &str = "\
# Settings

portolan reads kube-proxy's configuration file: `KubeProxyConfiguration` of `kubeproxy.config.k8s.io/v1alpha1`, named by
the flag `--config`. Settings that only portolan has are in its section `portolan`. A dot in a name below separates a
section from its keys, so `conntrack.udpTimeout` and `portolan.answerPing` are written like this:

    apiVersion: kubeproxy.config.k8s.io/v1alpha1
    kind: KubeProxyConfiguration
    conntrack:
      udpTimeout: 40s
    portolan:
      answerPing: true

- `apiVersion` and `kind` must be there, or the file is refused: an empty file would set every default. Of several documents the
  first one counts.
- Beside a file, flags mean something if they are portolan's own (their keys are in the section `portolan`), of logs, or
  `--hostname-override`; these override the file. Of any other flag a warning says that it has no effect, as with kube-proxy. Where
  the file is another proxy's, `--kubeconfig` holds as well: for `portolan check`, and with `--service-proxy-name`, which takes
  `--healthz-bind-address` and `--metrics-bind-address` too. Flags are spelled as for kube-proxy: `--masquerade_all=T`, and of a flag
  that is given twice the last one holds.
- A setting that is missing, `null` or an empty text in the file has its default.
- An unknown key, or one that stands twice (the last one holds), is ignored with a warning, as kube-proxy does; it names the key that
  was probably meant. A value that cannot be used ends the agent at its start; the error names key, value and remedy.
- The agent follows the file. Some settings change at once, see below. For any other one it starts anew in the same process:
  programs and maps stay, and connections go on. While a changed file cannot be used, a warning says why, and the settings before
  stay in force. Flags are read at the start only.
- `portolan run --write-config-to FILE` writes all settings with their current values, defaults included.
";

const UNUSED: &str = "\
They are accepted, so that kube-proxy's file and command line work unchanged. The agent logs the names of those that are \
given a value.";

const AT_ONCE: &str = "\
These are in force a second or two after the file has changed. After a change of any other setting the agent starts anew by \
itself.";

const DIFFERENCES: &str = "\
For the same file or command line, `/configz` shows the values that kube-proxy shows, but for these. A test compares them key by \
key with a real kube-proxy's (proxy-user/kube-proxy). A setting without a value is `null`, where kube-proxy shows an empty text.";

/// Returns the page.
pub(crate) fn page() -> String {
    let mut page = String::new();
    // Writing to a string does not fail.
    _ = write_page(&mut page);
    page
}

fn write_page(page: &mut String) -> std::fmt::Result {
    writeln!(page, "{ABOUT_PAGE}{ABOUT}")?;
    for group in table::groups() {
        write_group(page, group)?;
    }
    writeln!(page, "## Flags without a key in the file\n")?;
    let in_table = |flag: &str| table::settings().any(|setting| setting.flag == Some(flag));
    for arg in flags().filter(|arg| !arg.get_long().is_some_and(in_table)) {
        let short = arg.get_short().map(|name| format!("`-{name}`"));
        let long = arg.get_long().map(|name| format!("`--{name}`"));
        let names: Vec<_> = short.into_iter().chain(long).collect();
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        item(page, &format!("{}: {help}.", names.join(", ")))?;
    }
    writeln!(page, "\n## kube-proxy's settings that mean nothing here\n")?;
    writeln!(page, "{}\n", wrap(UNUSED, ""))?;
    for unused in table::unused() {
        let keys = unused.keys.iter().map(|key| format!("`{key}`"));
        let flags = unused.flags.iter().map(|flag| format!("`--{flag}`"));
        let names: Vec<_> = keys.chain(flags).collect();
        item(page, &format!("{}: {}", names.join(", "), unused.why))?;
    }
    writeln!(
        page,
        "\n## Settings that change at once\n\n{}\n",
        wrap(AT_ONCE, "")
    )?;
    for key in config::AT_ONCE {
        item(page, &format!("`{key}`"))?;
    }
    writeln!(
        page,
        "\n## Where the value in force is not kube-proxy's\n\n{}\n",
        wrap(DIFFERENCES, "")
    )?;
    for difference in table::DIFFERENCES {
        item(page, &format!("`{}`: {}", difference.key, difference.why))?;
    }
    Ok(())
}

fn write_group(page: &mut String, group: &Group) -> std::fmt::Result {
    writeln!(page, "## {}\n\n{}\n", group.title, wrap(&group.about, ""))?;
    let sizes = |setting: &Setting| matches!(setting.kind, Kind::Entries(_));
    if group.settings.iter().any(sizes) {
        let total: u64 = shapes(&Capacities::default())
            .iter()
            .map(Shape::reserved)
            .sum();
        let total = mebibytes(total);
        let about = format!(
            "On a machine with up to 8 processors and 6 GiB of memory or more, all maps together reserve {total} at first. The \
             memory of an entry counts all maps of that size, for IPv4 and IPv6 together."
        );
        writeln!(page, "{}\n", wrap(&about, ""))?;
    }
    for setting in &group.settings {
        writeln!(page, "### `{}`\n", setting.key)?;
        item(page, &format!("Value: {}", setting.values()))?;
        match &setting.unset {
            Some(words) => item(page, &format!("Default: {words}"))?,
            None => item(page, &format!("Default: `{}`", setting.default()))?,
        }
        if let Some(flag) = setting.flag {
            item(page, &format!("Flag: `--{flag}`"))?;
        }
        if let Kind::Entries(field) = setting.kind {
            item(page, &format!("Memory: {}", memory(field)))?;
        }
        let when = format!("*When to change it:* {}", setting.when);
        writeln!(
            page,
            "\n{}\n\n{}\n",
            wrap(&setting.what, ""),
            wrap(&when, "")
        )?;
    }
    Ok(())
}

/// Writes an item of a Markdown list.
fn item(page: &mut String, text: &str) -> std::fmt::Result {
    writeln!(page, "{}", wrap(&format!("- {text}"), "  "))
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

/// Returns the flags of `portolan run` that `--help` shows.
fn flags() -> impl Iterator<Item = clap::Arg> {
    let command = Cli::command();
    let run = command.find_subcommand("run");
    let arguments = run.into_iter().flat_map(clap::Command::get_arguments);
    let visible = arguments.filter(|arg| !arg.is_hide_set());
    visible.cloned().collect::<Vec<_>>().into_iter()
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
    let after = shapes(&config.capacities);
    let grown = before.iter().zip(&after).filter(|(a, b)| a != b);
    let grown: Vec<_> = grown.map(|(_, shape)| shape).collect();
    // Memory grows with the capacity, so half of the memory for the doubled size is that of
    // `entries`.
    let total: u64 = grown.iter().map(|shape| shape.reserved() / 2).sum();
    let in_use = grown.iter().map(|shape| shape.in_use()).max();
    let reserved = match total {
        0 => "nothing is reserved".to_owned(),
        total => {
            let each = total / u64::from(entries);
            format!("{each} bytes per entry, {} for {entries}", mebibytes(total))
        }
    };
    match in_use {
        None | Some(0) => reserved,
        Some(bytes) => format!("{reserved}; {bytes} bytes more while an entry is in use"),
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", (bytes + (1 << 19)) >> 20)
}
