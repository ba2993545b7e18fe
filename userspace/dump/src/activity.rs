//! Progress of a process outside NCCL, between the readings: processor time of the threads that run the
//! program, the places where they sleep, and input and output.
//!
//! Those threads are the first one, PyTorch's for the backward pass, and those that have called NCCL. Others
//! serve the program, and may run while it stands.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use inspect::process::{
    Process, printable, read_text, run_times, stat_field, stat_name, status_field, turns,
};

use crate::thread_roles::{Launching, MAX_THREADS, Roles};

/// Part of the time. A thread that ran, or waited for a processor, for so long computes. One that wakes up to
/// look for something does not.
const RUNS: f64 = 0.3;
/// Part of the time for which a thread that computes at least ran.
const RAN: f64 = 0.05;
/// Part of the time from which on it is that of several threads.
const SEVERAL: f64 = 1.1;
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
    /// Processor time of the threads that run the program: the first, PyTorch's for the backward pass, and
    /// those that have called NCCL.
    pub cpu_seconds: Option<f64>,
    /// Time for which these threads were ready to run, and waited for a processor.
    pub ready_seconds: Option<f64>,
    /// Number of times that one of these threads went to sleep: the one that wanted a processor for longest.
    pub sleeps: Option<u64>,
    /// Bytes that the process read and wrote by read(2), write(2) and their like: files and pipes, and
    /// sockets that are used so. NCCL's are not; those of torch's store, if this process has it, are left out.
    pub io_bytes: Option<u64>,
    /// One of these threads slept in other places at some readings.
    pub is_elsewhere: bool,
    /// One of these threads, or of NCCL's that move ops was ready to run at all readings, and got no
    /// processor; or any thread was, and none of the process ran.
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
            // Of several threads it can be more than all the time.
            let ran = if cpu > SEVERAL * seconds {
                format!("its threads ran on the CPU for {cpu:.1} s in {seconds:.1} s")
            } else {
                format!("it ran on the CPU for {cpu:.1} of {seconds:.1} s")
            };
            return Some(ran + &ready);
        }
        #[expect(clippy::cast_precision_loss, reason = "for a rate, and for people")]
        let bytes = self.io_bytes.map_or(0.0, |bytes| bytes as f64);
        if bytes >= READS * seconds {
            return Some(format!("it read and wrote {:.1} MiB in {seconds:.1} s", bytes / 1_048_576.0));
        }
        self.is_elsewhere.then(|| format!("a thread of its program moved within {seconds:.1} s"))
    }
}

/// A process at one moment.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    at: Instant,
    /// Threads that run the program.
    program: Vec<ProgramThread>,
    /// Threads that are ready to run.
    ready: Vec<Ready>,
    /// Clock ticks for which all threads ran.
    ticks: Option<u64>,
    /// Kernel function of the first thread, while no signal can wake it.
    uninterruptible_in: Option<String>,
    io: Option<u64>,
}

/// A thread that runs the program.
#[derive(Clone, Debug)]
struct ProgramThread {
    tid: u32,
    /// Nanoseconds on a processor, and waiting for one.
    times: Option<[u64; 2]>,
    /// Number of times that it has gone to sleep.
    sleeps: Option<u64>,
    /// System call, stack pointer and program counter, while it sleeps.
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
    fn program_thread(&self, tid: u32) -> Option<&ProgramThread> {
        self.program.iter().find(|thread| thread.tid == tid)
    }

    /// Looks at a process, with the roles of its threads.
    pub(super) fn take(process: &Process, roles: &Roles) -> Self {
        let folder = process.proc_path();
        let first = process.pid();
        let of_task = |tid: u32, file: &str| read_text(process.task_path(tid).join(file));
        let (mut program, mut ready, mut of_store) = (Vec::new(), Vec::new(), 0);
        let mut launching = Launching::default();
        for tid in process.thread_ids().take(MAX_THREADS) {
            let Ok(stat) = of_task(tid, "stat") else { continue };
            let name = stat_name(&stat).unwrap_or_default();
            if name.starts_with(STORE) {
                of_store += of_task(tid, "io").ok().and_then(|text| io_bytes(&text)).unwrap_or(0);
            }
            let is_program = launching.has(tid == first, name) || roles.callers.contains(&tid);
            let is_ready = state_of(&stat) == Some("R");
            if !is_program && !is_ready {
                continue;
            }
            // A kernel without these counts says 0, also of a thread that runs.
            let schedstat = of_task(tid, "schedstat").unwrap_or_default();
            let times = run_times(&schedstat).filter(|times| *times != [0, 0]);
            let is_needed = is_program || roles.proxies.contains(&tid);
            if let Some([ran, _]) = times.filter(|_| is_ready) {
                ready.push(Ready { tid, ran, turns: turns(&schedstat).unwrap_or(0), is_needed });
            }
            if is_program {
                let status = of_task(tid, "status").unwrap_or_default();
                let sleeps = status_field(&status, "voluntary_ctxt_switches");
                let sleeps = sleeps.and_then(|count| count.parse().ok());
                let place = of_task(tid, "syscall").ok().and_then(|text| place_of(&text));
                program.push(ProgramThread { tid, times, sleeps, place });
            }
        }
        let ticks = read_text(folder.join("stat")).ok().and_then(|stat| ticks_of(&stat));
        let is_asleep = of_task(first, "stat").is_ok_and(|stat| state_of(&stat) == Some("D"));
        let wchan = || of_task(first, "wchan").ok().filter(|name| !name.is_empty() && name != "0");
        let uninterruptible_in =
            is_asleep.then(|| printable(&wchan().unwrap_or_else(|| "an unknown function".to_owned())));
        let io = read_text(folder.join("io")).ok().and_then(|text| io_bytes(&text));
        let io = io.map(|all| all.saturating_sub(of_store));
        Self { at: Instant::now(), program, ready, ticks, uninterruptible_in, io }
    }
}

/// Returns system call, stack pointer and program counter of a thread in its `syscall`; `None` if it runs. The
/// call's arguments are left out: they change when the thread waits for the same thing again, for the rest of
/// a timeout.
fn place_of(syscall: &str) -> Option<String> {
    if syscall.starts_with("running") {
        return None;
    }
    let words: Vec<&str> = syscall.split_whitespace().collect();
    let last = words.len().saturating_sub(2);
    Some(format!("{} {}", words.first()?, words.get(last..)?.join(" ")))
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
    // Of a thread, what grew since it was first seen.
    let spent_by = |thread: &ProgramThread| {
        let before = first.program_thread(thread.tid).map_or(Some([0; 2]), |before| before.times)?;
        let [ran, waited] = thread.times?;
        Some([ran.saturating_sub(before[0]), waited.saturating_sub(before[1])])
    };
    let spent = |kind: usize| {
        let nanoseconds: u64 = last.program.iter().filter_map(spent_by).map(|times| times[kind]).sum();
        Duration::from_nanos(nanoseconds).as_secs_f64()
    };
    let has_times = |sample: &Sample| sample.program.iter().any(|thread| thread.times.is_some());
    let is_known = has_times(first) && has_times(last);
    let sleeps = |thread: &ProgramThread| {
        let before = first.program_thread(thread.tid).map_or(Some(0), |before| before.sleeps)?;
        thread.sleeps?.checked_sub(before)
    };
    // That another one sleeps does not tell that this one waits. Of equal ones the first.
    let wanted = |thread: &&ProgramThread| spent_by(thread).map(|[ran, waited]| ran.saturating_add(waited));
    let sleeps = last.program.iter().rev().max_by_key(wanted).and_then(sleeps);
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
    let moved = |thread: &ProgramThread| {
        let of_thread = |sample: &'_ Sample| sample.program_thread(thread.tid)?.place.clone();
        let mut places = samples.iter().filter_map(of_thread);
        places.next().is_some_and(|place| places.any(|other| other != place))
    };
    Some(Activity {
        seconds,
        is_starved: first.ready.iter().any(is_starved),
        uninterruptible_in: asleep_in(first).filter(|place| {
            seconds >= LEAST_SECONDS && samples.iter().all(|sample| asleep_in(sample).as_ref() == Some(place))
        }),
        cpu_seconds: is_known.then(|| spent(0)),
        ready_seconds: is_known.then(|| spent(1)),
        sleeps,
        io_bytes: last.io.zip(first.io).and_then(|(after, before)| after.checked_sub(before)),
        is_elsewhere: first.program.iter().any(moved),
    })
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        process::{Child, Command, Stdio},
        thread,
    };

    use super::*;
    use crate::thread_roles::tests::beside_a_thread;

    /// Watches a program until `is_it` holds, or for some looks: a busy machine lets it wait.
    fn watch(mut child: Child, is_it: impl Fn(&Activity) -> bool) -> Activity {
        let process = Process::open(child.id()).unwrap();
        thread::sleep(Duration::from_millis(300));
        let mut activity = Activity::default();
        for _ in 0..20 {
            let first = Sample::take(&process, &Roles::default());
            thread::sleep(Duration::from_millis(300));
            activity = over(&[first, Sample::take(&process, &Roles::default())]).unwrap();
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
            program: vec![ProgramThread { tid: 7, times: Some([ran, 0]), sleeps: None, place: None }],
            ready: ready.then_some(Ready { tid: 7, ran, turns: 3, is_needed: true }).into_iter().collect(),
            ticks: None,
            uninterruptible_in: place.map(str::to_owned),
            io: None,
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
        assert_eq!(stat_name("7 (a) R b) D 1 7"), Some("a) R b"));
        assert_eq!(ticks_of("7 (a) R 4 5 6 7 8 9 10 11 12 13 14 15 16"), Some(29));
    }

    /// This process: its first thread waits for the tests, and a thread of it runs.
    #[test]
    fn a_thread_that_has_called_nccl_counts_and_one_that_serves_the_program_does_not() {
        beside_a_thread(std::hint::spin_loop, |own, _, tid| {
            let roles = |callers| Roles { callers, ..Roles::default() };
            let (caller, service) = (roles(BTreeSet::from([tid])), roles(BTreeSet::new()));
            let before = [&caller, &service].map(|roles| Sample::take(own, roles));
            thread::sleep(Duration::from_millis(300));
            let after = [&caller, &service].map(|roles| Sample::take(own, roles));
            let [caller, service] = std::array::from_fn(|at| {
                let activity = over(&[before[at].clone(), after[at].clone()]).unwrap();
                let asked = activity.cpu_seconds.unwrap_or(0.0) + activity.ready_seconds.unwrap_or(0.0);
                asked / activity.seconds
            });
            assert!(caller > 0.8 && service < 0.3, "{caller} {service}");
        });
    }

    #[test]
    fn a_thread_that_sleeps_in_other_places_moves_whichever_it_is() {
        let begun = Instant::now();
        let sample = |milliseconds: u64, places: [&str; 2]| Sample {
            at: begun + Duration::from_millis(milliseconds),
            program: [7, 8]
                .into_iter()
                .zip(places)
                .map(|(tid, place)| ProgramThread {
                    tid,
                    times: None,
                    sleeps: Some(milliseconds),
                    place: place_of(place),
                })
                .collect(),
            ready: Vec::new(),
            ticks: None,
            uninterruptible_in: None,
            io: None,
        };
        let [wait, again, other] =
            ["202 0x7 0x80 0x7ffd10 0x7f3a", "202 0x9 0x81 0x7ffd10 0x7f3a", "230 0x1 0x7ffd10 0x7f3a"];
        let moved = |first, last| over(&[sample(0, first), sample(500, last)]).unwrap();
        assert!(!moved([wait, wait], [again, again]).is_elsewhere, "for the rest of a timeout");
        assert!(moved([wait, wait], [wait, other]).is_elsewhere);
        assert!(!moved([wait, wait], [wait, "running"]).is_elsewhere);
        assert_eq!(moved([wait, wait], [wait, wait]).sleeps, Some(500));
    }

    /// On a busy host. The second thread looks for something ten times a second.
    #[test]
    fn a_thread_that_gets_no_processor_computes_though_another_one_sleeps() {
        let begun = Instant::now();
        let sample = |seconds: u64| Sample {
            at: begun + Duration::from_secs(seconds),
            program: [(7, [40_000_000, 950_000_000], 3), (8, [1_000_000, 2_000_000], 10 * seconds)]
                .map(|(tid, times, sleeps)| ProgramThread {
                    tid,
                    times: Some(times.map(|ns| 1 + ns * seconds)),
                    sleeps: Some(sleeps),
                    place: None,
                })
                .into(),
            ready: Vec::new(),
            ticks: None,
            uninterruptible_in: None,
            io: None,
        };
        let activity = over(&[sample(0), sample(1)]).unwrap();
        assert_eq!(activity.sleeps, Some(0));
        assert!(activity.progress(false).is_some_and(|what| what.contains("waited 1.0 s")), "{activity:?}");
    }

    #[test]
    fn the_time_of_several_threads_is_told_as_such() {
        let of = |cpu| Activity { seconds: 1.0, cpu_seconds: Some(cpu), ..Activity::default() };
        let said = |cpu| of(cpu).progress(false).unwrap();
        assert_eq!(said(0.9), "it ran on the CPU for 0.9 of 1.0 s");
        assert_eq!(said(4.0), "its threads ran on the CPU for 4.0 s in 1.0 s");
    }

    #[test]
    fn one_that_copies_does() {
        let cat = Command::new("cat").arg("/dev/zero").stdout(Stdio::null()).spawn().unwrap();
        let copies = |activity: &Activity| activity.progress(true).is_some_and(|what| what.contains("MiB"));
        let activity = watch(cat, copies);
        assert!(copies(&activity), "{activity:?}");
    }
}
