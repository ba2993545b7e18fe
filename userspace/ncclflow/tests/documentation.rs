//! What the documentation and `--help` say of the command line: every command is one that it takes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeSet, env, fs, path::Path, process::Command};

use clap::Parser as _;
use ncclflow::cli::{Cli, command};
use test_support::documents::{blocks, calls, documents};

/// That the program takes these arguments.
fn complaint(arguments: &[String]) -> Option<String> {
    let arguments = std::iter::once("ncclflow").chain(arguments.iter().map(String::as_str));
    let parsed = Cli::try_parse_from(arguments).and_then(|cli| cli.check());
    // `--help` and `--version` are answered by an error that is none.
    parsed.err().filter(clap::Error::use_stderr).map(|error| error.to_string())
}

/// Some options read the file that they name.
fn among_files(check: impl FnOnce()) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("ranks.txt"), "4242 0\n").unwrap();
    env::set_current_dir(folder.path()).unwrap();
    check();
}

#[test]
fn every_command_is_one_that_the_program_takes() {
    among_files(|| {
        let (mut complaints, mut checked) = (Vec::new(), 0);
        for path in documents() {
            for block in blocks(&fs::read_to_string(&path).unwrap()) {
                for arguments in block.commands.iter().flat_map(|command| calls(command)) {
                    checked += 1;
                    if let Some(complaint) = complaint(&arguments) {
                        let place = format!("{}:{}", path.display(), block.line);
                        complaints.push(format!("{place}: ncclflow {}\n{complaint}", arguments.join(" ")));
                    }
                }
            }
        }
        for (name, arguments) in examples() {
            checked += 1;
            if let Some(complaint) = complaint(&arguments) {
                complaints.push(format!("{name} --help: ncclflow {}\n{complaint}", arguments.join(" ")));
            }
        }
        assert!(complaints.is_empty(), "{}", complaints.join("\n"));
        assert!(checked > 100, "only {checked} commands were found");
    });
}

/// The examples of each command's help and manual. What stands behind two spaces explains them.
fn examples() -> Vec<(String, Vec<String>)> {
    let mut examples = Vec::new();
    for subcommand in command().get_subcommands() {
        let help = subcommand.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.contains("Examples:"), "`{}` has no examples", subcommand.get_name());
        for line in help.lines().filter_map(|line| line.strip_prefix("  ")) {
            let command = line.split("  ").next().unwrap_or_default();
            let called = calls(command).into_iter();
            examples.extend(called.map(|arguments| (subcommand.get_name().to_owned(), arguments)));
        }
    }
    examples
}

#[test]
fn the_readme_is_short_and_the_chinese_one_has_its_commands() {
    let read = |name: &str| {
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)).unwrap()
    };
    let (english, chinese) = (read("README.md"), read("README.zh-CN.md"));
    let words = english.split_whitespace().count();
    assert!(words <= 800, "README.md has {words} words");
    let commands = |text: &str| -> Vec<Vec<String>> {
        let without_remarks = |command: &String| command.split(" # ").next().unwrap().trim_end().to_owned();
        blocks(text).iter().map(|block| block.commands.iter().map(without_remarks).collect()).collect()
    };
    assert_eq!(commands(&english), commands(&chinese));
}

/// Links within the repository lead to files and headings that are there.
#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") || target.contains(char::is_whitespace) {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let to = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            let is_there = to.exists()
                && (heading.is_empty() || headings(&fs::read_to_string(&to).unwrap()).contains(heading));
            if !is_there {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// As GitHub names them.
fn headings(text: &str) -> BTreeSet<String> {
    let titles =
        text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, '-' | '_' | ' ');
    titles
        .map(|title| title.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-"))
        .collect()
}

/// `record` with these variables; gives its exit code and what it says.
fn record(variables: &[(&str, &str)], arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_ncclflow"))
        .arg("record")
        .args(arguments)
        .env_clear()
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Larger than any process's number: what is parsed is known by what is refused.
const NOBODY: &str = "4194305";

/// Variables, arguments, the exit code, and what is said.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str], Option<i32>, &'a str);

#[test]
fn options_of_record_come_from_the_environment() {
    let there_is_none = format!("there is no process {NOBODY}");
    let usage = Some(2);
    let cases: [Case<'_>; 10] = [
        (&[("NCCLFLOW_PID", NOBODY)], &[], Some(1), &there_is_none),
        // The command line comes first, also before what it excludes.
        (&[("NCCLFLOW_PID", "x")], &["-p", NOBODY], Some(1), &there_is_none),
        (&[("NCCLFLOW_ALL", "true")], &["-p", NOBODY], Some(1), &there_is_none),
        (&[("NCCLFLOW_ALL", "false"), ("NCCLFLOW_PID", NOBODY)], &[], Some(1), &there_is_none),
        (&[("NCCLFLOW_LEVEL", ""), ("NCCLFLOW_PID", NOBODY)], &[], Some(1), &there_is_none),
        // What is wrong is named.
        (&[("NCCLFLOW_LEVEL", "deep")], &["-p", NOBODY], usage, "NCCLFLOW_LEVEL"),
        (&[("NCCLFLOW_ALL", "maybe")], &[], usage, "NCCLFLOW_ALL"),
        (&[("NCCLFLOW_ALL", "true"), ("NCCLFLOW_PID", "1")], &[], usage, "NCCLFLOW_PID, NCCLFLOW_ALL"),
        (&[("NCCLFLOW_RETURNS", "1")], &["-p", NOBODY], usage, "NCCLFLOW_RETURNS"),
        // Other tracers start programs.
        (&[], &["--", "python", "train.py"], usage, "ncclflow starts no program"),
    ];
    for (variables, arguments, code, words) in cases {
        let (found, said) = record(variables, arguments);
        assert_eq!(found, code, "{variables:?} {arguments:?}: {said}");
        assert!(said.contains(words), "{variables:?} {arguments:?}: {said}");
    }
}

#[test]
fn the_help_of_record_names_the_variable_of_each_option() {
    let mut command = command();
    let help = command.find_subcommand_mut("record").unwrap().render_long_help().to_string();
    for name in ["PID", "ALL", "OUTPUT", "LEVEL", "WINDOW_FLAG", "MAX_SIZE", "METRICS", "USER", "RANK_MAP"] {
        assert!(help.contains(&format!("[env: NCCLFLOW_{name}]")), "{name}: {help}");
    }
}

/// What the program prints on a terminal of this width.
fn help(arguments: &[&str], columns: &str) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_ncclflow"));
    let output = program.args(arguments).env_clear().env("COLUMNS", columns).output().unwrap();
    assert!(output.status.success(), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// `--help` fits on a screen, and shows or names every option that the manual explains.
#[test]
fn help_is_short_and_leaves_no_option_out() {
    let whole = command();
    let names: Vec<&str> = whole.get_subcommands().map(clap::Command::get_name).collect();
    assert!(names.len() > 12, "{names:?}");
    for name in names {
        let usual = help(&[name, "--help"], "100");
        let lines = usual.lines().count();
        assert!(lines <= 60, "{name} --help has {lines} lines:\n{usual}");
        let brief = help(&[name, "-h"], "100");
        assert!(brief.lines().count() <= 40 && brief.lines().count() <= lines, "{name} -h:\n{brief}");
        for line in usual.lines().chain(brief.lines()) {
            assert!(line.chars().count() <= 100, "{name}: {line}");
        }
        let manual = help(&["help", name], "100");
        for arg in whole.find_subcommand(name).unwrap().get_arguments().filter(|arg| !arg.is_hide_set()) {
            let Some(long) = arg.get_long() else { continue };
            let names_it = |text: &str| {
                text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
                    .any(|word| word == format!("--{long}"))
            };
            assert!(names_it(&usual), "{name} --help does not name --{long}:\n{usual}");
            assert!(names_it(&manual), "the manual of {name} does not have --{long}:\n{manual}");
        }
        assert!(usual.contains("Examples:") && !brief.contains("Examples:"), "{name}");
    }
}

/// An example that is wrapped cannot be copied.
#[test]
fn examples_fit_on_a_terminal_of_80_columns() {
    for subcommand in command().get_subcommands() {
        let footer = subcommand.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        for line in footer.lines().filter(|line| line.starts_with("  ")) {
            assert!(line.chars().count() <= 80, "{}: {line}", subcommand.get_name());
        }
    }
}

/// Scripts read it: `-V` is one line, and below it `--version` has the keys that INSTALL.md names.
#[test]
fn the_long_version_says_which_build_it_is() {
    let short = command().render_version();
    assert_eq!(short, concat!("ncclflow ", env!("CARGO_PKG_VERSION"), "\n"));
    let long = command().render_long_version();
    let pairs: Vec<(&str, &str)> =
        long.strip_prefix(&short).unwrap().lines().map(|line| line.split_once(": ").unwrap()).collect();
    let keys: Vec<&str> = pairs.iter().map(|(key, _)| *key).collect();
    assert_eq!(keys, ["commit", "target", "nvml", "ebpf-sha256"]);
    assert!(pairs.iter().all(|(_, value)| !value.is_empty()), "{long}");
}
