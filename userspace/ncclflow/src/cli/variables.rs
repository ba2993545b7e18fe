//! Options of `record` and `watch` from the environment, as services and containers are configured.
//!
//! The variable of `--window-flag` is `NCCLFLOW_WINDOW_FLAG`, and so for each option that has a long name.
//! The command line comes first: an option there replaces its own variable, and those of the options that
//! cannot be given with it.

use std::{env, process};

use clap::{
    Arg, ArgAction, Command, CommandFactory as _, FromArgMatches as _, Id,
    builder::BoolishValueParser,
    error::{ContextKind, ContextValue, ErrorKind},
    parser::ValueSource,
};

use super::{
    args::Cli,
    help::{Detail, with_help},
};

/// The commands whose options have variables.
const COMMANDS: [&str; 2] = ["record", "watch"];

const PREFIX: &str = "NCCLFLOW_";

/// Returns the command line with the variables of options, and all that is said of them: for the manual, man
/// pages, completions.
pub fn command() -> Command {
    with_help(with_variables(), Detail::Full)
}

fn with_variables() -> Command {
    COMMANDS
        .into_iter()
        .fold(Cli::command(), |cli, name| cli.mut_subcommand(name, |command| command.mut_args(with_variable)))
}

/// Parses the command line, and the variables of options that are not given. The program ends here on errors,
/// and for `--help`.
pub(super) fn parse() -> Cli {
    let is_ours = given();
    let mut used: Vec<String> = Vec::new();
    let (name, given) = is_ours.clone().unwrap_or((COMMANDS[0], Vec::new()));
    let command = with_variables().mut_subcommand(name, |command| {
        let excluded = excluded(&command, &given);
        command.mut_args(|arg| {
            // Its variable is set anew, or not at all.
            let arg = arg.env(None::<&str>);
            let Some(name) = variable(&arg) else { return arg };
            if given.contains(arg.get_id()) {
                // The help still names it.
                return with_variable(arg);
            }
            match env::var(&name) {
                Ok(value) if excluded.contains(arg.get_id()) || says_nothing(&arg, &value) => arg,
                Ok(_) => {
                    used.push(name);
                    with_variable(arg)
                }
                // Not set; or not text, which clap refuses where the option wants text.
                Err(_) => with_variable(arg),
            }
        })
    });
    let command = with_help(command, Detail::wanted());
    let parsed = command.try_get_matches().and_then(|matches| {
        let cli = Cli::from_arg_matches(&matches)?;
        cli.check().and_then(|()| cli.check_users()).map(|()| cli)
    });
    parsed.unwrap_or_else(|error| {
        if is_program(&error) {
            let _ = error.print();
            tell!("\nncclflow starts no program: start it as always, then give its PID (-p), or --all");
            process::exit(error.exit_code());
        }
        if error.use_stderr() && is_ours.is_some() && !used.is_empty() {
            // clap names the option alone, which nobody may have typed.
            let _ = error.print();
            tell!("\nTaken from the environment: {}", used.join(", "));
            process::exit(error.exit_code());
        }
        error.exit()
    })
}

/// Tells whether a word is refused that can be a program to run, as other tracers do.
fn is_program(error: &clap::Error) -> bool {
    let is_word =
        |value: &ContextValue| matches!(value, ContextValue::String(word) if !word.starts_with('-'));
    let attaches = |name: &str| matches!(name, "record" | "top" | "dump" | "watch" | "history");
    let is_refused =
        error.kind() == ErrorKind::UnknownArgument && error.get(ContextKind::InvalidArg).is_some_and(is_word);
    is_refused
        && Cli::command()
            .ignore_errors(true)
            .try_get_matches()
            .is_ok_and(|matches| matches.subcommand_name().is_some_and(attaches))
}

/// Returns the command, if its options have variables, and its options that are given on the command line;
/// `None`: it is another command, or cannot be parsed at all.
fn given() -> Option<(&'static str, Vec<Id>)> {
    let matches = Cli::command().ignore_errors(true).try_get_matches().ok()?;
    let (name, matches) = matches.subcommand()?;
    let name = COMMANDS.into_iter().find(|known| *known == name)?;
    let is_given = |id: &&Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
    Some((name, matches.ids().filter(is_given).cloned().collect()))
}

/// Returns the options that conflict with `given`.
fn excluded(command: &Command, given: &[Id]) -> Vec<Id> {
    let mut excluded = Vec::new();
    for arg in command.get_arguments() {
        let conflicts = command.get_arg_conflicts_with(arg).into_iter().map(Arg::get_id);
        let conflicts: Vec<&Id> = conflicts.collect();
        if given.contains(arg.get_id()) {
            excluded.extend(conflicts.into_iter().cloned());
        } else if conflicts.iter().any(|id| given.contains(id)) {
            excluded.push(arg.get_id().clone());
        }
    }
    for group in command.get_groups() {
        let members: Vec<&Id> = group.get_args().collect();
        if !group.clone().is_multiple() && members.iter().any(|id| given.contains(id)) {
            excluded.extend(members.into_iter().filter(|id| !given.contains(id)).cloned());
        }
    }
    excluded
}

/// Tells whether a variable is as good as unset: empty, or `false` for a flag, which clap would take as
/// given.
fn says_nothing(arg: &Arg, value: &str) -> bool {
    let no = ["false", "no", "off", "n", "f", "0"];
    value.is_empty() || (is_flag(arg) && no.contains(&value.to_ascii_lowercase().as_str()))
}

fn is_flag(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

fn with_variable(arg: Arg) -> Arg {
    let Some(name) = variable(&arg) else { return arg };
    let arg = if is_flag(&arg) { arg.value_parser(BoolishValueParser::new()) } else { arg };
    // clap keeps names for as long as the program runs. There are some fifty.
    arg.env(&*name.leak()).hide_env_values(true)
}

fn variable(arg: &Arg) -> Option<String> {
    let long = arg.get_long().filter(|_| !arg.is_hide_set())?;
    Some(format!("{PREFIX}{}", long.to_uppercase().replace('-', "_")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Command {
        Cli::command().find_subcommand("record").unwrap().clone()
    }

    #[test]
    fn every_option_has_a_variable_of_its_own() {
        let record = record();
        let shown = record.get_arguments().filter(|arg| !arg.is_hide_set());
        let mut names: Vec<String> = shown.map(|arg| variable(arg).unwrap()).collect();
        let count = names.len();
        assert!(count > 40, "{names:?}");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(names.contains(&"NCCLFLOW_WINDOW_FLAG".to_owned()));
        // Other variables that the program reads are no options.
        for other in ["NCCLFLOW_NVML", "NCCLFLOW_FAULT", "NCCLFLOW_ARGS"] {
            assert!(!names.contains(&other.to_owned()), "{other}");
        }
    }

    #[test]
    fn what_the_command_line_excludes_is_not_taken_from_the_environment() {
        let record = record();
        let excluded = |given: &'static str| {
            let mut ids: Vec<String> =
                excluded(&record, &[given.into()]).iter().map(|id| id.as_str().to_owned()).collect();
            ids.sort();
            ids.dedup();
            ids
        };
        assert_eq!(excluded("pids"), ["all"]);
        assert_eq!(excluded("all"), ["library", "pids"]);
        assert_eq!(excluded("window_flag"), ["no_files", "rotate"]);
        assert_eq!(excluded("level"), [""; 0]);
    }

    #[test]
    fn empty_variables_and_flags_that_are_off_say_nothing() {
        let record = record();
        let arg = |id: &str| record.get_arguments().find(|arg| arg.get_id() == id).unwrap().clone();
        for value in ["", "false", "FALSE", "0", "no", "Off"] {
            assert!(says_nothing(&arg("all"), value), "{value}");
        }
        for value in ["true", "1", "yes", "maybe"] {
            assert!(!says_nothing(&arg("all"), value), "{value}");
        }
        assert!(!says_nothing(&arg("min_bytes"), "0") && says_nothing(&arg("output"), ""));
    }
}
