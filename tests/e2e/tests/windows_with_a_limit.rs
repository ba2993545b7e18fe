//! `record --window-max-ops`, `--window-max-secs`, `--max-size`: windows, and the folder that they are in, stay
//! within their limits.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::{
    harness::{
        disk::Disk,
        prelude::*,
        processes::on_disk,
        windowed::{Windowed, communicators, folders, of_ranks, whole_session},
    },
    tracer::Trace,
};

#[test]
fn a_window_that_reaches_its_count_of_ops_opens_again_only_for_a_new_flag() {
    let Some(mut job) = Windowed::start(1, "2", &["--window-max-ops", "15"]) else { return };
    for number in 1..=2 {
        // The limit closes it, and the flag stays for many calls more.
        File::create(&job.flag).unwrap();
        progress::wait_for_windows(&job.output, number);
        job.wait_for_calls(10);
        // That it was gone is noticed also when it is there again.
        fs::remove_file(&job.flag).unwrap();
    }
    let (session, said) = job.end();
    let windows = list(&session["windows"]);
    assert_eq!(windows.len(), 2, "{said}");
    for window in windows {
        assert_eq!(window["closed_by"], "max_ops");
        let folder = job.output.join(text(&window["folder"]));
        let session = whole_session(&folder);
        assert_eq!(lines_of_ranks(&session, "proxyFlowLines"), 15, "{said}");
        // A window begins without memory of the one before, and everything in it is complete all the same.
        let trace = Trace::read(&folder).unwrap();
        for (member, rank) in &trace.ranks {
            assert!(rank.flows.iter().all(|flow| flow.ring_next == (member.rank + 1) % 2), "{member}");
            assert!(!rank.steps.is_empty(), "{member}");
        }
    }
}

#[test]
fn a_window_that_reaches_its_time_closes_while_the_flag_stays() {
    let Some(mut job) = Windowed::start(1, "2", &["--level", "api", "--window-max-secs", "0.3"]) else {
        return;
    };
    File::create(&job.flag).unwrap();
    progress::wait_for_windows(&job.output, 1);
    job.wait_for_calls(10);
    let (session, said) = job.end();
    let [window] = &**list(&session["windows"]) else { panic!("{said}") };
    assert_eq!(window["closed_by"], "max_secs");
    let number = |key: &str| number(&window[key]);
    let open = number("closed_monotonic_ns") - number("opened_monotonic_ns");
    // A process can be kept from running for seconds.
    assert!((300_000_000..30_000_000_000).contains(&open), "{open}");
}

/// Windows for ever in a folder that is full: it never takes more than it may, the latest windows are there
/// and whole, the files of lines of older ones are gone first, and what was removed is named.
#[test]
fn a_folder_with_a_limit_keeps_the_latest_windows_and_never_takes_more() {
    // Four to five windows with all that is kept for the open one.
    const LIMIT: u64 = 4 << 20;
    let folder = tempfile::tempdir().unwrap();
    // In memory: where a disk is slow, no window is complete when there must be room for the next.
    let disk = Disk::mount(&folder.path().join("disk"), 64);
    if !need("mount", disk.is_ok(), "run it where file systems can be mounted") {
        return;
    }
    let disk = disk.unwrap();
    let output = disk.path().join("out");
    let arguments = ["--rotate", "1", "--max-size", "4M", "--compress", "--strict"];
    let Some(mut job) = Windowed::start_in(folder, output, 1, "2", &arguments) else { return };
    let begun = Instant::now();
    let (mut most, mut looks) = (0, 0);
    // Until windows have been removed for a while, however long it takes this machine to fill the folder.
    let (more, longest) = (Duration::from_secs(if is_long() { 100 } else { 6 }), Duration::from_mins(3));
    let is_first = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("window_0001_");
    let (mut had_first, mut removed_since) = (false, None);
    loop {
        let has_first = folders(&job.output).any(|entry| is_first(&entry));
        had_first |= has_first;
        if had_first && !has_first {
            removed_since.get_or_insert_with(Instant::now);
        }
        let mut usage = on_disk(&job.output);
        if usage > LIMIT {
            // One look takes its time, and can have seen what was never there at once.
            usage = usage.min(on_disk(&job.output));
        }
        most = most.max(usage);
        looks += 1;
        let is_long_enough = removed_since.is_some_and(|since| since.elapsed() > more) && looks > 200;
        if is_long_enough && full_windows(&job.output) >= 2 || begun.elapsed() > longest {
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    let (session, said) = job.end();
    assert!(most <= LIMIT, "{most} bytes");
    assert!(on_disk(&job.output) <= LIMIT);
    assert!(looks > 200 && most > LIMIT / 3, "{looks} looks, {most} bytes: nothing was tried");

    let max_size = &session["max_size"];
    let removed: Vec<&str> = list(&max_size["folders_removed"]).iter().map(text).collect();
    assert!(!removed.is_empty(), "{said}");
    assert_eq!((&max_size["bytes"], &max_size["windows_removed"]), (&LIMIT.into(), &removed.len().into()));
    assert_no_loss(&session);
    for folder in &removed {
        assert!(!job.output.join(folder).exists(), "{folder}");
        assert!(said.contains(&format!("removed to make room (--max-size): {folder}")), "{said}");
    }
    // Together they are all windows, in their order.
    let windows = list(&session["windows"]);
    let kept: Vec<&str> = windows.iter().map(|window| text(&window["folder"])).collect();
    let numbers =
        removed.iter().chain(&kept).map(|folder| folder.split('_').nth(1).unwrap().parse::<usize>().unwrap());
    assert!(numbers.eq(1..=removed.len() + kept.len()), "{removed:?} {kept:?}");
    assert!(kept.len() > 1, "{said}");

    assert_eq!(folders(&job.output).count(), kept.len());
    // Files of lines of older ones are gone, and made again of the recording.
    let has_lines = |folder: &str| !communicators(&job.output.join(folder)).is_empty();
    for window in windows {
        let folder = text(&window["folder"]);
        assert!(!has_lines(folder) || window["lines_removed"] == false, "{window:#}");
        // Who has only the window's folder is told the same.
        let own = crate::session(&job.output.join(folder));
        assert_eq!(own["window"]["lines_removed"], window["lines_removed"], "{own:#}");
        assert_eq!(own["files"]["state"] == "removed", window["lines_removed"] == true, "{own:#}");
    }
    let lines_removed = number(&max_size["lines_removed"]);
    assert_eq!(lines_removed, said.matches("the .jsonl files in").count() as u64, "{said}");
    let without_lines = kept.iter().take_while(|folder| !has_lines(folder)).count();
    assert!(lines_removed > 0 && without_lines > 0, "{said}");
    whole_session(&job.output.join(kept.last().unwrap()));
    let full = kept.iter().enumerate().filter(|(_, folder)| is_full(&job.output.join(folder)));
    let full: Vec<_> = full.collect();
    assert!(full.len() >= 2, "{said}");
    for (at, folder) in full {
        let path = job.output.join(folder);
        if at >= without_lines {
            assert_window_is_whole(&path);
            continue;
        }
        let made = job.output.with_extension(folder);
        exported::lines(&path, &made);
        assert_eq!(Trace::read(&made).unwrap().ranks.len(), 2);
    }
}

/// A window that is complete, and in which both ranks were at work. The last one may have been open for a moment
/// only, and a job can be kept from running for as long as a window is open.
fn is_full(folder: &Path) -> bool {
    let session = session_so_far(folder);
    let has_both = |key: &str| {
        let lines = of_ranks(&session, key);
        lines.len() == 2 && lines.iter().all(|lines| *lines > 0)
    };
    session["state"] == "complete" && has_both("proxyFlowLines") && has_both("flowStepsLines")
}

fn full_windows(output: &Path) -> usize {
    folders(output).filter(|entry| is_full(&entry.path())).count()
}

/// The sum over the ranks of a session.
fn lines_of_ranks(session: &Value, key: &str) -> u64 {
    of_ranks(session, key).iter().sum()
}

/// A compressed window: its files, what they hold, and what `summary` reads of them.
fn assert_window_is_whole(folder: &Path) {
    let session = whole_session(folder);
    assert!(number(&session["compressed"]["files"]) >= 4, "{:#}", session["compressed"]);
    let trace = Trace::read(folder).unwrap();
    assert_eq!(trace.ranks.len(), 2);
    for (member, rank) in &trace.ranks {
        assert!(!rank.flows.is_empty() && !rank.steps.is_empty(), "{member}");
    }
    let ranks = || trace.ranks.values();
    let messages = lines_of_ranks(&session, "flowStepsLines");
    assert_eq!(
        lines_of_ranks(&session, "proxyFlowLines"),
        ranks().map(|rank| rank.flows.len() as u64).sum::<u64>()
    );
    assert_eq!(messages, ranks().map(|rank| rank.steps.len() as u64).sum::<u64>());
    let communicators = communicators(folder);
    assert_eq!(communicators.iter().map(|(pid, _)| pid).collect::<BTreeSet<_>>().len(), 2);
    for (_, communicator) in communicators {
        let names = fs::read_dir(communicator).unwrap().flatten();
        let names: Vec<String> = names.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
        let count = |part: &str| names.iter().filter(|name| name.contains(part)).count();
        assert_eq!((count("_rank"), count(".jsonl.gz"), names.len()), (4, 2, 4), "{names:?}");
    }
    let summary = ncclflow_of("summary --json", &[folder]).ok().json();
    let of_ranks = list(&summary["ranks"]).iter().map(|rank| sum(&rank["links"], "messages"));
    assert_eq!(of_ranks.sum::<u64>(), messages);
}
