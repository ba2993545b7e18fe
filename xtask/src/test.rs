//! `cargo xtask test`: fetches everything that the tests need and runs all tests. It lists those that were
//! skipped, and those that failed and passed when they ran again.

mod cargo_test;

use std::{
    collections::BTreeSet,
    env,
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread::{self, available_parallelism},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};
use test_support::Heartbeat;

use self::cargo_test::Outcome;
use crate::{nccl, prerequisites, programs, pythons, repository, root, tool::say};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Things whose absence fails a test instead of skipping it, like root, nccl, mount; `all`: no test may
    /// be skipped
    #[arg(long, value_name = "THINGS", default_value = "nccl,programs")]
    require: String,

    /// Run tests that failed once more, each target alone, if they are few: on a machine that others use,
    /// too, one that stood still for seconds fails tests of what happens in time. Those that pass then are
    /// listed last
    #[arg(long)]
    again: bool,

    /// Passed on to `cargo test`
    #[arg(last = true)]
    cargo_arguments: Vec<String>,
}

/// Results of all tests.
#[derive(Debug, Default)]
pub(crate) struct Tested {
    passed: usize,
    /// Skipped tests: the test, the thing that it lacks, the remedy.
    skipped: Vec<String>,
    /// Tests that failed, and passed when they ran again, alone.
    passed_again: Vec<String>,
    /// Longest time by which a thread that had slept was late.
    lateness: Duration,
    /// Times of the steps.
    times: Vec<(String, Duration)>,
}

impl Tested {
    /// Prints the lists, and as the last line the numbers.
    pub(crate) fn print(&self) {
        for (what, took) in &self.times {
            println!("{:>5} s  {what}", took.as_secs());
        }
        print_skipped(&self.skipped);
        if !self.passed_again.is_empty() {
            println!(
                "failed, and passed when run again, alone: a fault that comes seldom, or the machine, on which a \
                 thread that had slept was late by up to {:.1} s",
                self.lateness.as_secs_f64()
            );
            self.passed_again.iter().for_each(|test| println!("  {test}"));
        }
        let Self { passed, skipped, passed_again, .. } = self;
        print!("{passed} passed, 0 failed, {} skipped", skipped.len());
        match passed_again.len() {
            0 => println!(),
            again => println!(", {again} of those that passed only at the second try"),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    run_all(&args.require, args.again, &args.cargo_arguments)?.print();
    Ok(())
}

/// Fetches the things that tests need, builds, and runs the tests. `require`: things whose absence fails a
/// test.
pub(crate) fn run_all(require: &str, again: bool, cargo_arguments: &[String]) -> Result<Tested> {
    if let Err(error) = root::ask("tracing") {
        say(&format!("{error:#}; tests that need root are skipped"));
    }
    let (mut times, begun) = (Vec::new(), Instant::now());
    prerequisites::commands()?;
    // The network and the processors have different work.
    let (fetched, built) = thread::scope(|scope| {
        let building = scope.spawn(|| programs::build_all().and_then(|_| programs::build_tests()));
        (fetch(), building.join())
    });
    let Fetched { python_path, pythons, torch_analyser, hooks, inspector_exporter, promtool } = fetched?;
    built.map_err(|_| anyhow!("building the tests panicked"))??;
    times.push(("to fetch what tests need, and to build them".to_owned(), begun.elapsed()));
    println!("running the tests; required: {require}");
    let skips = programs::target_folder()?.join("skipped-tests");
    fs::write(&skips, "").with_context(|| format!("making `{}`", skips.display()))?;
    let runner = runner(&python_path)?;
    let command = |arguments: &[&str]| {
        let mut command = Command::new(programs::cargo());
        command
            .arg("test")
            .args(arguments)
            .current_dir(repository::root())
            .args(&runner)
            .env("NCCLFLOW_REQUIRE", require)
            .env("NCCLFLOW_SKIPS", &skips)
            .env("PYTHONPATH", &python_path)
            .env("NCCLFLOW_PYTHONS", &pythons)
            .env("NCCLFLOW_BED_GIVES_WAY", "1")
            .env("NCCLFLOW_TORCH_ANALYSER", &torch_analyser)
            .env("NCCLFLOW_HOOKS", &hooks)
            .env("NCCLFLOW_INSPECTOR_EXPORTER", &inspector_exporter)
            .env("NCCLFLOW_PROMTOOL", &promtool);
        if env::var_os(THREADS).is_none() {
            command.env(THREADS, (1 + available_parallelism().map_or(1, usize::from)).to_string());
        }
        command
    };
    let heartbeat = Heartbeat::start();
    let begun = Instant::now();
    let first = cargo_test::run(command(&["--workspace", "--no-fail-fast"]).args(cargo_arguments))?;
    times.push(("to run the tests; of these the longest:".to_owned(), begun.elapsed()));
    times.extend(first.times.iter().take(LONGEST).cloned());
    let is_again = again && !first.status.success() && has_few(&first);
    let passes_again = is_again && run_again(&first, command)?;
    let mut tested = Tested {
        passed: first.passed,
        skipped: skipped(&skips)?,
        lateness: heartbeat.latest(),
        times,
        ..Tested::default()
    };
    if passes_again {
        tested.passed += first.failed_tests.len();
        tested.passed_again = first.failed_tests.into_iter().collect();
    } else if !first.status.success() {
        print_skipped(&tested.skipped);
        bail!("tests failed ({})", first.status);
    }
    Ok(tested)
}

/// Things that tests need besides programs.
struct Fetched {
    python_path: OsString,
    pythons: OsString,
    torch_analyser: PathBuf,
    hooks: PathBuf,
    inspector_exporter: PathBuf,
    promtool: PathBuf,
}

fn fetch() -> Result<Fetched> {
    let python_path = prerequisites::python_path(&[])?;
    let pythons = pythons::pythons()?;
    let torch_analyser = prerequisites::torch_analyser()?;
    let hooks = prerequisites::hooks()?;
    let inspector_exporter = prerequisites::inspector_exporter()?;
    let promtool = prerequisites::promtool()?;
    for version in nccl::tested_versions() {
        nccl::library_path(version)?;
    }
    Ok(Fetched { python_path, pythons, torch_analyser, hooks, inspector_exporter, promtool })
}

/// Returns options by which cargo runs tests as root, if this is a user who may become it.
fn runner(python_path: &OsStr) -> Result<Vec<String>> {
    let words = root::words_before();
    if words.is_empty() || !root::is_to_be_had() {
        return Ok(Vec::new());
    }
    let words = words.into_iter().chain([root::assignment("PYTHONPATH", python_path)]);
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    Ok(programs::run_by(&words)?.into())
}

pub(crate) fn print_skipped(skipped: &[String]) {
    println!("{} skipped", skipped.len());
    for line in skipped {
        println!("  {line}");
    }
}

/// Variable by which libtest knows how many tests of a target to run at once: one more than there are processors, as most
/// of them wait, for a job, or until a time is over. With two more, tests of what happens in time begin to fail.
const THREADS: &str = "RUST_TEST_THREADS";

/// Number of targets that are named with the time that they took.
const LONGEST: usize = 20;

/// Most failed tests that run again; more in one run are no accident.
const MOST_AGAIN: usize = 6;

/// Tells whether the failed tests are known, and few.
fn has_few(outcome: &Outcome) -> bool {
    !outcome.is_cut_short && (1..=MOST_AGAIN).contains(&outcome.failed_tests.len())
}

/// Runs the tests that failed again, one target after the other. Returns whether all pass.
fn run_again(failed: &Outcome, command: impl Fn(&[&str]) -> Command) -> Result<bool> {
    let tests = failed.failed_tests.iter().map(String::as_str);
    let mut missing: BTreeSet<&str> = tests.clone().collect();
    for target in &failed.failed_targets {
        println!("running again what failed of `{target}`");
        // With the package alone, its dependencies can have other features, and would be built again.
        let words: Vec<&str> = target.split_whitespace().collect();
        let options = words.strip_prefix(&["-p"]).and_then(|words| words.get(1..)).unwrap_or(&words);
        let mut arguments = vec!["--workspace"];
        arguments.extend(options);
        arguments.extend(["--", "--exact"]);
        arguments.extend(tests.clone());
        let outcome = cargo_test::run(&mut command(&arguments))?;
        if !outcome.status.success() || outcome.passed_tests.is_empty() {
            return Ok(false);
        }
        missing.retain(|test| !outcome.passed_tests.contains(*test));
    }
    Ok(missing.is_empty())
}

/// Reads what tests have recorded by `test_support::skip`: the test, the thing that it lacks, and the remedy;
/// each once.
pub(crate) fn skipped(path: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(path).with_context(|| format!("reading `{}`", path.display()))?;
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines.dedup();
    Ok(lines)
}
