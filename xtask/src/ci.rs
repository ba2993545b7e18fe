//! `cargo xtask ci`: the checks that CI runs on a clean checkout, in stages that can be run alone. No test
//! that should run may be skipped.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use crate::{
    prerequisites, programs, repository, root, test,
    tool::{self, say},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cargo xtask ci            all stages, in this order, as .ci/run does
  cargo xtask ci lint unit  some of them; neither needs root")]
pub(crate) struct Args {
    /// Only these, in this order
    #[arg(value_name = "STAGE")]
    stages: Vec<Stage>,

    /// Leave out the stages `official` and `soak`, and the trial of what `dist` builds, and say so last, if so much time
    /// is over when they would begin: on a machine that is slow today
    #[arg(long, value_name = "MINUTES")]
    within: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Stage {
    /// Format, clippy, the committed eBPF object, generated tables, promises and their tests, licences
    Lint,
    /// Unit tests, without root
    Unit,
    /// `cargo xtask test` on the bed: all tests, none skipped
    Bed,
    /// What is shipped: built, installed, used, removed
    Dist,
    /// Official libraries of every era, and an older kernel
    Official,
    /// The tracer among tenants who do all that tenants do, and killed at any moment
    Soak,
}

const ALL: [Stage; 6] = [Stage::Lint, Stage::Unit, Stage::Bed, Stage::Dist, Stage::Official, Stage::Soak];

impl Stage {
    /// Tells whether it goes beyond the tests, and may be left out where the time is over.
    fn goes_beyond(self) -> bool {
        matches!(self, Self::Official | Self::Soak)
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let stages = if args.stages.is_empty() { ALL.to_vec() } else { args.stages.clone() };
    let (mut tested, mut times) = (None, Vec::new());
    let (all_begun, mut left_out) = (Instant::now(), Vec::new());
    let is_late =
        || args.within.is_some_and(|minutes| all_begun.elapsed() >= Duration::from_secs(60 * minutes));
    for stage in stages {
        if stage.goes_beyond() && is_late() {
            left_out.push(format!("{stage:?}"));
            continue;
        }
        say(&format!("\n== {stage:?} =="));
        let begun = Instant::now();
        let done = match stage {
            Stage::Lint => lint(),
            Stage::Unit => unit(),
            Stage::Bed => bed(times.iter().any(|(done, _)| *done == Stage::Unit), &mut tested),
            Stage::Dist => {
                if is_late() {
                    left_out.push("the trial of what is shipped".to_owned());
                    xtask(&["dist", "--quick"])
                } else {
                    xtask(&["dist", "--quick", "--try"])
                }
            }
            Stage::Official => official(),
            Stage::Soak => soak(),
        };
        times.push((stage, begun.elapsed()));
        done.with_context(|| {
            format!("the stage {stage:?} failed; alone: `cargo xtask ci {stage:?}`").to_lowercase()
        })?;
    }
    for (stage, took) in times {
        say(&format!("{stage:?}: {}", minutes(took)));
    }
    // Printed last, so that it is read: tests that passed only at the second try.
    if let Some(tested) = tested {
        tested.print();
    }
    if !left_out.is_empty() {
        say(&format!("LEFT OUT, as the time was over: {}", left_out.join(", ")));
    }
    Ok(())
}

fn minutes(time: Duration) -> String {
    format!("{} min {} s", time.as_secs() / 60, time.as_secs() % 60)
}

/// Runs a chore of this program in a process of its own: it prints and fails as if it were run alone.
fn xtask(arguments: &[&str]) -> Result<()> {
    say(&format!("-- cargo xtask {}", arguments.join(" ")));
    let own = tool::own_program()?;
    tool::run(Command::new(own).args(arguments), &arguments.join(" "))
}

fn lint() -> Result<()> {
    prerequisites::lint_components()?;
    let cargo = |folder: &str, arguments: &[&str]| {
        say(&format!("-- cargo {} ({folder})", arguments.join(" ")));
        // Clippy and rustfmt must have the compiler's version.
        let mut cargo = match prerequisites::toolchain()? {
            Some(toolchain) => {
                let mut rustup = Command::new("rustup");
                rustup.args(["run", &toolchain, "cargo"]);
                rustup
            }
            None => Command::new(programs::cargo()),
        };
        cargo.current_dir(repository::root().join(folder));
        tool::run(cargo.args(arguments), "the checks of the sources")
    };
    cargo(".", &["fmt", "--all", "--check"])?;
    for outside in ["ebpf", "tests/fuzz"] {
        cargo(outside, &["fmt", "--check"])?;
    }
    cargo(".", &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])?;
    xtask(&["make", "ebpf", "--check"])?;
    xtask(&["make", "output-docs", "--check"])?;
    xtask(&["verify", "promises"])?;
    xtask(&["verify", "deny"])
}

/// Runs the unit tests as nobody, where this is root: no unit test needs rights.
fn unit() -> Result<()> {
    let mut cargo = programs::cargo_command("test");
    // With the features that the stage `bed` builds with, nothing is built twice.
    cargo.args(["--workspace", "--lib", "--bins"]);
    if root::is_root() {
        let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"];
        let reachable =
            Command::new(nobody[0]).args(&nobody[1..]).arg("test").arg("-r").arg(repository::root()).status();
        if reachable.is_ok_and(|status| status.success()) {
            cargo.args(programs::run_by(&nobody)?).env("HOME", "/nonexistent");
        } else {
            say("user 65534 cannot read this checkout: the unit tests run as root");
        }
    }
    let skips = programs::target_folder()?.join("skipped-unit-tests");
    fs::write(&skips, "").with_context(|| format!("making `{}`", skips.display()))?;
    fs::set_permissions(&skips, Permissions::from_mode(0o666))
        .context("letting nobody note what is skipped")?;
    tool::run(cargo.env("NCCLFLOW_SKIPS", &skips), "the unit tests")?;
    test::print_skipped(&test::skipped(&skips)?);
    Ok(())
}

/// `after_unit`: the unit tests have run, and are not run again.
fn bed(after_unit: bool, tested: &mut Option<test::Tested>) -> Result<()> {
    say("-- cargo xtask test --require all --again");
    let others = ["--test".to_owned(), "*".to_owned()];
    *tested = Some(test::run_all("all", true, if after_unit { &others } else { &[] })?);
    Ok(())
}

fn official() -> Result<()> {
    xtask(&["verify", "conformance", "--quick", "--keep"])?;
    // What an older verifier takes is known only to an older kernel.
    xtask(&["verify", "kernels", "--load", "--kernel", "linux-image-amd64"])
}

fn soak() -> Result<()> {
    xtask(&["verify", "soak", "--minutes", "2"])?;
    xtask(&["verify", "soak", "--kills", "4"])
}
