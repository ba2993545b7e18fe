//! `ncclflow symbols`

use std::{io::Write as _, path::Path, process::ExitCode};

use anyhow::{Context as _, Result};

use super::{args::SymbolsArgs, terminal, write_json_line};
use crate::{
    kernel::probe::{CallSource, Level, ProbeSet, add_api_returns, compile},
    target::{Process, nccl_libraries},
};
use nccl_library::{
    elf::Image,
    symbols::{DebugFiles, Resolution, nccl_request_with_api, render, resolve_with},
};

pub(super) fn run(args: &SymbolsArgs) -> Result<ExitCode> {
    let mut images = Vec::new();
    if let Some(path) = &args.library {
        let image = Image::open(path).with_context(|| format!("reading `{}`", path.display()))?;
        images.push((path.clone(), image));
    }
    if let Some(pid) = args.pid {
        for library in nccl_libraries(&Process::open(pid)?, None)? {
            let context = || format!("reading `{}`", library.path.display());
            let file = library.try_clone_file().with_context(context)?;
            images.push((library.path.clone(), Image::from_file(file).with_context(context)?));
        }
    }
    let debug_files = args.debug.files();
    let mut traceable = true;
    for (path, image) in &images {
        traceable &= show(path, image, &debug_files, args.json)?;
    }
    Ok(if traceable { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether the library has everything that tracing cannot do without.
fn show(path: &Path, image: &Image, debug_files: &DebugFiles, json: bool) -> Result<bool> {
    let request = nccl_request_with_api();
    let resolution = resolve_with(image, &request, debug_files)
        .with_context(|| format!("reading `{}`", path.display()))?;
    let mut out = terminal::out();
    if json {
        write_json_line(&mut out, &resolution)?;
    } else {
        writeln!(out, "{}", path.display())?;
        write!(out, "{}", render(&resolution, &request))?;
        write!(out, "{}", levels(&resolution))?;
    }
    let traceable = resolution.missing_required().next().is_none();
    Ok(traceable)
}

/// What `record` can do with the library, by level.
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
