//! `--max-size`: keeps room for what must be written at the end, and reports what became of the limit.

use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::options::{Notice, RecordOptions};
use flow::session::{Budget, SessionReport, WhoseBudget};
use recording::sinks::{OutputDir, Share, tell_window_of_removed_lines};

/// Owner of windows that no container's flag opened.
const ALL_PROCESSES: &str = "all processes";

/// Bytes kept for the folder of the next window, besides its `session.json`.
const FOLDER: u64 = 64 << 10;

/// Creates the output folder, with its limit.
pub(super) fn create_folder(path: &Path, options: &RecordOptions) -> Result<OutputDir> {
    let dir = OutputDir::create(path)?;
    if options.max_size.is_none() && options.max_age.is_none() {
        return Ok(dir);
    }
    dir.limited(options.max_size.unwrap_or(u64::MAX), options.compress)
        .with_context(|| format!("looking at `{}`", path.display()))
}

/// Fails if the limit leaves no room for lines.
pub(super) fn check(dir: &OutputDir, report: &SessionReport, probes: usize, has_windows: bool) -> Result<()> {
    let Some(budget) = dir.budget() else { return Ok(()) };
    let room = keep_room(dir, report, probes, has_windows);
    let needed = if has_windows { 4 * room + FOLDER } else { 2 * room };
    if budget.limit() < 2 * needed {
        bail!(
            "--max-size is too little: with {probes} probes, `session.json` may need {} KiB; give it {} MiB at least",
            needed >> 10,
            (2 * needed).div_ceil(1 << 20)
        );
    }
    Ok(())
}

/// Keeps room for the recording's own `session.json`, and, if it has windows, for the next one's folder.
/// Returns the most bytes of a window's `session.json`.
pub(super) fn keep_room(dir: &OutputDir, report: &SessionReport, probes: usize, has_windows: bool) -> u64 {
    if dir.budget().is_none() {
        return 0;
    }
    let room = report_room(report, probes);
    // For this file, and for the one that takes its place.
    dir.keep(Share::Report, 2 * room);
    if !has_windows {
        return room;
    }
    let of_window = SessionReport { windows: Vec::new(), ..report.clone() };
    let room = report_room(&of_window, probes);
    dir.keep(Share::Opening, room + FOLDER);
    room
}

/// Returns the most bytes of `session.json`, unless very much is lost: it grows with each probe, and with
/// lists of gaps and CPUs. What ranks add is counted with their files.
pub(super) fn report_room(report: &SessionReport, probes: usize) -> u64 {
    const LISTS: usize = 48 << 10;
    const PROBE: usize = 768;
    let text = report.to_text().map_or(0, |text| text.len());
    (text + LISTS + probes * PROBE) as u64
}

/// Reports what has become of the limit, also in the reports of windows. Returns `true` if windows, or lines
/// of some, were removed.
pub(super) fn tell(dir: &OutputDir, report: &mut SessionReport, notice: &mut dyn FnMut(Notice<'_>)) -> bool {
    let Some(budget) = dir.budget() else { return false };
    let news = budget.take_news();
    if news.is_first_refusal {
        notice(Notice::OverMaxSize(budget.limit()));
    }
    for folder in &news.lines_removed {
        notice(Notice::LinesRemoved(folder));
    }
    for folder in &news.removed {
        notice(Notice::WindowRemoved(folder));
    }
    for window in &mut report.windows {
        window.lines_removed |= news.lines_removed.contains(&window.folder);
    }
    for folder in news.lines_removed.iter().filter(|folder| !news.removed.contains(folder)) {
        if let Err(error) = tell_window_of_removed_lines(dir, folder) {
            let folder = dir.path().join(folder);
            report.errors.push(format!("writing `session.json` of `{}` again: {error}", folder.display()));
        }
    }
    for tenant in &news.over_share {
        let whose = if tenant.is_empty() { ALL_PROCESSES } else { tenant };
        report.over_budget.add(Budget::Disk, WhoseBudget::Tenant(whose.to_owned()), "", 1);
    }
    report.windows.retain(|window| !news.removed.contains(&window.folder));
    report.max_size = Some(budget.report());
    !(news.removed.is_empty() && news.lines_removed.is_empty())
}
