//! What the GPU of one rank did between the readings, by its driver's word.

use serde::{Deserialize, Serialize};

use super::{dump_report::ProcessReport, rank_report::RankReport};
use crate::gpu::GpuReport;

/// Errors after which a GPU does not go on with what it did (NVIDIA's catalogue of Xids): a fault of the
/// program's kernel (13, 31, 43), uncorrected memory (48, 63, 64, 94, 95), NVLink (74), the GPU itself fallen
/// off the bus (79), its firmware gone (119, 120), NVLink of later GPUs (144 to 150).
const FATAL: [u32; 18] = [13, 31, 43, 45, 48, 64, 74, 79, 94, 95, 119, 120, 144, 145, 146, 147, 149, 150];
/// Bytes a second over NVLink; a GPU that waits moves none.
const STILL: f64 = 1_048_576.0;
/// Percent of the time in which a kernel that waits runs.
const WAITS: u32 = 90;

/// The GPU of a rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RankGpu {
    pub uuid: Option<String>,
    /// Seconds from the first reading to the last.
    pub seconds: f64,
    /// Percent of the driver's last period in which a kernel of this process ran; null if it does not say.
    pub sm_percent: Option<u32>,
    /// The same, in which the process read or wrote the GPU's memory.
    pub memory_percent: Option<u32>,
    /// Over NVLink, sent and received; null where the GPU has none.
    pub nvlink_bytes: Option<u64>,
    /// Numbers of errors since the process was started after which a GPU does not go on.
    #[serde(default)]
    pub fatal_xids: Vec<u32>,
}

/// What a GPU does, as far as its numbers tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Work {
    /// No kernel of the process ran.
    Idle,
    /// A kernel ran all the time, touched no memory and moved nothing: as one of NCCL's does that waits.
    Waits,
    /// Kernels ran and used memory, and nothing moved over NVLink.
    Computes,
    /// Data moved over NVLink.
    Moves,
}

impl RankReport {
    /// What the rank's GPU does, by its driver.
    pub(super) fn work(&self) -> Option<Work> {
        self.gpu.as_ref()?.work()
    }
}

impl RankGpu {
    pub(super) fn of(rank: &RankReport, processes: &[ProcessReport], gpus: &[GpuReport]) -> Option<Self> {
        let bus_id = rank.bus_id.as_ref()?;
        let gpu = gpus.iter().find(|gpu| (&gpu.host, gpu.bus_id.as_ref()) == (&rank.host, Some(bus_id)))?;
        let own = gpu.processes.iter().flatten().find(|process| process.pid == rank.pid);
        // A GPU on which nothing ran did nothing for this process.
        let used = own.map(|process| process.used).or((gpu.used.sm_percent == Some(0)).then_some(gpu.used));
        let process = processes.iter().find(|process| (process.pid, &process.host) == (rank.pid, &rank.host));
        let age = process.and_then(|process| process.age_seconds);
        let is_fatal = |xid: &&crate::gpu::XidReport| {
            FATAL.contains(&xid.xid)
                && xid.pid.is_none_or(|pid| pid == rank.pid)
                && age.is_some_and(|age| xid.seconds_ago <= age)
        };
        Some(Self {
            uuid: gpu.uuid.clone(),
            seconds: gpu.seconds,
            sm_percent: used.and_then(|used| used.sm_percent),
            memory_percent: used.and_then(|used| used.memory_percent),
            nvlink_bytes: gpu.nvlink.map(crate::gpu::Traffic::total),
            fatal_xids: gpu.xids.iter().filter(is_fatal).map(|xid| xid.xid).collect(),
        })
    }

    /// `None` where the numbers are not known, or fit nothing.
    pub(super) fn work(&self) -> Option<Work> {
        let sm = self.sm_percent?;
        #[expect(clippy::cast_precision_loss, reason = "for a rate")]
        let moves = self.nvlink_bytes.is_some_and(|bytes| bytes as f64 >= STILL * self.seconds.max(0.1));
        match (sm, self.memory_percent) {
            _ if moves => Some(Work::Moves),
            (0, _) => Some(Work::Idle),
            (_, Some(1..)) => Some(Work::Computes),
            (WAITS.., Some(0)) => Some(Work::Waits),
            _ => None,
        }
    }

    /// `99 % busy, 0 % memory, NVLink still`
    pub(super) fn describe(&self) -> String {
        let percent = |value: Option<u32>| value.map_or("?".to_owned(), |value| value.to_string());
        let nvlink = match self.nvlink_bytes {
            None => String::new(),
            Some(0) => ", NVLink still".to_owned(),
            Some(bytes) => format!(", {} KiB over NVLink", bytes >> 10),
        };
        format!("{} % busy, {} % memory{nvlink}", percent(self.sm_percent), percent(self.memory_percent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(sm: u32, memory: u32, nvlink: Option<u64>) -> RankGpu {
        RankGpu {
            seconds: 1.0,
            sm_percent: Some(sm),
            memory_percent: Some(memory),
            nvlink_bytes: nvlink,
            ..RankGpu::default()
        }
    }

    /// As measured on two H200: waiting over NVLink, absent, busy.
    #[test]
    fn waiting_idle_and_busy_are_told_apart() {
        assert_eq!(gpu(99, 0, Some(0)).work(), Some(Work::Waits));
        assert_eq!(gpu(0, 0, Some(0)).work(), Some(Work::Idle));
        assert_eq!(gpu(98, 30, Some(64_000_000_000)).work(), Some(Work::Moves));
        assert_eq!(gpu(97, 12, Some(0)).work(), Some(Work::Computes));
        // A machine without NVLink; a kernel now and then.
        assert_eq!(gpu(100, 0, None).work(), Some(Work::Waits));
        assert_eq!(gpu(30, 0, None).work(), None);
        assert_eq!(RankGpu::default().work(), None);
    }
}
