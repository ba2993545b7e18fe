//! Progress of a process outside NCCL, between the readings: processor time of the threads that run the
//! program, input and output, and the places where its first thread sleeps.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use inspect::process::{Process, printable, read_text, run_times, stat_field, status_field, turns};

use crate::thread_roles::{Launching, MAX_THREADS};

/// Part of the time. A thread that ran, or waited for a processor, for so long computes. One that wakes up to
/// look for something does not.
const RUNS: f64 = 0.3;
/// Part of the time for which a thread that computes at least ran.
const RAN: f64 = 0.05;
/// Part of the time. A thread that was ready for so long and never slept computes, however little it ran:
/// others had the processors.
const READY: f64 = 0.9;
/// Part of the time, and seconds. A thread that was ready at every reading over so many seconds and ran for
/// less got no processor.
const STARVED: f64 = 0.01;
const LEAST_SECONDS: f64 = 0.7;
/// Times a second. A thread that was given a processor more often is not starved, however little it ran: NCCL's
/// proxy threads yield after each look, and on a busy host others have the rest of their time.
const TURNS: f64 = 20.0;
/// Clock ticks (of 10 ms) by which the processor time of a process that did not run can seem to grow: the
/// kernel rounds the time in programs and that in itself.
const ROUNDING: u64 = 1;
/// Prefix of the names of the threads of torch's store (TCPStoreBackend.cpp, TCPStoreLibUvBackend.cpp). All ranks
/// ask it every second, also in a hang.
const STORE: &str = "pt_tcpstore";
/// Bytes a second from which on input and output are progress; a log line and a heartbeat are less.
const READS: f64 = 65_536.0;

/// Activity of a process between the first reading and the last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Activity {
    /// Seconds between the first reading and the last.
    pub seconds: f64,
    /// Processor time of the first thread, and of PyTorch's threads for the backward pass.
    pub cpu_seconds: Option<f64>,
    /// Time for which these threads were ready to run, and waited for a processor.
    pub ready_seconds: Option<f64>,
    /// Number of times that the first thread went to sleep.
    pub sleeps: Option<u64>,
    /// Bytes that the process read and wrote by read(2), write(2) and their like: files and pipes, and
    /// sockets that are used so. NCCL's are not; those of torch's store, if this process has it, are left out.
    pub io_bytes: Option<u64>,
    /// The first thread slept in other places at some readings.
    pub is_elsewhere: bool,
    /// The first thread, one of PyTorch's for the backward pass, or one of NCCL's that moves ops was ready to
    /// run at all readings, and got no processor; or any thread was, and none of the process ran.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_starved: bool,
    /// Kernel function in which the first thread was at all readings, asleep so that no signal wakes it
    /// (state D): a driver or a file system does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uninterruptible_in: Option<String>,
}

impl Activity {
    /// Describes the progress, if there is any. With `spins` processor time counts for nothing, as a thread
    /// that waits for a GPU spins.
    pub(super) fn progress(&self, spins: bool) -> Option<String> {
        let seconds = self.seconds;
        if seconds <= 0.0 {
            return None;
        }
        let runs = |cpu: &f64| {
            let wanted = cpu + self.ready_seconds.unwrap_or(0.0);
            let is_starved = self.sleeps == Some(0) && *cpu > 0.0 && wanted >= READY * seconds;
            is_starved || (*cpu >= RAN * seconds && wanted >= RUNS * seconds)
        };
        if let Some(cpu) = self.cpu_seconds.filter(|cpu| !spins && runs(cpu)) {
            let ready = self.ready_seconds.filter(|ready| *ready >= RUNS * seconds);
            let ready =
                ready.map_or_else(String::new, |ready| format!(", and waited {ready:.1} s for a processor"));
            return Some(format!("it ran on the CPU for {cpu:.1} of {seconds:.1} s{ready}"));
        }
        #[expect(clippy::cast_precision_loss, reason = "for a rate, and for people")]
        let bytes = self.io_bytes.map_or(0.0, |bytes| bytes as f64);
        if bytes >= READS * seconds {
            return Some(format!("it read and wrote {:.1} MiB in {seconds:.1} s", bytes / 1_048_576.0));
        }
        self.is_elsewhere.then(|| format!("its first thread moved within {seconds:.1} s"))
    }
}

/// A process at one moment.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    at: Instant,
    /// Nanoseconds on a processor, and waiting for one, by thread that runs the program.
    cpu: Vec<(u32, [u64; 2])>,
    /// Threads that are ready to run.
    ready: Vec<Ready>,
    /// Clock ticks for which all threads ran.
    ticks: Option<u64>,
    /// Kernel function of the first thread, while no signal can wake it.
    uninterruptible_in: Option<String>,
    io: Option<u64>,
    /// Number of times that the first thread has gone to sleep.
    sleeps: Option<u64>,
    /// System call, stack pointer and program counter of the first thread, while it sleeps.
    place: Option<String>,
}

/// A thread that is ready to run.
#[derive(Clone, Copy, Debug)]
struct Ready {
    tid: u32,
    /// Nanoseconds on a processor.
    ran: u64,
    /// Number of times that it was given one.
    turns: u64,
    /// NCCL's work waits for it: it may launch, or moves ops.
    is_needed: bool,
}

impl Sample {
    /// Looks at a process. `proxies`: its threads that move ops in flight.
    pub(super) fn take(process: &Process, proxies: &BTreeSet<u32>) -> Self {
        let folder = process.proc_path();
        let first = process.pid();
        let of_task = |tid: u32, file: &str| read_text(process.task_path(tid).join(file));
        let (mut cpu, mut ready, mut of_store) = (Vec::new(), Vec::new(), 0);
        let mut launching = Launching::default();
        for tid in process.thread_ids().take(MAX_THREADS) {
            let Ok(stat) = of_task(tid, "stat") else { continue };
            let name = name_of(&stat).unwrap_or_default();
            if name.starts_with(STORE) {
                of_store += of_task(tid, "io").ok().and_then(|text| io_bytes(&text)).unwrap_or(0);
            }
            let is_program = launching.has(tid == first, name);
            let is_ready = state_of(&stat) == Some("R");
            if (is_program || is_ready)
                && let Ok(schedstat) = of_task(tid, "schedstat")
                // A kernel without these counts says 0, also of a thread that runs.
                && let Some(times) = run_times(&schedstat).filter(|times| *times != [0, 0])
            {
                cpu.extend(is_program.then_some((tid, times)));
                let is_needed = is_program || proxies.contains(&tid);
                let turns = turns(&schedstat).unwrap_or(0);
                ready.extend(is_ready.then_some(Ready { tid, ran: times[0], turns, is_needed }));
            }
        }
        let ticks = read_text(folder.join("stat")).ok().and_then(|stat| ticks_of(&stat));
        let is_asleep = of_task(first, "stat").is_ok_and(|stat| state_of(&stat) == Some("D"));
        let wchan = || of_task(first, "wchan").ok().filter(|name| !name.is_empty() && name != "0");
        let uninterruptible_in =
            is_asleep.then(|| printable(&wchan().unwrap_or_else(|| "an unknown function".to_owned())));
        let io = read_text(folder.join("io")).ok().and_then(|text| io_bytes(&text));
        let io = io.map(|all| all.saturating_sub(of_store));
        // The first thread's number (fs/proc/array.c, task_context_switch_counts).
        let status = read_text(folder.join("status")).unwrap_or_default();
        let sleeps = status_field(&status, "voluntary_ctxt_switches").and_then(|count| count.parse().ok());
        let place = read_text(folder.join("syscall")).ok().filter(|text| !text.starts_with("running"));
        // The call's arguments change when the thread waits for the same thing again, for the rest of a
        // timeout.
        let place = place.map(|text| {
            let words: Vec<&str> = text.split_whitespace().collect();
            let last = words.len().saturating_sub(2);
            format!("{} {}", words.first().unwrap_or(&""), words.get(last..).unwrap_or_default().join(" "))
        });
        Self { at: Instant::now(), cpu, ready, ticks, uninterruptible_in, io, sleeps, place }
    }
}

/// Returns the state of a thread in its `stat`.
fn state_of(stat: &str) -> Option<&str> {
    stat_field(stat, 3)
}

/// Returns the bytes that a process or a thread read and wrote, in its `io`.
fn io_bytes(io: &str) -> Option<u64> {
    let value = |name| status_field(io, name)?.parse::<u64>().ok();
    value("rchar")?.checked_add(value("wchar")?)
}

/// Returns the name of a thread in its `stat`.
fn name_of(stat: &str) -> Option<&str> {
    let (rest, _) = stat.rsplit_once(')')?;
    rest.split_once('(').map(|(_, name)| name)
}

/// Returns the clock ticks in a process's `stat`: of all its threads, in programs and in the kernel.
fn ticks_of(stat: &str) -> Option<u64> {
    let field = |number| stat_field(stat, number)?.parse::<u64>().ok();
    field(14)?.checked_add(field(15)?)
}

/// Returns the activity of a process over some samples; `None` if there are fewer than two.
pub(super) fn over(samples: &[Sample]) -> Option<Activity> {
    let (first, last) = (samples.first()?, samples.last()?);
    if samples.len() < 2 {
        return None;
    }
    let spent = |kind: usize| {
        let of_thread = |(tid, after): &(u32, [u64; 2])| {
            let before =
                first.cpu.iter().find(|(known, _)| known == tid).map_or(0, |(_, before)| before[kind]);
            after[kind].saturating_sub(before)
        };
        let nanoseconds: u64 = last.cpu.iter().map(of_thread).sum();
        Duration::from_nanos(nanoseconds).as_secs_f64()
    };
    let is_known = !first.cpu.is_empty() && !last.cpu.is_empty();
    let seconds = last.at.duration_since(first.at).as_secs_f64();
    let none_ran =
        first.ticks.zip(last.ticks).is_some_and(|(before, after)| after.saturating_sub(before) <= ROUNDING);
    let is_starved = |candidate: &Ready| {
        let of_thread =
            |sample: &Sample| sample.ready.iter().find(|ready| ready.tid == candidate.tid).copied();
        let mut looks = samples.iter().map(of_thread);
        let got_none = looks.all(|ready| {
            ready.is_some_and(|ready| {
                let ran = Duration::from_nanos(ready.ran.saturating_sub(candidate.ran));
                let turns = ready.turns.saturating_sub(candidate.turns);
                let turns = u32::try_from(turns).map_or(f64::MAX, f64::from);
                ran.as_secs_f64() < STARVED * seconds && turns < TURNS * seconds
            })
        });
        (candidate.is_needed || none_ran) && got_none && seconds >= LEAST_SECONDS
    };
    let asleep_in = |sample: &Sample| sample.uninterruptible_in.clone();
    let mut places = samples.iter().filter_map(|sample| sample.place.as_ref());
    let place = places.next();
    Some(Activity {
        seconds,
        is_starved: first.ready.iter().any(is_starved),
        uninterruptible_in: asleep_in(first).filter(|place| {
            seconds >= LEAST_SECONDS && samples.iter().all(|sample| asleep_in(sample).as_ref() == Some(place))
        }),
        cpu_seconds: is_known.then(|| spent(0)),
        ready_seconds: is_known.then(|| spent(1)),
        sleeps: last.sleeps.zip(first.sleeps).and_then(|(after, before)| after.checked_sub(before)),
        io_bytes: last.io.zip(first.io).and_then(|(after, before)| after.checked_sub(before)),
        is_elsewhere: place.is_some_and(|place| places.any(|other| other != place)),
    })
}

#[cfg(test)]
mod tests {
    use std::{
        process::{Child, Command, Stdio},
        thread,
    };

    use super::*;

    /// Watches a program until `is_it` holds, or for some looks: a busy machine lets it wait.
    fn watch(mut child: Child, is_it: impl Fn(&Activity) -> bool) -> Activity {
        let process = Process::open(child.id()).unwrap();
        thread::sleep(Duration::from_millis(300));
        let mut activity = Activity::default();
        for _ in 0..20 {
            let first = Sample::take(&process, &BTreeSet::new());
            thread::sleep(Duration::from_millis(300));
            activity = over(&[first, Sample::take(&process, &BTreeSet::new())]).unwrap();
            if is_it(&activity) {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        activity
    }

    fn shell(script: &str) -> Child {
        Command::new("sh").args(["-c", script]).stdout(Stdio::null()).spawn().unwrap()
    }

    #[test]
    fn a_process_that_sleeps_makes_no_progress() {
        // `sleep` goes to sleep now and then while it still starts.
        let sleeps = |still: &Activity| still.progress(false).is_none() && still.sleeps == Some(0);
        let activity = watch(Command::new("sleep").arg("60").spawn().unwrap(), sleeps);
        assert_eq!(activity.progress(false), None, "{activity:?}");
        assert_eq!(activity.sleeps, Some(0), "it has slept all the time: {activity:?}");
    }

    #[test]
    fn one_that_computes_does_unless_spinning_is_what_waiting_looks_like() {
        let runs = |activity: &Activity| {
            activity.progress(false).is_some_and(|what| what.contains("ran on the CPU"))
        };
        let activity = watch(shell("while :; do :; done"), runs);
        assert!(runs(&activity), "{activity:?}");
        assert!(activity.progress(true).is_none_or(|what| what.contains("moved")), "{activity:?}");
    }

    /// A machine with many more threads that want to run than processors.
    #[test]
    fn one_that_gets_no_processor_still_computes_and_one_that_polls_does_not() {
        let starved = Activity {
            seconds: 3.5,
            cpu_seconds: Some(0.1),
            ready_seconds: Some(3.3),
            sleeps: Some(0),
            ..Activity::default()
        };
        assert!(starved.progress(false).is_some());
        assert_eq!(starved.progress(true), None, "it can spin while its GPU waits");
        let polls = Activity { sleeps: Some(70), ..starved.clone() };
        assert_eq!(polls.progress(false), None);
        // The number of sleeps is unknown; or the thread was stopped half of the time.
        assert_eq!(Activity { sleeps: None, ..starved.clone() }.progress(false), None);
        assert_eq!(Activity { ready_seconds: Some(1.7), ..starved }.progress(false), None);
    }

    #[test]
    fn a_thread_that_is_always_ready_and_never_runs_is_starved_and_one_that_no_signal_wakes_is_told() {
        let begun = Instant::now();
        let sample = |milliseconds: u64, ran: u64, ready: bool, place: Option<&str>| Sample {
            at: begun + Duration::from_millis(milliseconds),
            cpu: vec![(7, [ran, 0])],
            ready: ready.then_some(Ready { tid: 7, ran, turns: 3, is_needed: true }).into_iter().collect(),
            ticks: None,
            uninterruptible_in: place.map(str::to_owned),
            io: None,
            sleeps: None,
            place: None,
        };
        let starved = |samples: &[Sample]| over(samples).unwrap().is_starved;
        assert!(starved(&[
            sample(0, 5, true, None),
            sample(500, 5, true, None),
            sample(1000, 9, true, None)
        ]));
        // It ran for a tenth of the time; it slept once; it was looked at for too short.
        assert!(!starved(&[sample(0, 0, true, None), sample(1000, 100_000_000, true, None)]));
        // It yields each time, as NCCL's proxy threads do.
        let yields = |turns: u64| {
            let mut last = sample(1000, 9, true, None);
            last.ready[0].turns += turns;
            starved(&[sample(0, 5, true, None), last])
        };
        assert!(yields(10) && !yields(300));
        let slept = [sample(0, 5, true, None), sample(500, 5, false, None), sample(1000, 5, true, None)];
        assert!(!starved(&slept));
        assert!(!starved(&[sample(0, 5, true, None), sample(500, 5, true, None)]));
        // A thread that nothing is known of counts where none of the process ran.
        let other = |ticks: u64| {
            let ready = |at: u64| vec![Ready { tid: 9, ran: at, turns: 3, is_needed: false }];
            let begin = Sample { ready: ready(0), ticks: Some(40), ..sample(0, 5, false, None) };
            starved(&[begin, Sample { ready: ready(1), ticks: Some(ticks), ..sample(1000, 5, false, None) }])
        };
        assert!(other(40) && other(41) && !other(42));
        let asleep_in = |places: [Option<&str>; 2]| {
            let samples = [sample(0, 5, false, places[0]), sample(1000, 5, false, places[1])];
            over(&samples).unwrap().uninterruptible_in
        };
        let nfs = Some("rpc_wait_bit_killable");
        assert_eq!(asleep_in([nfs, nfs]).as_deref(), nfs);
        assert_eq!(asleep_in([nfs, Some("folio_wait_bit")]), None);
        assert_eq!(asleep_in([None, nfs]), None);
        assert_eq!(state_of("7 (a) R b) D 1 7"), Some("D"));
        assert_eq!(name_of("7 (a) R b) D 1 7"), Some("a) R b"));
        assert_eq!(ticks_of("7 (a) R 4 5 6 7 8 9 10 11 12 13 14 15 16"), Some(29));
    }

    #[test]
    fn one_that_copies_does() {
        let cat = Command::new("cat").arg("/dev/zero").stdout(Stdio::null()).spawn().unwrap();
        let copies = |activity: &Activity| activity.progress(true).is_some_and(|what| what.contains("MiB"));
        let activity = watch(cat, copies);
        assert!(copies(&activity), "{activity:?}");
    }
}
