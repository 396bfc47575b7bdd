// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The flags of `portolan run` that come from the table of settings, and those kube-proxy flags
//! that have no effect in portolan. Part of the arguments of `cli::run`.

use clap::{
    Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, builder::PossibleValuesParser,
};
use config::{
    RawConfig,
    setting::{Group, Kind, Setting, Shape, Value},
    table,
};

/// The settings that flags on the command line give.
#[derive(Clone, Debug, Default)]
pub struct SettingFlags(pub RawConfig);

impl Args for SettingFlags {
    fn augment_args(mut command: Command) -> Command {
        for group in table::groups() {
            for setting in &group.settings {
                let Some(flag) = setting.flag else { continue };
                // Two settings may share a flag.
                if command.get_arguments().all(|arg| arg.get_id() != flag) {
                    command = command.arg(argument(flag, group, setting));
                }
            }
        }
        let unused = table::unused().flat_map(|unused| &unused.flags);
        command.args(unused.map(|flag| {
            let arg = Arg::new(*flag).long(*flag).hide(true);
            optional_value(arg).allow_negative_numbers(true)
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = RawConfig::default();
        for setting in table::settings() {
            if let Some(value) = setting.flag.and_then(|flag| value(flag, setting, matches)) {
                given.set(setting, value);
            }
        }
        let unused = table::unused().flat_map(|unused| &unused.flags);
        for flag in unused.filter(|flag| is_given(flag, matches)) {
            given.add_unused(format!("--{flag}"));
        }
        Ok(Self(given))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn argument(flag: &'static str, group: &Group, setting: &Setting) -> Arg {
    // docs/settings.md has the rest of the text.
    let (summary, _) = setting.what.split_once(". ").unwrap_or((&setting.what, ""));
    let (summary, default) = (summary.trim_end_matches('.'), setting.default());
    let help = format!("{summary} [default: {default}]").replace('`', "");
    let arg = Arg::new(flag)
        .long(flag)
        .help(help)
        .help_heading(group.title)
        .value_name(setting.placeholder());
    match setting.kind.shape() {
        Shape::Bool => optional_value(arg).value_parser(go_bool),
        Shape::Number => arg.allow_negative_numbers(true).value_parser(go_integer),
        Shape::List => arg.action(ArgAction::Append),
        Shape::Text => match setting.kind.words() {
            words if words.is_empty() => arg,
            // The flag's help text explains the possible values.
            words => arg.value_parser(PossibleValuesParser::new(
                words.into_iter().map(|word| word.help(None)),
            )),
        },
    }
}

/// Makes a flag that means true if it is given without a value.
fn optional_value(arg: Arg) -> Arg {
    arg.num_args(0..=1).default_missing_value("true")
}

/// Parses a boolean. KUBE: accepts the texts that Go accepts.
pub(super) fn go_bool(text: &str) -> Result<bool, &'static str> {
    config::boolean(text).ok_or("use true or false")
}

fn go_integer(text: &str) -> Result<i64, &'static str> {
    config::integer(text).ok_or("use a whole number")
}

/// Returns the value that a flag gives to a setting; None if the flag is not given. KUBE: the last
/// of several values is used, lists are joined, and an empty text means the default.
fn value(flag: &str, setting: &Setting, matches: &ArgMatches) -> Option<Value> {
    let texts = || matches.get_many::<String>(flag);
    match setting.kind.shape() {
        Shape::Bool => matches.get_one(flag).copied().map(Value::Bool),
        Shape::Number => matches.get_one(flag).copied().map(Value::Number),
        Shape::Text => {
            let text = texts()?.next_back()?;
            let is_unset = text.is_empty() && !matches!(setting.kind, Kind::Seconds(_));
            (!is_unset).then(|| Value::Text(text.clone()))
        }
        Shape::List => {
            let given = texts()?.filter(|text| !text.is_empty());
            let items = given.flat_map(|text| text.split(','));
            Some(Value::List(items.map(str::to_owned).collect()))
        }
    }
}

/// Returns whether a flag without effect is given with another value than empty, `0s` or false.
fn is_given(flag: &str, matches: &ArgMatches) -> bool {
    let value = matches.get_one::<String>(flag);
    value.is_some_and(|value| {
        !matches!(value.as_str(), "" | "0s") && config::boolean(value) != Some(false)
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use clap::CommandFactory;

    use crate::Cli;

    #[test]
    fn every_flag_of_a_real_kube_proxy_is_taken() {
        let mut command = Cli::command();
        // clap adds its own flags, such as --help, only when it builds the command.
        command.build();
        let command = command.find_subcommand("run").expect("the command");
        let ours = command.get_arguments().filter_map(|arg| arg.get_long());
        let ours: BTreeSet<_> = ours.collect();
        for version in config::testing::versions() {
            let theirs = fs::read_to_string(version.join("flags.txt")).expect("flags");
            let missing: Vec<_> = theirs.lines().filter(|flag| !ours.contains(flag)).collect();
            assert_eq!(missing, [""; 0]);
            assert!(theirs.lines().count() > 40);
        }
    }
}
