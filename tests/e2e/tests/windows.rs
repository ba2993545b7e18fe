//! `record --window-flag`, `--rotate`: windows hold what happened while the flag was there, whole.

use ncclflow_e2e::{
    harness::{
        disk::Disk,
        prelude::*,
        windowed::{Windowed, folders, recorded, whole_session},
    },
    truth::call_log::Call,
};

/// Time from a touch, or an rm, to its effect, most of the time. On an idle machine it is a millisecond or two.
const LATENCY: u64 = 400_000_000;
/// And always, on a machine on which a process can be kept from running for seconds.
const LONGEST: u64 = 30_000_000_000;

fn assert_soon(what: &str, mut late: Vec<u64>) {
    late.sort_unstable();
    let (median, longest) = (late[late.len() / 2], late[late.len() - 1]);
    let ms = |ns: u64| ns / 1_000_000;
    assert!(median < LATENCY, "{what} {} ms late most of the time", ms(median));
    assert!(longest < LONGEST, "{what} {} ms late", ms(longest));
}

#[test]
fn twenty_windows_over_eight_processes_hold_what_was_called_between_touch_and_rm() {
    let Some(mut job) = Windowed::start(2, "4", &["--level", "api"]) else { return };
    let (count, length) = if is_long() { (60, 15) } else { (20, 10) };
    let flags: Vec<_> = (1..=count).map(|number| job.window(number, length)).collect();
    let (session, said) = job.end();
    let calls = job.calls();
    assert_eq!(calls.len(), 8);
    let windows = list(&session["windows"]);
    assert_eq!(windows.len(), count, "{said}");
    let (mut in_all, mut opened_late, mut closed_late) = (0, Vec::new(), Vec::new());
    for (flag, window) in flags.into_iter().zip(windows) {
        let number = |key: &str| number(&window[key]);
        let (opened, closed) = (number("opened_monotonic_ns"), number("closed_monotonic_ns"));
        assert_eq!((&window["closed_by"], &window["ops_left_out"]), (&"flag".into(), &0.into()));
        assert!(flag.touched <= opened && flag.removing <= closed, "{opened} {closed} {flag:?}");
        opened_late.push(opened - flag.touched);
        closed_late.push(closed.saturating_sub(flag.removed));
        let folder = job.output.join(text(&window["folder"]));
        whole_session(&folder);
        let seen = recorded(&folder, number("opened_unix_ms"));
        for (pid, calls) in &calls {
            // All called all the time.
            let seen = seen.get(pid).unwrap_or_else(|| panic!("{pid}: nothing in {opened}..{closed}"));
            in_all += seen.len();
            // Each record is of one call, in its time, and between the touch and the window's end.
            let mut unseen: Vec<&Call> = calls.iter().collect();
            for ts_ns in seen {
                assert!((flag.touched..flag.completed).contains(ts_ns), "{pid}: {ts_ns} {flag:?}");
                let at = unseen.iter().position(|call| (call.begin_ns..=call.end_ns).contains(ts_ns));
                unseen.remove(at.unwrap_or_else(|| panic!("{pid}: no call at {ts_ns}")));
            }
            // None is missing that lies whole inside of the window.
            let missing = unseen.iter().find(|call| call.begin_ns > opened && call.end_ns < closed);
            assert!(missing.is_none(), "{pid}: {missing:?} in {opened}..{closed}");
        }
    }
    assert_soon("opened", opened_late);
    assert_soon("closed", closed_late);
    // Whole over the run as well: what was hit while no window was open was recorded in none.
    let [hits, delivered, disarmed] =
        ["hits", "delivered", "disarmed"].map(|key| sum(&session["probes"], key));
    assert_eq!((delivered, hits), (in_all as u64, delivered + disarmed));
    assert!(disarmed > 0);
    assert_no_loss(&session);
}

/// The disk is full when a window is wanted: it is opened when there is room, and the recording goes on until then.
#[test]
fn a_window_that_finds_a_full_disk_opens_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::mount(&folder.path().join("disk"), 16);
    if !need("mount", disk.is_ok(), "run it where file systems can be mounted") {
        return;
    }
    let disk = disk.unwrap();
    let output = disk.path().join("out");
    let Some(mut job) = Windowed::start_in(folder, output, 1, "2", &["--level", "api"]) else { return };
    disk.fill().unwrap();
    File::create(&job.flag).unwrap();
    job.recorder.as_mut().unwrap().hear("window 1 cannot be opened yet").unwrap();
    job.wait_for_calls(30);
    let is_window = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("window");
    wait_until("what could not be begun is taken away", Duration::from_mins(1), || {
        !folders(&job.output).any(|entry| is_window(&entry))
    });
    disk.empty().unwrap();
    job.wait_until_open(1);
    job.wait_for_calls(10);
    fs::remove_file(&job.flag).unwrap();
    progress::wait_for_windows(&job.output, 1);
    let recorder = job.recorder.take().unwrap();
    recorder.signal(Signal::INT).unwrap();
    let (status, said) = recorder.finish().unwrap();
    let session = session(&job.output);
    // `session.json` could not be written in the meantime, or had its turn later.
    let code = i32::from(session["state"] == "write_failed");
    assert_eq!(status.code(), Some(code), "{said}");
    assert!(code == 1 || session["state"] == "complete", "{session:#}");
    assert_eq!(session["loss"]["windows_late"], 1, "{session:#}");
    let [window] = &**list(&session["windows"]) else { panic!("{said}") };
    let folder = job.output.join(text(&window["folder"]));
    whole_session(&folder);
    let seen = recorded(&folder, number(&window["opened_unix_ms"]));
    assert!(seen.len() == 2 && seen.values().all(|calls| calls.len() >= 9), "{seen:?}");
}

#[test]
fn a_signal_and_the_time_begin_new_windows_where_there_is_always_one() {
    let Some(mut job) = Windowed::start(1, "2", &["--level", "api", "--rotate", "600"]) else { return };
    for number in 1..=3 {
        job.wait_for_calls(5);
        job.recorder.as_ref().unwrap().signal(Signal::USR1).unwrap();
        progress::wait_for_windows(&job.output, number);
    }
    job.wait_for_calls(5);
    let (session, said) = job.end();
    let windows = list(&session["windows"]);
    let ends: Vec<&str> = windows.iter().map(|window| text(&window["closed_by"])).collect();
    assert_eq!(ends, ["signal", "signal", "signal", "recording"], "{said}");
    let calls = job.calls();
    for (window, next) in windows.iter().zip(windows.iter().skip(1)) {
        let gap = number(&next["opened_monotonic_ns"]) - number(&window["closed_monotonic_ns"]);
        assert!(gap < LONGEST, "{gap}");
        let folder = job.output.join(text(&window["folder"]));
        whole_session(&folder);
        let seen = recorded(&folder, number(&window["opened_unix_ms"]));
        for (pid, calls) in &calls {
            let inside = |call: &&Call| {
                call.begin_ns > number(&window["opened_monotonic_ns"])
                    && call.end_ns < number(&window["closed_monotonic_ns"])
            };
            let (inside, seen) = (calls.iter().filter(inside).count(), seen.get(pid).map_or(0, Vec::len));
            // One call can lie across each end.
            assert!((inside..=inside + 2).contains(&seen), "{pid}: {inside} {seen}");
        }
    }
}
