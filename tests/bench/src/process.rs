//! Memory and processor time of a process that runs, and what its BPF programs take.

use std::{
    fs,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

/// Time between two looks at a process; the kernel keeps the peak of its memory.
const LOOK: Duration = Duration::from_millis(100);

/// Highest memory of a process, in KiB: resident (`VmHWM`), and of this what it has allocated (`RssAnon`).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peak {
    pub(crate) resident_kib: u64,
    pub(crate) anonymous_kib: u64,
}

impl Peak {
    /// Watches a process until it has ended, for at most `limit`.
    pub(crate) fn watch(pid: u32, limit: Duration) -> Self {
        let (mut peak, begun) = (Self::default(), Instant::now());
        while begun.elapsed() < limit && peak.look(pid) {
            thread::sleep(LOOK);
        }
        peak
    }

    /// Tells whether the process is there: one that has ended has no memory.
    pub(crate) fn look(&mut self, pid: u32) -> bool {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let kib = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok())
        };
        let resident = kib("VmHWM:");
        self.resident_kib = self.resident_kib.max(resident.unwrap_or(0));
        self.anonymous_kib = self.anonymous_kib.max(kib("RssAnon:").unwrap_or(0));
        resident.is_some()
    }
}

/// Runs a command. Returns its time, that of the processors, and the peak of its memory. `codes`: exit codes
/// of a run that is done.
pub(crate) fn measured(command: &mut Command, codes: &[i32]) -> Result<Value> {
    let begun = Instant::now();
    let mut child = command.spawn().context("starting a program")?;
    let (mut peak, mut cpu) = (Peak::default(), 0.0);
    let status = loop {
        peak.look(child.id());
        cpu = cpu_seconds(child.id(), false).unwrap_or(cpu);
        if let Some(status) = child.try_wait()? {
            break status;
        }
        thread::sleep(LOOK);
    };
    if status.code().is_none_or(|code| !codes.contains(&code)) {
        bail!("`{}` failed ({status})", command.get_program().display());
    }
    Ok(json!({ "seconds": begun.elapsed().as_secs_f64(), "cpu_seconds": cpu, "peak_kib": peak.resident_kib }))
}

/// Returns the time that the processors have spent on a process, all its threads together. `with_ended`: and on its
/// children that have ended.
pub(crate) fn cpu_seconds(pid: u32, with_ended: bool) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which can hold anything: utime, stime, cutime and cstime are fields 14 to 17 of the whole.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    #[expect(clippy::cast_precision_loss, reason = "some hundred a second")]
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    let ended = if with_ended { ticks(13)? + ticks(14)? } else { 0.0 };
    Some((ticks(11)? + ticks(12)? + ended) / per_second)
}

const STATISTICS: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Switches the kernel's count of program runs on, and back.
pub(crate) struct Statistics(String);

impl Statistics {
    pub(crate) fn on() -> Result<Self> {
        let before = fs::read_to_string(STATISTICS).context("reading kernel.bpf_stats_enabled")?;
        fs::write(STATISTICS, "1").context("setting kernel.bpf_stats_enabled (needs root)")?;
        Ok(Self(before))
    }
}

impl Drop for Statistics {
    fn drop(&mut self) {
        let _ = fs::write(STATISTICS, self.0.trim());
    }
}

/// Sums the runs of all BPF programs that the process holds, and the nanoseconds that they took, by the
/// kernel's count.
pub(crate) fn program_runs(pid: u32) -> Result<(u64, u64)> {
    let (mut runs, mut nanoseconds) = (0, 0);
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo")).context("looking for the programs")? {
        let text = fs::read_to_string(entry?.path()).unwrap_or_default();
        let number =
            |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok());
        if number("prog_type:").is_some()
            && number("link_id:").is_none()
            && let (Some(count), Some(time)) = (number("run_cnt:"), number("run_time_ns:"))
        {
            runs += count;
            nanoseconds += time;
        }
    }
    Ok((runs, nanoseconds))
}
