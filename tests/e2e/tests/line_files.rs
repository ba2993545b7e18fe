//! The files of lines as a view of `DIR/recording/`: when they are made (`--files`), how large they become
//! (`--files-limit`), how they are left (a second Ctrl-C), and what goes where a folder has reached its limit or
//! its age (`--max-size`, `--max-age`). The truth is what an export makes of
//! the recording, and what the job says of itself.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;

use ncclflow_e2e::harness::{
    prelude::*,
    processes::{on_disk, status_field},
    stopped_thread::StoppedThread,
};

/// A job that calls so many all-reduces.
fn world(calls: u32) -> Option<World> {
    world_with(&format!("--iters {calls}"))
}

fn world_with(workload: &str) -> Option<World> {
    World::start("2.27.5-cu12", &format!("--ranks 2 --bytes 4096 --timeout 300 --sync {workload}"))
}

fn is_lines(name: &Path) -> bool {
    name.extension().is_some_and(|extension| extension == "jsonl")
}

/// Contents of the files of lines below a folder, by path from there.
fn lines_below(out: &Path) -> HashMap<PathBuf, String> {
    let files = exported::files_below(out).into_iter().filter(|(name, _)| is_lines(name));
    files.map(|(name, text)| (name, String::from_utf8(text).unwrap())).collect()
}

/// What an export makes of the recording.
fn all_lines(out: &Path) -> HashMap<PathBuf, String> {
    let again = out.with_extension("again");
    exported::lines(out, &again);
    lines_below(&again)
}

/// Records a whole job.
fn record(world: &mut World, options: &str) -> (PathBuf, Value, String) {
    let said = world.record_all(options);
    let session = world.session();
    assert_eq!(session["state"], "complete");
    (world.out(), session, said)
}

#[test]
fn without_files_the_recording_alone_is_there_and_makes_them() {
    let Some(mut world) = world(300) else { return };
    let (out, session, _) = record(&mut world, "--files none");
    assert!(lines_below(&out).is_empty());
    assert_eq!(session["files"]["state"], "none");
    let made = all_lines(&out);
    let of_ops = made.iter().filter(|(name, _)| name.to_string_lossy().contains("proxy_flow"));
    let calls = |text: &str| text.lines().filter(|line| line.contains("\"AllReduce\"")).count();
    let ops: usize = of_ops.map(|(_, text)| calls(text)).sum();
    let channels = made.values().flat_map(|text| lines(text)).filter_map(|line| line["channel"].as_u64());
    let channels = usize::try_from(channels.max().unwrap()).unwrap() + 1;
    assert_eq!(ops, 2 * 300 * channels, "as many as the job called, on each rank and channel");
}

#[test]
fn files_are_those_of_an_export() {
    let Some(mut world) = world(300) else { return };
    let (out, session, _) = record(&mut world, "");
    assert_eq!(session["files"]["state"], "complete");
    assert_eq!(session["files"]["records"], session["recording"]["records"]);
    assert!(!lines_below(&out).is_empty());
    let (live, all) = (lines_below(&out), all_lines(&out));
    assert!(live.len() == all.len() && live.iter().all(|(name, text)| all.get(name) == Some(text)));
}

#[test]
fn files_end_at_their_limit_with_a_whole_op_and_the_recording_goes_on() {
    let Some(mut world) = world(2000) else { return };
    let (out, session, said) = record(&mut world, "--files-limit 1M");
    assert_eq!(said.matches("files end at their limit").count(), 1, "{said}");
    let command = format!("ncclflow export {} -f jsonl -o NEW", out.display());
    assert!(said.contains(&command), "{said}");
    assert_eq!(session["files"]["state"], "limit");
    let (live, all) = (lines_below(&out), all_lines(&out));
    let bytes: usize = live.values().map(String::len).sum();
    assert_eq!(number(&session["files"]["bytes"]), bytes as u64);
    // With what is made of them. One op beyond the limit is some kilobytes.
    let aggregates = exported::files_below(&out).into_iter();
    let aggregates = aggregates.filter(|(name, _)| name.to_string_lossy().contains("/flow_rank"));
    let all_bytes = bytes + aggregates.map(|(_, text)| text.len()).sum::<usize>();
    assert!((900 << 10..1100 << 10).contains(&all_bytes), "{all_bytes}");
    let mut shorter = 0;
    for (name, text) in &live {
        let whole = &all[name];
        assert!(
            whole.starts_with(text.as_str()) && text.ends_with('\n'),
            "{} is no beginning",
            name.display()
        );
        shorter += usize::from(whole.len() > text.len());
        // Every op that is there has all of its messages.
        let name = name.to_string_lossy();
        let Some(steps) = name.contains("proxy_flow").then(|| name.replace("proxy_flow", "flow_steps"))
        else {
            continue;
        };
        let messages = |text: &str, op: &Value| {
            let of_op = |line: &Value| line["seq"] == op["seq"] && line["channel"] == op["channel"];
            lines(text).iter().filter(|line| of_op(line)).count()
        };
        let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        let (live, whole) =
            (messages(&live[Path::new(&steps)], &last), messages(&all[Path::new(&steps)], &last));
        assert!(live > 0 && live == whole, "{live} of {whole} messages of {last}");
    }
    assert!(shorter > 0);
}

/// How often the first thread of a process went to sleep (`voluntary_ctxt_switches`, proc(5)), if it sleeps now.
fn sleeps(pid: u32) -> Option<u64> {
    let value = |name: &str| status_field(pid, name).unwrap();
    value("State").starts_with('S').then(|| value("voluntary_ctxt_switches").parse().unwrap())
}

#[test]
fn a_second_signal_leaves_the_files_and_the_recording_is_whole() {
    let Some(world) = world(1_000_000) else { return };
    let out = world.out();
    let recorder = world.record("--files-limit 1T");
    world.bed.go().unwrap();
    let segment = out.join("recording/000001.nfr");
    wait_until("files would take seconds", Duration::from_mins(2), || {
        fs::metadata(&segment).is_ok_and(|segment| segment.len() > 80_000)
    });
    recorder.signal(Signal::INT).unwrap();
    {
        // The thread that makes the files does not run.
        let _stopped = StoppedThread::of_name(recorder.pid(), "ncclflow-files").unwrap();
        assert_eq!(session(&out)["state"], "making_files");
        // Its first thread sleeps until a signal comes, and again when it has done what that asks for.
        let mut before = None;
        wait_until("the first signal is dealt with", Duration::from_secs(30), || {
            before = sleeps(recorder.pid());
            before.is_some()
        });
        recorder.signal(Signal::INT).unwrap();
        wait_until("the second signal is dealt with", Duration::from_secs(30), || {
            sleeps(recorder.pid()) > before
        });
    }
    let said = recorder.end().unwrap();
    assert!(said.contains("end where a second signal arrived"), "{said}");
    let session = session(&out);
    assert_eq!((&session["state"], &session["files"]["state"]), (&"complete".into(), &"stopped".into()));
    let (live, all) = (lines_below(&out), all_lines(&out));
    let size = |files: &HashMap<PathBuf, String>| files.values().map(String::len).sum::<usize>();
    assert!(size(&live) < size(&all) && all.len() == 4, "{} of {}", size(&live), size(&all));
}

/// What `export` makes of the recording: the ops of each rank, in the order of their calls, and what it said.
fn export(out: &Path) -> (Vec<Vec<Value>>, String) {
    let made = out.with_extension("made");
    let said = ncclflow_of("export -f jsonl -o", &[&*made, out]).ok();
    let files = lines_below(&made).into_iter();
    let ops = files.filter(|(name, _)| name.to_string_lossy().contains("proxy_flow")).map(|(_, text)| {
        let mut ops = lines(&text);
        ops.sort_by_key(|op| op["ts_ns"].as_u64());
        ops
    });
    (ops.collect(), said.stdout + &said.stderr)
}

/// A folder with a limit: the oldest records go. What is left is read, without a gap to the end of the job, and no record
/// is lost. Lines get the room that is left.
#[test]
fn at_the_limit_of_the_folder_the_latest_records_stay() {
    const LIMIT: u64 = 1 << 20;
    let Some(mut world) = world(25_000) else { return };
    let out = world.out();
    // The disk can keep the writer waiting for seconds.
    let recorder = world.record("--max-size 1M --strict --level steps --buffer-size 64 --queue-size 128");
    world.bed.go().unwrap();
    let (mut looks, mut most) = (0, 0);
    while world.bed.is_running() {
        let mut used = on_disk(&out);
        if used > LIMIT {
            // One look takes its time, and can have seen what was never there at once.
            used = used.min(on_disk(&out));
        }
        (looks, most) = (looks + 1, most.max(used));
        thread::sleep(Duration::from_millis(10));
    }
    world.bed.end();
    let said = recorder.end().unwrap();
    assert!(most <= LIMIT && looks > 50, "{most} bytes in {looks} looks");
    assert_eq!(said.matches("files end at their limit").count(), 1, "{said}");
    assert!(!said.contains("further records are lost"), "{said}");
    let session = session(&out);
    assert_no_loss(&session);
    assert_eq!(
        (&session["files"]["state"], &session["max_size"]["lines_removed"]),
        (&"limit".into(), &0.into())
    );
    let removed = number(&session["recording"]["removed_records"]);
    assert!(removed > 0 && number(&session["recording"]["removed_segments"]) > 0, "{session:#}");

    let (ranks, said) = export(&out);
    assert!(said.contains("older records were removed, as --max-size or --max-age wanted it"), "{said}");
    assert_eq!(ranks.len(), 2);
    for ops in ranks {
        let count = |op: &Value| number(&op["opCount"]);
        // From the beginning there are the ops that stand in one block with what lasts, of which the last lacks
        // messages; then the latest ones, without a gap to the job's last call.
        let gap = ops.windows(2).rposition(|pair| count(&pair[0]) + 2 != count(&pair[1])).unwrap();
        let (lasting, latest) = ops.split_at(gap + 1);
        assert_eq!(count(latest.last().unwrap()), 2 * (25_000 - 1));
        assert!(lasting.len() < 1000 && latest.len() > 1000, "{} {}", lasting.len(), latest.len());
        for op in lasting.iter().filter(|op| op["measured"] != "as_planned") {
            assert_eq!(op["incomplete"], true, "{op:#}");
        }
        // The first one may have begun before what is left.
        assert!(latest[1..].iter().all(|op| op["measured"] == "as_planned" && op["incomplete"] == false));
    }
}

#[test]
fn what_is_too_old_goes() {
    let Some(world) = world_with("--iters 1000000 --interval-ms 5") else { return };
    let out = world.out();
    let recorder = world.record("--max-age 10");
    world.bed.go().unwrap();
    let first = out.join("recording/000001.nfr");
    wait_until("records are removed", Duration::from_mins(3), || !first.exists());
    recorder.interrupt().unwrap();
    let session = session(&out);
    assert_eq!(
        (&session["files"]["state"], &session["max_size"]["bytes"]),
        (&"complete".into(), &Value::Null)
    );
    let removed = number(&session["recording"]["removed_records"]);
    assert!(removed > 0, "{session:#}");
    // The files have what was left when they were made; for the recording's end, more can have gone.
    let missed = number(&session["files"]["missed_records"]);
    assert!(missed > 0 && missed <= removed, "{session:#}");
    assert!(lines_below(&out).values().any(|text| text.lines().count() > 100));
    assert_no_loss(&session);
}
