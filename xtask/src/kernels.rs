//! `cargo xtask verify kernels`: what works under which kernel, in virtual machines. Makes a row of a table for each
//! kernel.
//!
//! Kernels differ in what their verifier takes: `doctor` has each program loaded. Whether what the programs say is
//! right, tests tell which run there as they are.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    nccl, programs,
    tool::{self, say},
    vm,
};

/// Capabilities, and the tests that show them: the target of `tests/e2e`, and the test.
const TRIED: [(&str, &str, &str); 11] = [
    ("api", "api", "every_call_is_there_as_nccl_logs_it"),
    ("--returns", "api", "every_return_is_there_as_the_program_saw_it"),
    ("flow", "record", "nccl_2_27_5_every_operation"),
    ("steps", "steps", "nccl_2_27_5_as_the_plugin_tells"),
    ("steps, perf", "steps", "through_the_perf_event_array_and_perf_links"),
    ("stacks", "stacks_live", "every_call_has_the_stack_that_the_program_itself_knows"),
    ("native", "stacks_native", "every_call_has_the_native_stack_that_the_program_itself_knows"),
    ("dump", "dump", "a_rank_that_stays_away_is_named"),
    ("watch", "watch", "a_hang_alerts_once_with_its_culprit_and_ends_once"),
    ("--all", "node", "ps_and_record_all_show_each_process_with_its_identity"),
    ("windows", "windows", "a_signal_and_the_time_begin_new_windows_where_there_is_always_one"),
];

/// Debian's names of kernels.
const KERNELS: [&str; 2] = ["linux-image-amd64", "linux-image-6.12-amd64"];

/// Time for a test, which is emulated.
const PATIENCE: Duration = Duration::from_mins(30);

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cargo xtask verify kernels --load                  have each kernel of Debian's load all programs
  cargo xtask verify kernels                         all of the table, some ten minutes a cell without KVM
  cargo xtask verify kernels --only stacks --kernel linux-image-unsigned-5.15.0-204-generic.deb,linux-modules-….deb")]
pub(crate) struct Args {
    /// Packages of a kernel, or a name of one that apt has, which is fetched; by default those of Debian 12
    #[arg(long = "kernel", value_name = "NAME|DEB,DEB…")]
    kernels: Vec<String>,
    /// Only have the programs loaded
    #[arg(long)]
    load: bool,
    /// Only these capabilities: api, --returns, flow, steps, …
    #[arg(long, value_name = "NAME", value_delimiter = ',', allow_hyphen_values = true)]
    only: Vec<String>,
    /// How QEMU runs the machines: `tcg`, or `kvm`
    #[arg(long, value_name = "NAME", default_value = "tcg")]
    accelerator: String,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let default = KERNELS.map(str::to_owned);
    let kernels = if args.kernels.is_empty() { &default[..] } else { &args.kernels };
    let kernels = kernels.iter().map(|kernel| packages(kernel)).collect::<Result<Vec<_>>>()?;
    if let Some(unknown) = args.only.iter().find(|name| TRIED.iter().all(|tried| tried.0 != name.as_str())) {
        bail!("no capability is called `{unknown}`");
    }
    let is_tried =
        |name: &str| !args.load && (args.only.is_empty() || args.only.iter().any(|only| only == name));
    let tried: Vec<_> = TRIED.into_iter().filter(|(name, ..)| is_tried(name)).collect();
    let ncclflow = programs::build_all()?.join("ncclflow");
    if !tried.is_empty() {
        programs::build_tests()?;
    }
    let heads = tried.iter().fold(String::new(), |heads, (name, ..)| heads + " " + name + " |");
    println!("| kernel | load |{heads}\n|---|---|{}", "---|".repeat(tried.len()));
    let mut failed = 0;
    for packages in &kernels {
        let mut cells = vec![loads(args, packages, &ncclflow)?];
        for (_, target, test) in &tried {
            cells.push(passes(args, packages, &ncclflow, target, test)?);
        }
        failed += cells.iter().filter(|cell| **cell != OK).count();
        println!("| {} | {} |", release(packages), cells.join(" | "));
    }
    match failed {
        0 => Ok(()),
        _ => bail!("{failed} of what was tried does not work; what it said is above"),
    }
}

const OK: &str = "ok";
const FAILED: &str = "no";

/// Returns the packages of a kernel.
fn packages(kernel: &str) -> Result<Vec<PathBuf>> {
    let is_file = |word: &str| Path::new(word).extension().is_some_and(|extension| extension == "deb");
    if kernel.split(',').all(is_file) {
        Ok(kernel.split(',').map(PathBuf::from).collect())
    } else {
        fetch(kernel)
    }
}

/// Fetches a kernel's package, if it is not there yet.
fn fetch(name: &str) -> Result<Vec<PathBuf>> {
    let folder = nccl::cache_folder("kernels")?;
    fs::create_dir_all(&folder).with_context(|| format!("making `{}`", folder.display()))?;
    let said = tool::output(Command::new("apt-cache").args(["depends", "--important", name]))?;
    let said = String::from_utf8_lossy(&said);
    let image = said.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    let image = image.with_context(|| {
        format!("apt has no `{name}`, which is Debian 12's; give other kernels with --kernel")
    })?;
    let find = || -> Result<Option<PathBuf>> {
        let entries = fs::read_dir(&folder)?.collect::<Result<Vec<_>, _>>()?;
        let is_it = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
            name.strip_prefix(image).is_some_and(|rest| rest.starts_with('_'))
        };
        Ok(entries.into_iter().map(|entry| entry.path()).find(is_it))
    };
    if find()?.is_none() {
        say(&format!("fetching {image}"));
        let mut apt = Command::new("apt-get");
        // It is written by root: apt's own user may not enter the cache.
        apt.args(["download", "-qq", "-o", "APT::Sandbox::User=root", image]).current_dir(&folder);
        tool::run(&mut apt, "a kernel")?;
    }
    let package = find()?.with_context(|| format!("apt left no `{image}` in `{}`", folder.display()))?;
    Ok(vec![package])
}

fn release(packages: &[PathBuf]) -> String {
    let names = packages.iter().filter_map(|path| path.file_name()?.to_str());
    let image = names.into_iter().find(|name| name.starts_with("linux-image")).unwrap_or("?");
    let name = image.split('_').next().unwrap_or(image);
    name.trim_start_matches("linux-image-").trim_start_matches("unsigned-").to_owned()
}

/// Has the kernel load all programs.
fn loads(args: &Args, packages: &[PathBuf], ncclflow: &Path) -> Result<&'static str> {
    let (_, said) = vm::run_under(packages, &args.accelerator, &[word(ncclflow)?, "doctor"], PATIENCE)?;
    let refusals: Vec<&str> = said.lines().filter(|line| line.contains("the kernel refused")).collect();
    for refusal in &refusals {
        say(&format!("{}: {refusal}", release(packages)));
    }
    let is_loaded = said.contains("µs a hit") && refusals.is_empty();
    if !is_loaded {
        say(&said);
    }
    Ok(if is_loaded { OK } else { FAILED })
}

/// Runs a test under the kernel.
fn passes(
    args: &Args,
    packages: &[PathBuf],
    ncclflow: &Path,
    target: &str,
    test: &str,
) -> Result<&'static str> {
    let program = test_program(&ncclflow.with_file_name("deps"), target)?;
    let program = word(&program)?;
    // What a test lacks is a failure here.
    let command = ["env", "NCCLFLOW_REQUIRE=all", program, "--exact", test];
    let (code, said) = vm::run_under(packages, &args.accelerator, &command, PATIENCE)?;
    let has_passed = code == 0 && said.contains(" 1 passed;");
    if !has_passed {
        say(&format!("{}, {target}: {test}: exit code {code}\n{said}", release(packages)));
    }
    Ok(if has_passed { OK } else { FAILED })
}

fn word(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("`{}` has an odd name", path.display()))
}

/// Returns the newest program of a target of tests.
fn test_program(folder: &Path, target: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading `{}`", folder.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
        let hash = name.strip_prefix(target).and_then(|rest| rest.strip_prefix('-'));
        if hash.is_some_and(|hash| hash.chars().all(|letter| letter.is_ascii_hexdigit())) {
            found.push((path.metadata()?.modified()?, path));
        }
    }
    let newest = found.into_iter().max();
    Ok(newest.with_context(|| format!("no program of the tests `{target}` was built"))?.1)
}
