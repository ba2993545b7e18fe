//! Thousands of short processes under `record --all`: the tracer and its `session.json` are as large after the
//! last as they were in the middle, and none is lost uncounted.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Child;

use ncclflow_e2e::harness::{prelude::*, processes::resident_bytes};
use rustix::process::{Pid, kill_process};

const VERSION: &str = "2.27.5-cu12";
/// Processes that live at the same time, and how often.
const AT_ONCE: usize = 200;
const TURNS: usize = 16;
/// The first half of them fills every list that has a limit.
const MIDDLE: usize = 8;

/// Maps a library as the loader does, says so, and waits to be ended. It makes no call.
const MAPPER: &str = r"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int count, char **words) {
    int file = open(words[1], O_RDONLY);
    if (count < 2 || file < 0) return 1;
    if (mmap(0, 1 << 20, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) == MAP_FAILED) return 2;
    char byte;
    while (read(0, &byte, 1) > 0) {}
    return 0;
}
";

fn report(out: &Path) -> Option<(usize, Value)> {
    let text = fs::read(out.join("session.json")).ok()?;
    Some((text.len(), serde_json::from_slice(&text).unwrap()))
}

/// Processes that the report lists or has left out.
fn known(session: &Value) -> u64 {
    let listed = list(&session["targets"]).len() as u64;
    listed + session["left_out"]["targets"].as_u64().unwrap_or(0)
}

#[test]
fn the_tracer_is_as_large_after_thousands_of_processes_as_after_half_of_them() {
    let Some((ncclflow, _, library)) = programs::needed(VERSION) else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("mapper");
    let Some(mapper) = programs::compiled(MAPPER, &program, &[]).unwrap() else { return };
    let out = folder.path().join("out");
    // What it says of thousands of processes would fill a pipe that nobody reads.
    let mut recorder = Killed(
        Command::new(&ncclflow)
            .args(["record", "--all", "--quiet", "--no-cache", "-o"])
            .arg(&out)
            .stdin(Stdio::null())
            .spawn()
            .unwrap(),
    );
    wait_until("it records", Duration::from_secs(60), || {
        report(&out).is_some_and(|(_, session)| session["attach"]["armed_monotonic_ns"].is_u64())
    });
    let pid = recorder.0.id();
    let mut middle = None;
    for turn in 1..=TURNS {
        let children: Vec<Child> = (0..AT_ONCE)
            .map(|_| {
                let mut command = Command::new(&mapper);
                command.arg(&library).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
            })
            .collect();
        let wanted = (turn * AT_ONCE) as u64;
        wait_until("all processes are known", Duration::from_secs(60), || {
            report(&out).is_some_and(|(_, session)| known(&session) >= wanted)
        });
        for mut child in children {
            drop(child.stdin.take());
            assert!(child.wait().unwrap().success());
        }
        if turn == MIDDLE {
            let (size, _) = report(&out).unwrap();
            middle = Some((size, resident_bytes(pid)));
        }
    }
    let (size, _) = report(&out).unwrap();
    let resident = resident_bytes(pid);
    kill_process(Pid::from_child(&recorder.0), Signal::INT).unwrap();
    assert!(recorder.0.wait().unwrap().success());
    // In the end each process that is listed is told its job, too.
    let (_, session) = report(&out).unwrap();
    let listed = list(&session["targets"]).len();
    assert!(listed <= 1064 + AT_ONCE + 100, "{listed} processes are listed");
    let (size_then, resident_then) = middle.unwrap();
    // 64 more can be listed before the oldest are forgotten together.
    assert!(size <= size_then + size_then / 5, "session.json had {size_then} bytes and has {size}");
    assert!(
        resident <= resident_then + resident_then / 20 + (1 << 20),
        "the tracer had {resident_then} bytes of memory and has {resident}"
    );
    assert!(known(&session) >= (TURNS * AT_ONCE) as u64);
    assert_eq!(session["loss"]["records_lost"], 0);
}
