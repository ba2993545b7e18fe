//! Runs of BPF programs and the time that they took, by the kernel's count (`kernel.bpf_stats_enabled`).

use std::fs;

use anyhow::{Context as _, Result};

const STATISTICS: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Switches the kernel's count of program runs on, and back.
pub(super) struct Statistics(String);

impl Statistics {
    pub(super) fn on() -> Result<Self> {
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

/// Runs of programs, and the time that they took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProgramRuns {
    pub(super) runs: u64,
    pub(super) nanoseconds: u64,
}

impl ProgramRuns {
    /// Sums the runs of all programs that the process holds.
    pub(super) fn of(pid: u32) -> Result<Self> {
        let mut all = Self::default();
        for entry in fs::read_dir(format!("/proc/{pid}/fdinfo")).context("looking for the programs")? {
            let text = fs::read_to_string(entry?.path()).unwrap_or_default();
            let number =
                |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok());
            if number("prog_type:").is_some()
                && number("link_id:").is_none()
                && let (Some(runs), Some(nanoseconds)) = (number("run_cnt:"), number("run_time_ns:"))
            {
                all.runs += runs;
                all.nanoseconds += nanoseconds;
            }
        }
        Ok(all)
    }

    #[expect(clippy::cast_precision_loss, reason = "far less than 2^52")]
    pub(super) fn nanoseconds_each(self) -> f64 {
        self.nanoseconds as f64 / self.runs as f64
    }
}
