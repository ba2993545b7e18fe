//! What `-h`, `--help` and `ncclflow help` show of the command line.
//!
//! `-h` has the options that are needed first, `--help` the usual ones, a line each, and the names of the
//! others. `ncclflow help COMMAND` has all that is said of each option, as the man page.

use std::{env, io::Write as _};

use anyhow::Result;
use clap::{
    Arg, ArgAction, Args, Command, CommandFactory as _,
    builder::{PossibleValue, PossibleValuesParser},
};
use flow::text::joined;

use super::{args::Cli, exit::Exit, terminal, variables};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ncclflow help record                    all options of record, in full
  ncclflow help                           the commands")]
pub struct HelpArgs {
    /// The command
    #[arg(value_name = "COMMAND")]
    pub of: Option<String>,
}

/// How much is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// `-h`
    Brief,
    /// `--help`
    Usual,
    /// The manual
    Full,
}

/// Most options of a command of which `--help` shows all.
const FEW: usize = 24;
/// Longest list of values that stands in the place of a value's name.
const VALUES: usize = 20;
/// Width of text that is not wrapped again.
const WIDTH: usize = 78;

impl Detail {
    /// Returns what this command line asks for, if it asks for help at all.
    pub(super) fn wanted() -> Self {
        if env::args_os().any(|word| word == "--help") { Self::Usual } else { Self::Brief }
    }
}

/// Makes the command line that shows so much.
pub(super) fn with_help(mut cli: Command, detail: Detail) -> Command {
    let all = cli.get_subcommands().map(Command::get_name);
    // clap keeps names for as long as the program runs.
    let names: Vec<&'static str> = all.map(|name| -> &'static str { name.to_owned().leak() }).collect();
    if detail != Detail::Full {
        cli = cli.mut_args(with_values);
    }
    for name in &names {
        cli = cli.mut_subcommand(name, |command| match detail {
            Detail::Full => in_full(command),
            Detail::Brief | Detail::Usual => in_short(command, detail),
        });
    }
    cli.mut_subcommand("help", |command| {
        command.mut_arg("of", |arg| {
            arg.value_parser(PossibleValuesParser::new(names)).hide_possible_values(true)
        })
    })
}

/// Puts both footers together, and shows all options.
fn in_full(command: Command) -> Command {
    let footers = [command.get_after_help(), command.get_after_long_help()];
    let footers = footers.into_iter().flatten().map(|text| text.to_string().trim_end().to_owned());
    let footer = joined(footers, "\n\n");
    command.after_long_help(footer).mut_args(|arg| arg.hide_long_help(false).hide_short_help(false))
}

/// Gives each option a line, and hides those that are not shown.
fn in_short(command: Command, detail: Detail) -> Command {
    let has_few = command.get_arguments().filter(|arg| !arg.is_hide_set()).count() <= FEW;
    let is_rare = |arg: &Arg| !has_few && arg.is_hide_long_help_set();
    let rare = rare(&command, is_rare);
    let footer = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let footer = match detail {
        Detail::Brief => "`--help` shows more options, and examples.".to_owned(),
        _ if rare.is_empty() => footer,
        _ => format!("{}\n{footer}", more(command.get_name(), &rare)),
    };
    let command = command.after_help(footer).after_long_help(None::<&str>);
    command.mut_args(|arg| {
        let is_hidden =
            arg.is_hide_set() || is_rare(&arg) || (detail == Detail::Brief && arg.is_hide_short_help_set());
        // clap would begin a long help, with blank lines, for any of these.
        let arg = arg.long_help(None::<&str>).hide_long_help(false).hide_short_help(false);
        with_values(arg).hide_env(true).hide(is_hidden)
    })
}

/// Returns the options that the manual alone explains, with their headings.
fn rare(command: &Command, is_rare: impl Fn(&Arg) -> bool) -> Vec<(String, String)> {
    let rare = command.get_arguments().filter(|arg| !arg.is_hide_set() && is_rare(arg));
    let named = rare.filter_map(|arg| {
        let heading = arg.get_help_heading().unwrap_or("Others");
        Some((heading.to_owned(), format!("--{}", arg.get_long()?)))
    });
    named.collect()
}

/// Names the options that the manual alone explains, by heading.
fn more(command: &str, rare: &[(String, String)]) -> String {
    let mut text =
        format!("More options (`ncclflow help {command}` or man ncclflow-{command} explains them):\n");
    let mut headings: Vec<&str> = Vec::new();
    for (heading, _) in rare {
        if !headings.contains(&heading.as_str()) {
            headings.push(heading);
        }
    }
    for heading in headings {
        let mut line = format!("  {heading}:");
        for (_, option) in rare.iter().filter(|(of, _)| of == heading) {
            if line.len() + 1 + option.len() > WIDTH {
                text.push_str(&line);
                text.push('\n');
                "   ".clone_into(&mut line);
            }
            line.push(' ');
            line.push_str(option);
        }
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// Names the values of an option in the place of their name, where they are short, or else behind its help.
fn with_values(arg: Arg) -> Arg {
    let values = arg.get_possible_values();
    let shown = values.iter().filter(|value| !value.is_hide_set()).map(PossibleValue::get_name);
    let names: Vec<&str> = shown.collect();
    if names.is_empty() || !matches!(arg.get_action(), ArgAction::Set | ArgAction::Append) {
        return arg;
    }
    let alternatives = names.join("|");
    if alternatives.len() <= VALUES {
        let name: &'static str = alternatives.leak();
        return arg.value_name(name).hide_possible_values(true);
    }
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let help = format!("{help}: {}", joined(names, ", "));
    arg.help(help).hide_possible_values(true)
}

pub(super) fn run(args: &HelpArgs) -> Result<Exit> {
    let mut cli = variables::command();
    cli.build();
    let manual = |name: &String| Some(cli.find_subcommand_mut(name)?.render_long_help());
    let commands = || with_help(Cli::command(), Detail::Usual).render_help();
    let text = args.of.as_ref().and_then(manual).unwrap_or_else(commands);
    let mut out = terminal::out();
    write!(out, "{text}")?;
    out.flush()?;
    Ok(Exit::Done)
}
