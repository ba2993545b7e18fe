//! `cargo xtask verify conformance`: fetches each official library, resolves it with and without its
//! debugging information, runs it under the tracer, and compares the recording with the truth. Makes a
//! row of a table for each library.
//!
//! The program that does it is an example of `ncclflow-e2e`: xtask itself must build without the crate
//! `ncclflow`, which refuses to build while the committed eBPF object is out of date.

#[path = "../../tests/e2e/examples/conformance/row.rs"]
mod row;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use self::row::Row;
use crate::{nccl, programs, repository, root, tool::say, vm};

const DOCUMENT: &str = "docs/NCCL-SUPPORT.md";
const BEGIN: &str = "<!-- cargo xtask verify conformance --nccl all --write: begin -->";
const END: &str = "<!-- end -->";
const HEAD: &str = "\
| NCCL | CUDA | processor | build-id | functions | structs / fields | patterns | bed | witnesses | mismatches |
|---|---|---|---|---|---|---|---|---|---|
";

#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Args {
    /// Versions like 2.27.5, 2.28.9-cu13 or 2.28.9-cu12-aarch64; `eras`: one of each era, as CI runs
    /// them; `all`: every wheel
    #[arg(long, value_name = "VERSION", num_args = 1.., default_values = ["eras"])]
    nccl: Vec<String>,
    /// Resolve the libraries, and run none of them (for which root is needed)
    #[arg(long)]
    no_run: bool,
    /// One job on the bed, with the library, and none with its stripped copy
    #[arg(long)]
    quick: bool,
    /// No jobs on the bed
    #[arg(long, conflicts_with = "quick")]
    no_bed: bool,
    /// Run libraries for aarch64 in a virtual machine, which is emulated: some minutes for each. Without it they
    /// are resolved only
    #[arg(long, conflicts_with = "no_run")]
    emulate: bool,
    /// Keep libraries in the cache that were not there before
    #[arg(long)]
    keep: bool,
    /// Put each row into docs/NCCL-SUPPORT.md, in place of that of the same library
    #[arg(long)]
    write: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let versions = versions(&args.nccl);
    let program = programs::build_all()?.join("examples/conformance");
    let mut failed = Vec::new();
    print!("{HEAD}");
    for version in &versions {
        let was_there = nccl::is_cached(version)?;
        let row = examine(&program, version, args).with_context(|| format!("NCCL {version}"))?;
        for mismatch in &row.mismatches {
            say(&format!("{version}: {mismatch}"));
        }
        if !row.mismatches.is_empty() {
            failed.push(version.as_str());
        }
        let line = line(version, &row);
        print!("{line}");
        if args.write {
            write(&line)?;
        }
        if !was_there && !args.keep {
            nccl::forget(version)?;
        }
    }
    if !failed.is_empty() {
        bail!(
            "{} of {} libraries differ from the truth: {}",
            failed.len(),
            versions.len(),
            failed.join(", ")
        );
    }
    Ok(())
}

/// Writes each row at once, so that an interrupted run leaves what it found.
fn write(row: &str) -> Result<()> {
    let document = repository::root().join(DOCUMENT);
    let text = fs::read_to_string(&document).with_context(|| format!("reading `{}`", document.display()))?;
    let text = with_row(&text, row)?;
    fs::write(&document, text).with_context(|| format!("writing `{}`", document.display()))
}

fn versions(named: &[String]) -> Vec<String> {
    let of = |name: &String| match name.as_str() {
        "all" => nccl::official::all(),
        "eras" => nccl::official::ERAS.map(str::to_owned).to_vec(),
        version => vec![version.to_owned()],
    };
    named.iter().flat_map(of).collect()
}

/// A witness that is missing is a failure here, and not a test that is skipped.
const REQUIRED: &str = "root,programs";

/// Time for a library in an emulated machine.
const EMULATED: Duration = Duration::from_hours(1);

fn examine(program: &Path, version: &str, args: &Args) -> Result<Row> {
    let library = nccl::library_path(version)?;
    let is_emulated = args.emulate && version.ends_with("-aarch64");
    let options = [(args.no_run, "--no-run"), (args.quick, "--quick"), (args.no_bed, "--no-bed")];
    let options = options.into_iter().filter(|(is_given, _)| *is_given).map(|(_, option)| option);
    if is_emulated {
        let library = library.to_str().context("the cache has an odd name")?;
        let words = options.chain([library]).map(str::to_owned);
        let (code, printed) = vm::run_on_arm64("examples/conformance", REQUIRED, words, EMULATED)?;
        // What it says while it works comes from the same console.
        let (rows, said): (Vec<&str>, Vec<&str>) = printed.lines().partition(|line| line.starts_with('{'));
        for line in said {
            say(line);
        }
        let row = rows.last().with_context(|| format!("it ended with {code} and no row"))?;
        return serde_json::from_str(row).context("the row of the emulated machine");
    }
    let mut command = root::command(program);
    command.args(options).env("NCCLFLOW_REQUIRE", REQUIRED);
    let output = command.arg(&library).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("starting `{}`", program.display()))?;
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("`{}` ended with {} and no row", program.display(), output.status))
}

fn line(version: &str, row: &Row) -> String {
    let release = version.split('-').next().unwrap_or(version);
    let cuda = row.cuda.map_or_else(|| "?".to_owned(), |cuda| cuda.to_string());
    let functions: Vec<String> = row.forms.iter().map(|form| form.functions.to_string()).collect();
    let both = |compared: [Option<u64>; 2]| match compared {
        [Some(own), Some(stripped)] => format!("{own} / {stripped}"),
        [Some(own), None] => own.to_string(),
        _ => "–".to_owned(),
    };
    let mut line = String::new();
    // Writing to a string cannot fail.
    _ = writeln!(
        line,
        "| {release} | {cuda} | {} | `{}` | {} | {} / {} | {} | {} | {} | {} |",
        row.machine,
        row.build_id.get(..8).unwrap_or(&row.build_id),
        functions.join(" / "),
        row.structs,
        row.fields,
        both(row.patterns),
        both(row.bed),
        row.witnesses.as_deref().unwrap_or("–"),
        row.mismatches.len(),
    );
    line
}

/// Returns the cells that identify the library of a row: the first four.
fn library_of(row: &str) -> Vec<&str> {
    row.split('|').skip(1).take(4).map(str::trim).collect()
}

/// Returns the document with this row; the rows of other libraries stay.
fn with_row(document: &str, row: &str) -> Result<String> {
    let marks = || format!("`{DOCUMENT}` has lost the lines that mark the table");
    let (before, rest) = document.split_once(BEGIN).with_context(marks)?;
    let (table, after) = rest.split_once(END).with_context(marks)?;
    let mut rows: Vec<&str> = table.lines().filter(|line| line.contains('`')).collect();
    let row = row.trim_end();
    match rows.iter_mut().find(|known| library_of(known) == library_of(row)) {
        Some(known) => *known = row,
        None => rows.push(row),
    }
    Ok(format!("{before}{BEGIN}\n{HEAD}{}\n{END}{after}", rows.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::{BEGIN, END, HEAD, with_row};

    #[test]
    fn a_row_replaces_that_of_the_same_library() {
        let row = |version: &str, build_id: &str, mismatches: u32| {
            format!("| {version} | 12 | x86-64 | `{build_id}` | 1 | 2 | 3 | 4 | all | {mismatches} |\n")
        };
        let document = format!("text\n{BEGIN}\n{END}\nmore\n");
        let rows = [row("2.16.2", "aa", 1), row("2.17.1", "bb", 1), row("2.16.2", "aa", 0)];
        let new = rows.iter().fold(document, |document, row| with_row(&document, row).unwrap());
        let table = [row("2.16.2", "aa", 0), row("2.17.1", "bb", 1)].concat();
        assert_eq!(new, format!("text\n{BEGIN}\n{HEAD}{table}{END}\nmore\n"));
        assert!(with_row("text", "").is_err());
    }
}
