//! How far the processes of a bed have come, by what they leave behind.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use test_support::wait_until;

/// Long enough for a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_mins(1);

/// Waits until each of these processes, whose bed logs its calls to `prefix`, has made `more` calls more.
///
/// # Panics
/// If they do not.
#[track_caller]
pub fn wait_for_calls(prefix: &Path, pids: &[u32], more: usize) {
    let calls = |pid: &u32| {
        let log = fs::read_to_string(format!("{}.{pid}", prefix.display())).unwrap_or_default();
        log.matches('\n').count()
    };
    let before: Vec<usize> = pids.iter().map(calls).collect();
    wait_until("each process has made calls", PATIENCE, || {
        pids.iter().zip(&before).all(|(pid, before)| calls(pid) >= before + more)
    });
}

/// Waits until each of these processes, whose bed logs its calls to `prefix`, has made so many calls of `function` since it
/// began.
///
/// # Panics
/// If they do not.
#[track_caller]
pub fn wait_for_calls_of(function: &str, prefix: &Path, counts: &[(u32, usize)]) {
    let wanted = format!("\"function\":\"{function}\"");
    let calls = |pid: u32| {
        let log = fs::read_to_string(format!("{}.{pid}", prefix.display())).unwrap_or_default();
        log.lines().filter(|line| line.contains(&wanted)).count()
    };
    wait_until("each process has called it", PATIENCE, || {
        counts.iter().all(|(pid, count)| calls(*pid) >= *count)
    });
}

/// Waits until so many blocks more are written of a recording in `output` that has no windows. One that comes within
/// half a block's time of the last is taken for its rest.
///
/// # Panics
/// If they are not.
#[track_caller]
pub fn wait_for_blocks(output: &Path, count: usize) {
    let size = || fs::metadata(output.join("recording/000001.nfr")).map_or(0, |file| file.len());
    let (mut last, mut seen, mut seen_at) = (size(), 0, None::<Instant>);
    wait_until("blocks of the recording are written", PATIENCE, || {
        let now = size();
        if now > last && seen_at.is_none_or(|at| at.elapsed() > Duration::from_millis(500)) {
            seen += 1;
            seen_at = Some(Instant::now());
        }
        last = now;
        seen >= count
    });
}

/// Waits until these processes run no more. Those that their parent has not asked about yet count as gone.
///
/// # Panics
/// If they go on.
#[track_caller]
pub fn wait_for_exits(pids: &[u32]) {
    // The state stands behind the name, which is in parentheses and can have more of them (proc_pid_stat(5)).
    let runs = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    };
    wait_until("the processes have exited", PATIENCE, || !pids.iter().any(runs));
}

/// Waits until so many windows of a recording into `output` are complete.
///
/// # Panics
/// If they do not come about.
#[track_caller]
pub fn wait_for_windows(output: &Path, count: usize) {
    let is_complete = |folder: &Path| {
        let session = fs::read(folder.join("session.json")).unwrap_or_default();
        serde_json::from_slice::<serde_json::Value>(&session)
            .is_ok_and(|session| session["state"] == "complete")
    };
    wait_until("the window is complete", PATIENCE, || {
        let entries = fs::read_dir(output).into_iter().flatten().flatten().map(|entry| entry.path());
        let windows = entries.filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("window_"))
        });
        windows.filter(|folder| is_complete(folder)).count() >= count
    });
}
