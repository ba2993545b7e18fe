//! `ncclflow symbols`

use std::{io::Write as _, process::ExitCode};

use anyhow::{Context as _, Result};

use super::{args::SymbolsArgs, terminal, write_json_line};
use flow::session::{CallSource, Level};
use inspect::{
    process::{MappedLibrary, Process, printable},
    resolver::{self, What},
};
use nccl_library::symbols::{DebugFiles, Resolution, nccl_request_with_api, render};
use trace::kernel::probe::{ProbeSet, add_api_returns, compile};

pub(super) fn run(args: &SymbolsArgs) -> Result<ExitCode> {
    let mut libraries = Vec::new();
    if let Some(path) = &args.library {
        let context = || format!("reading `{}`", printable(&path.display().to_string()));
        libraries.push(resolver::take_hold(path).with_context(context)?);
    }
    if let Some(pid) = args.pid {
        libraries.extend(resolver::libraries(&Process::open(pid)?, None)?);
    }
    let debug_files = args.debug.files();
    let mut traceable = true;
    for library in &libraries {
        traceable &= show(library, &debug_files, args.json)?;
    }
    Ok(if traceable { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Shows the library. Returns whether it has everything that tracing needs.
fn show(library: &MappedLibrary, debug_files: &DebugFiles, json: bool) -> Result<bool> {
    let resolved = resolver::resolve(library, What::Api, debug_files);
    let resolution = resolved.with_context(|| format!("reading `{}`", library.shown()))?.resolution;
    let mut out = terminal::out();
    if json {
        write_json_line(&mut out, &resolution)?;
    } else {
        writeln!(out, "{}", library.shown())?;
        write!(out, "{}", render(&resolution, &nccl_request_with_api()))?;
        write!(out, "{}", levels(&resolution))?;
    }
    let traceable = resolution.missing_required().next().is_none();
    Ok(traceable)
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
    let by_arguments = rows.iter().any(|(_, set)| set.calls == Some(CallSource::ExportedFunctions));
    let by_arguments = by_arguments.then(|| {
        "  api: calls are recorded by the arguments of the exported functions; of communicators only their addresses are known\n"
            .to_owned()
    });
    let lines = rows.iter().map(|(level, set)| {
        let (probes, missing) = (set.probes.len(), set.missing.len());
        let missing = if missing == 0 { String::new() } else { format!(", {missing} missing") };
        format!("  {level:9}  {probes}{missing}\n")
    });
    std::iter::once("\nprobes of a process, by level\n".to_owned()).chain(lines).chain(by_arguments).collect()
}
