//! `ncclflow symbols`

use std::{fmt::Write as _, io::Write as _, path::PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde_json::Value;

use super::{
    Versioned,
    exit::Exit,
    quantities::{Pids, each},
    shared_args::DebugArgs,
    terminal,
    whom::by_reason,
    write_json_line,
};
use flow::{
    session::{CallSource, Level},
    text::joined,
};
use inspect::{
    process::{MappedLibrary, Process, printable},
    resolver::{self, What},
};
use nccl_library::symbols::{DebugFiles, Resolution, nccl_request_with_api, render};
use trace::kernel::probe::{ProbeSet, add_api_returns, compile};

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("target").required(true).args(["library", "pid"]))]
#[command(after_help = "\
Examples:
  ncclflow symbols /usr/lib/x86_64-linux-gnu/libnccl.so.2
  ncclflow symbols -p 4242 --json | jq .symbolSource
  ncclflow symbols --debug-dir ~/wheels/nvidia stripped/libnccl.so.2

Exit codes: 0 done; 1 a library cannot be traced, or not be shown; 2 wrong usage.")]
pub struct SymbolsArgs {
    /// An NCCL library file
    #[arg(value_name = "LIB")]
    pub library: Option<PathBuf>,

    /// Processes that have an NCCL library mapped; a library that several have is shown once
    #[arg(short, long, value_name = "PID", num_args = 1..)]
    pub pid: Vec<Pids>,

    #[command(flatten)]
    pub debug: DebugArgs,

    /// Everything that was resolved, as JSON
    #[arg(long)]
    pub json: bool,
}

pub(super) fn run(args: &SymbolsArgs) -> Result<Exit> {
    let debug_files = args.debug.apply();
    // A file that is named on the command line is wanted.
    resolver::allow_fuse(true);
    let (mut libraries, mut refused) = (Vec::new(), Vec::new());
    if let Some(path) = &args.library {
        let context = || format!("reading `{}`", printable(&path.display().to_string()));
        libraries.push(resolver::take_hold(path).with_context(context)?);
    }
    for pid in each(&args.pid) {
        let known: Vec<_> = libraries.iter().map(|library: &MappedLibrary| library.id).collect();
        match libraries_of(pid) {
            Ok(all) => libraries.extend(all.into_iter().filter(|library| !known.contains(&library.id))),
            Err(error) => refused.push((pid, format!("{error:#}"))),
        }
    }
    let mut failed = by_reason(refused);
    let mut traceable = true;
    for library in &libraries {
        match show(library, &debug_files, args.json) {
            Ok(is_traceable) => traceable &= is_traceable,
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    // Those that can be shown were shown.
    if !failed.is_empty() {
        bail!("{}", joined(failed, "; "));
    }
    Ok(if traceable { Exit::Done } else { Exit::Failed })
}

fn libraries_of(pid: u32) -> Result<Vec<MappedLibrary>> {
    Ok(resolver::libraries(&Process::open(pid)?, None)?)
}

/// Shows the library. Returns whether it has everything that tracing needs.
fn show(library: &MappedLibrary, debug_files: &DebugFiles, json: bool) -> Result<bool> {
    let resolved = resolver::resolve(library, What::Api, debug_files);
    let resolution = resolved.with_context(|| format!("reading `{}`", library.shown()))?.resolution;
    if resolution.nccl_version.is_none() && resolution.functions.is_empty() && !json {
        let shown = library.shown();
        bail!("`{shown}` is no NCCL library: it has neither NCCL's version string nor its functions");
    }
    let mut out = terminal::out();
    if json {
        let mut document = serde_json::to_value(&resolution)?;
        in_camel_case(&mut document);
        write_json_line(&mut out, &Versioned { schema: Some(SCHEMA), ..Versioned::of(&document) })?;
    } else {
        writeln!(out, "{}", library.shown())?;
        write!(out, "{}{}", render(&resolution, &nccl_request_with_api()), levels(&resolution))?;
    }
    Ok(resolution.missing_required().next().is_none())
}

/// Version of the form of the JSON.
const SCHEMA: u32 = 2;

/// Keys of what is resolved, as kept layouts have them. All others are names of functions, structs and variables, or one
/// word.
const KEYS: [&str; 16] = [
    "build_id",
    "nccl_version",
    "cuda_version",
    "symbol_source",
    "debug_file",
    "layouts_from",
    "symmetric_kernels",
    "elem_size",
    "found_by",
    "file_offset",
    "uprobe_offset",
    "params_from",
    "type_name",
    "from_reclaim",
    "entry_stack",
    "sp_offset",
];

/// Renames these keys as all `--json` has them: `buildId`.
fn in_camel_case(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for key in KEYS {
                if let Some(value) = map.remove(key) {
                    let mut words = key.split('_');
                    let first = words.next().unwrap_or_default().to_owned();
                    let camel =
                        words.fold(first, |name, word| name + &word[..1].to_ascii_uppercase() + &word[1..]);
                    map.insert(camel, value);
                }
            }
            map.values_mut().for_each(in_camel_case);
        }
        Value::Array(values) => values.iter_mut().for_each(in_camel_case),
        _ => {}
    }
}

/// Describes what `record` can do with the library, by level.
fn levels(resolution: &Resolution) -> String {
    let mut returns = ProbeSet::default();
    add_api_returns(&mut returns, resolution);
    let rows = [
        ("api", compile(resolution, Level::Api, None)),
        ("--returns", returns),
        ("flow", compile(resolution, Level::Flow, None)),
        ("steps", compile(resolution, Level::Steps, None)),
    ];
    let mut text = "\nprobes of a process, by level\n".to_owned();
    for (level, set) in &rows {
        let (probes, missing) = (set.probes.len(), set.missing.len());
        let missing = if missing == 0 { String::new() } else { format!(", {missing} missing") };
        _ = writeln!(text, "  {level:9}  {probes}{missing}");
    }
    if rows.iter().any(|(_, set)| set.calls == Some(CallSource::ExportedFunctions)) {
        text.push_str("  api: calls are recorded by the arguments of the exported functions; of communicators only their addresses are known\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_are_in_camel_case_and_names_stay() {
        let mut document = json!({
            "build_id": "ab",
            "functions": { "nccl_file_open": [{ "file_offset": 1, "params": [{ "entry_stack": { "sp_offset": 8 } }] }] },
        });
        in_camel_case(&mut document);
        let expected = json!({
            "buildId": "ab",
            "functions": { "nccl_file_open": [{ "fileOffset": 1, "params": [{ "entryStack": { "spOffset": 8 } }] }] },
        });
        assert_eq!(document, expected);
    }
}
