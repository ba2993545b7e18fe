//! `ncclflow ps`

use std::{
    io::{IsTerminal as _, Write as _, stdout},
    process::ExitCode,
    thread,
};

use anyhow::Result;

use super::{args::PsArgs, progress::ProgressLine, terminal, write_json, write_json_line};
use dump::ps::{Lister, PsOptions, PsReport, render};
use inspect::{
    layout_cache::{LayoutCache, default_folder},
    memory::ScanLimits,
};

pub(super) fn run(args: &PsArgs) -> Result<ExitCode> {
    let options = PsOptions {
        filter: args.filter.filter(),
        communicators: !args.no_comms,
        limits: ScanLimits {
            time: std::time::Duration::from_secs(args.max_seconds),
            ..ScanLimits::default()
        },
        debug_files: args.debug.files(),
    };
    // Without a cache everything is resolved anew, which is no failure.
    let cache = default_folder().and_then(|path| LayoutCache::open(&path).ok());
    let mut lister = Lister::new(options, cache);
    loop {
        let mut bar = ProgressLine::new();
        let report = lister.list(&mut |progress| bar.show(progress));
        bar.clear();
        show(&report?, args)?;
        let Some(pause) = args.watch else { return Ok(ExitCode::SUCCESS) };
        thread::sleep(pause);
    }
}

fn show(report: &PsReport, args: &PsArgs) -> Result<()> {
    let mut out = terminal::out();
    if args.json {
        if args.watch.is_some() {
            write_json_line(&mut out, report)?;
        } else {
            write_json(&mut out, report)?;
        }
    } else {
        let is_terminal = stdout().is_terminal();
        let width = is_terminal.then(terminal_width).flatten();
        if is_terminal && args.watch.is_some() {
            // Home, and clear to the end of the screen.
            stdout().write_all(b"\x1b[H\x1b[J")?;
        }
        write!(out, "{}", render(report, width))?;
    }
    out.flush()?;
    Ok(())
}

/// Returns the terminal's width, or `$COLUMNS` if a shell has set it.
fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    let width = size.map(|size| usize::from(size.ws_col)).filter(|width| *width > 0);
    width.or_else(|| std::env::var("COLUMNS").ok()?.parse().ok())
}
