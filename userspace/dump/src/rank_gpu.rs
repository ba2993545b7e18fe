//! Activity of one rank's GPU between the readings, by its driver.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{ProcessReport, RankReport};
use flow::text::joined;
use inspect::gpu::{GpuReport, Residency, XidReport};

/// Errors after which a GPU does not go on with its work (NVIDIA's catalogue of Xids): a fault of the
/// program's kernel (13, 31, 43), clean-up after an error (45), uncorrected memory (48, 95), the GPU itself
/// fallen off the bus (79), its firmware gone (119, 120). Memory errors that are contained or will be remapped
/// (64, 94) and links that recover (74) stop nothing that lives on.
const FATAL: [u32; 9] = [13, 31, 43, 45, 48, 79, 95, 119, 120];
/// Errors of NVLink on later GPUs, which say themselves how grave they are: `145, RLW_RXPIPE Nonfatal XC0 …`.
const GRADED: [u32; 6] = [144, 145, 146, 147, 149, 150];
/// Bytes a second over NVLink below which nothing is moved; a GPU that waits moves none.
const STILL: f64 = 1_048_576.0;
/// Warps of a block of NCCL's kernels at least (3 of 32 threads, `NCCL_MIN_NTHREADS` before 2.19: 4).
const LEAST_WARPS: f64 = 3.0;
/// Warps that a multiprocessor has room for, from Hopper on.
const ROOM_FOR_WARPS: f64 = 64.0;
/// Percent of the time for which a kernel that waits at least runs.
const WAITS: u32 = 90;

/// The GPU of a rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RankGpu {
    pub uuid: Option<String>,
    /// Seconds from the first reading to the last.
    pub seconds: f64,
    /// Percent of the driver's last period in which a kernel of this process ran; null if the driver does not
    /// say.
    pub sm_percent: Option<u32>,
    /// Percent of that period in which the process read or wrote the GPU's memory.
    pub memory_percent: Option<u32>,
    /// Bytes over NVLink, sent and received; null where the GPU has none.
    pub nvlink_bytes: Option<u64>,
    /// Share of the GPU that kernels took between the last readings; null before Hopper, and where kernels of
    /// other processes can be among them.
    #[serde(default)]
    pub residency: Option<Residency>,
    /// The process has no other communicator: a kernel of NCCL's is one of this communicator.
    #[serde(default)]
    pub is_only_communicator: bool,
    /// PIDs of other processes on this GPU, but those whose kernels did not run, by the driver: traffic over
    /// NVLink can be theirs.
    #[serde(default)]
    pub others: Vec<u32>,
    /// Numbers of errors since the process was started after which a GPU does not go on.
    #[serde(default)]
    pub fatal_xids: Vec<u32>,
}

/// Work of a GPU, as far as its numbers tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Work {
    /// No kernel of the process ran.
    Idle,
    /// A kernel ran all the time, touched no memory and moved nothing, like one of NCCL's that waits.
    Waits,
    /// Kernels ran and used memory, and nothing moved over NVLink.
    Computes,
    /// Data moved over NVLink.
    Moves,
}

impl RankReport {
    /// Returns the work of the rank's GPU, by its driver.
    pub(super) fn work(&self) -> Option<Work> {
        self.gpu.as_ref()?.work()
    }
}

/// What a process has ranks of.
#[derive(Debug, Default)]
pub(super) struct RanksOfProcess {
    /// GPUs, by PCI address.
    bus_ids: BTreeSet<String>,
    communicators: usize,
}

/// Returns the GPUs and the number of communicators of which each process has ranks.
pub(super) fn places(ranks: &[RankReport]) -> BTreeMap<u32, RanksOfProcess> {
    let mut places: BTreeMap<u32, RanksOfProcess> = BTreeMap::new();
    for rank in ranks {
        let place = places.entry(rank.pid).or_default();
        place.bus_ids.extend(rank.bus_id.clone());
        place.communicators += 1;
    }
    places
}

/// Tells whether a GPU does not go on with its work after this error.
fn is_fatal(xid: &XidReport) -> bool {
    FATAL.contains(&xid.xid)
        || (GRADED.contains(&xid.xid) && xid.text.split_whitespace().any(|word| word == "Fatal"))
}

impl RankGpu {
    /// Makes the report of a rank's GPU. `places` are those of all ranks of this host: a process with ranks
    /// on other GPUs only has a context on this one at most, and no kernel of NCCL's.
    pub(super) fn of(
        rank: &RankReport,
        places: &BTreeMap<u32, RanksOfProcess>,
        processes: &[ProcessReport],
        gpus: &[GpuReport],
    ) -> Option<Self> {
        let bus_id = rank.bus_id.as_ref()?;
        let gpu = gpus.iter().find(|gpu| (&gpu.host, gpu.bus_id.as_ref()) == (&rank.host, Some(bus_id)))?;
        let own = gpu.processes.iter().flatten().find(|process| process.pid == rank.pid);
        // A GPU on which nothing ran did nothing for this process.
        let used = own.map(|process| process.used).or((gpu.used.sm_percent == Some(0)).then_some(gpu.used));
        let is_other = |process: &&inspect::gpu::GpuProcess| {
            process.pid != rank.pid
                && process.used.sm_percent != Some(0)
                && places.get(&process.pid).is_none_or(|place| place.bus_ids.contains(bus_id))
        };
        let age = ProcessReport::of(rank, processes).and_then(|process| process.age_seconds);
        let stops_it = |xid: &&XidReport| {
            is_fatal(xid)
                && xid.pid.is_none_or(|pid| pid == rank.pid)
                && age.is_some_and(|age| xid.seconds_ago <= age)
        };
        let others: Vec<u32> =
            gpu.processes.iter().flatten().filter(is_other).map(|process| process.pid).collect();
        Some(Self {
            residency: gpu.residency.filter(|_| others.is_empty()),
            is_only_communicator: places.get(&rank.pid).is_some_and(|place| place.communicators == 1),
            uuid: gpu.uuid.clone(),
            seconds: gpu.seconds,
            sm_percent: used.and_then(|used| used.sm_percent),
            memory_percent: used.and_then(|used| used.memory_percent),
            nvlink_bytes: gpu.nvlink.map(inspect::gpu::Traffic::total),
            others,
            fatal_xids: gpu.xids.iter().filter(stops_it).map(|xid| xid.xid).collect(),
        })
    }

    /// Returns the work; `None` where the numbers are not known, or fit nothing.
    pub(super) fn work(&self) -> Option<Work> {
        let sm = self.sm_percent?;
        #[expect(clippy::cast_precision_loss, reason = "for a rate")]
        let moves = self.nvlink_bytes.is_some_and(|bytes| bytes as f64 >= STILL * self.seconds.max(0.1));
        match (sm, self.memory_percent) {
            _ if moves && self.others.is_empty() => Some(Work::Moves),
            (0, _) => Some(Work::Idle),
            // The process that uses the memory can be the one that moves data.
            (_, Some(1..)) if moves => None,
            (_, Some(1..)) => Some(Work::Computes),
            (WAITS.., Some(0)) => Some(Work::Waits),
            _ => None,
        }
    }

    /// Tells whether the kernels that run cannot be NCCL's alone: they have fewer warps on a multiprocessor
    /// than NCCL's smallest.
    pub(super) fn is_too_small_for_nccl(&self) -> bool {
        self.residency.is_some_and(|residency| {
            residency.multiprocessors_percent > 0.0 && warps(residency) < LEAST_WARPS - 0.5
        })
    }

    /// Tells whether the kernels of both GPUs are of one shape, as those of one collective are.
    pub(super) fn has_kernel_like(&self, other: &Self) -> bool {
        let is_near = |one: f64, other: f64| (one - other).abs() <= 0.2 * one.max(other);
        self.residency.zip(other.residency).is_some_and(|(one, other)| {
            is_near(one.multiprocessors_percent, other.multiprocessors_percent)
                && is_near(warps(one), warps(other))
        })
    }

    /// Describes what the kernels take: `18.2 % of its multiprocessors, with 17 warps on each`.
    pub(super) fn describe_residency(&self) -> Option<String> {
        let residency = self.residency?;
        let (percent, warps) = (residency.multiprocessors_percent, warps(residency));
        let s = if warps.round() > 1.0 { "s" } else { "" };
        Some(format!("{percent:.1} % of its multiprocessors, with {warps:.0} warp{s} on each"))
    }

    /// Describes the activity: `99 % busy, 0 % memory, NVLink still`.
    pub(super) fn describe(&self) -> String {
        let percent = |value: Option<u32>| value.map_or("?".to_owned(), |value| value.to_string());
        let nvlink = match self.nvlink_bytes {
            None => String::new(),
            Some(0) => ", NVLink still".to_owned(),
            Some(bytes) if self.others.is_empty() => format!(", {} KiB over NVLink", bytes >> 10),
            Some(bytes) => format!(
                ", {} KiB over NVLink, which can be of another process on this GPU ({})",
                bytes >> 10,
                joined(&self.others, ", ")
            ),
        };
        format!("{} % busy, {} % memory{nvlink}", percent(self.sm_percent), percent(self.memory_percent))
    }
}

/// Returns the number of warps on each multiprocessor that has any.
fn warps(residency: Residency) -> f64 {
    ROOM_FOR_WARPS * residency.warps_percent / residency.multiprocessors_percent.max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use inspect::gpu::{GpuProcess, Traffic, Utilisation};

    fn gpu(sm: u32, memory: u32, nvlink: Option<u64>) -> RankGpu {
        RankGpu {
            seconds: 1.0,
            sm_percent: Some(sm),
            memory_percent: Some(memory),
            nvlink_bytes: nvlink,
            ..RankGpu::default()
        }
    }

    /// A line of a GB200's log (leptonai/gpud#1160), and the same with the other severity.
    #[test]
    fn an_error_of_nvlink_stops_a_gpu_if_it_says_so() {
        let of = |xid, text: &str| {
            is_fatal(&XidReport { xid, seconds_ago: 1.0, pid: None, text: text.to_owned() })
        };
        assert!(!of(145, "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x00000004 0x00000000)"));
        assert!(of(145, "RLW_RXPIPE Fatal XC0 i0 Link 13 (0x00000004 0x00000000)"));
        assert!(of(79, "GPU has fallen off the bus.") && !of(94, "Contained memory error") && !of(63, ""));
    }

    /// Numbers measured on two H200: waiting over NVLink, absent, busy.
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

    /// Numbers measured by GPM on H200s: a wait in an all-reduce of 24 channels, one in a receive, and a
    /// kernel of the program's own, one warp that spins.
    #[test]
    fn a_kernel_that_is_not_nccls_is_told_by_its_shape() {
        let of = |multiprocessors_percent, warps_percent| {
            let residency = Residency { multiprocessors_percent, warps_percent };
            RankGpu { residency: Some(residency), ..gpu(100, 0, Some(0)) }
        };
        let (low, high) = (of(18.18, 4.83), of(18.18, 5.68));
        let (receives, spins, idle) = (of(0.76, 0.22), of(0.76, 0.01), of(0.0, 0.0));
        assert!(spins.is_too_small_for_nccl());
        assert!(
            [&low, &high, &receives, &idle, &gpu(100, 0, None)]
                .iter()
                .all(|gpu| !gpu.is_too_small_for_nccl())
        );
        assert!(low.has_kernel_like(&high) && !low.has_kernel_like(&receives));
        assert!(!receives.has_kernel_like(&spins) && !low.has_kernel_like(&gpu(100, 0, None)));
        let text = "18.2 % of its multiprocessors, with 17 warps on each";
        assert_eq!(low.describe_residency().as_deref(), Some(text));
    }

    /// Numbers seen on two H100, where a job that was left behind ran beside one of which a rank had died.
    #[test]
    fn what_moves_over_nvlink_is_not_ascribed_to_one_of_several_processes() {
        let process = |pid: u32, sm: Option<u32>, memory| GpuProcess {
            pid,
            used: Utilisation { sm_percent: sm, memory_percent: memory },
            ..GpuProcess::default()
        };
        let bus_id = |number: u32| Some(format!("0000:00:0{number}.0"));
        let of = |processes: Vec<GpuProcess>| {
            let gpu = GpuReport {
                bus_id: bus_id(6),
                seconds: 1.0,
                nvlink: Some(Traffic { sent: 50_333_696, received: 0 }),
                processes: Some(processes),
                ..GpuReport::default()
            };
            let rank = RankReport { pid: 8599, bus_id: bus_id(6), ..RankReport::default() };
            let beside = RankReport { pid: 7799, bus_id: bus_id(7), ..RankReport::default() };
            let places = places(&[rank.clone(), beside]);
            RankGpu::of(&rank, &places, &[], &[gpu]).unwrap()
        };
        let own = || process(8599, Some(100), Some(0));
        assert_eq!(of(vec![own()]).work(), Some(Work::Moves));
        let beside = of(vec![process(7800, None, None), own()]);
        assert_eq!((beside.work(), &*beside.others), (Some(Work::Waits), &[7800][..]));
        assert!(
            beside.describe().ends_with("can be of another process on this GPU (7800)"),
            "{}",
            beside.describe()
        );
        // The traffic can be the process's own where its kernels use memory.
        assert_eq!(of(vec![process(7800, None, None), process(8599, Some(98), Some(30))]).work(), None);
        // One that did nothing, and a rank of another GPU that has a context here.
        assert_eq!(of(vec![process(7800, Some(0), Some(0)), own()]).work(), Some(Work::Moves));
        assert_eq!(of(vec![process(7799, None, None), own()]).work(), Some(Work::Moves));
    }
}
