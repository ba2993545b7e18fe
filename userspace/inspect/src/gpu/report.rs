//! Activity of GPUs between two readings, as data: a part of `dump --json` (docs/DUMP.md).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    kernel_log::KernelXid,
    reading::{GpuProcess, GpuReading, Residency, Utilisation},
};

/// Maximum number of errors that are listed of one GPU, the latest ones.
const MAX_XIDS: usize = 16;

/// A GPU of the host, over some readings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuReport {
    pub host: String,
    /// NVML's number of the GPU, by PCI address.
    pub index: u32,
    pub uuid: Option<String>,
    /// PCI address: `0000:3b:00.0`.
    pub bus_id: Option<String>,
    pub name: Option<String>,
    /// Seconds from the first reading to the last.
    pub seconds: f64,
    /// Use at the last reading, by all processes together.
    #[serde(flatten)]
    pub used: Utilisation,
    /// Share that kernels took since the reading before the last; null before Hopper.
    #[serde(default)]
    pub residency: Option<Residency>,
    pub processes: Option<Vec<GpuProcess>>,
    /// Bytes over NVLink between the readings; null where the GPU has none.
    pub nvlink: Option<Traffic>,
    pub pcie: Option<Traffic>,
    pub sm_clock_mhz: Option<u32>,
    pub sm_clock_max_mhz: Option<u32>,
    /// Reasons for low clocks, by NVML's names.
    #[serde(default)]
    pub throttled_by: Vec<String>,
    pub ecc_uncorrected: Option<u64>,
    /// Temperature in degrees Celsius.
    pub temperature: Option<u32>,
    pub temperature_limit: Option<u32>,
    pub power_watts: Option<f64>,
    pub power_limit_watts: Option<f64>,
    /// UUIDs of the instances (MIG) that the GPU is divided into. The driver does not say then how busy it
    /// is.
    #[serde(default)]
    pub instances: Vec<String>,
    /// Errors in the kernel's log, the oldest first.
    #[serde(default)]
    pub xids: Vec<XidReport>,
}

/// Bytes sent and received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    pub sent: u64,
    pub received: u64,
}

impl Traffic {
    /// Returns the growth of a counter of sent and received bytes; `None` if the counter was reset and went
    /// back.
    pub(super) fn between(
        [sent_before, received_before]: [u64; 2],
        [sent, received]: [u64; 2],
    ) -> Option<Self> {
        Some(Self { sent: sent.checked_sub(sent_before)?, received: received.checked_sub(received_before)? })
    }

    pub(super) fn plus(self, more: Self) -> Self {
        Self {
            sent: self.sent.saturating_add(more.sent),
            received: self.received.saturating_add(more.received),
        }
    }

    pub fn total(self) -> u64 {
        self.sent.saturating_add(self.received)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct XidReport {
    pub xid: u32,
    /// Seconds from the error to the last reading.
    pub seconds_ago: f64,
    /// The process that the driver blames.
    pub pid: Option<u32>,
    pub text: String,
}

/// Reports each GPU from the first reading to the last. `xids` are those of all GPUs of the host; `uptime` is
/// in seconds.
pub fn over(host: &str, readings: &[Vec<GpuReading>], xids: &[KernelXid], uptime: f64) -> Vec<GpuReport> {
    let Some(last) = readings.last() else { return Vec::new() };
    last.iter().map(|gpu| of_gpu(host, gpu, readings, xids, uptime)).collect()
}

fn of_gpu(
    host: &str,
    gpu: &GpuReading,
    readings: &[Vec<GpuReading>],
    xids: &[KernelXid],
    uptime: f64,
) -> GpuReport {
    let first = readings
        .iter()
        .find_map(|all| all.iter().find(|other| other.is_same_gpu(gpu)))
        .filter(|first| first.at_ns < gpu.at_ns);
    let moved = |count: fn(&GpuReading) -> Option<[u64; 2]>| Traffic::between(count(first?)?, count(gpu)?);
    // Where the GPU's own counters say the bytes of each period, the sum over all periods.
    let since_first = readings.iter().flatten().filter(|other| other.is_same_gpu(gpu)).skip(1);
    let pcie = since_first.map(|reading| reading.activity.pcie).reduce(|sum, more| Some(sum?.plus(more?)));
    let is_own = |xid: &&KernelXid| {
        gpu.gpu.bus_id.as_deref().is_some_and(|bus_id| bus_id.strip_suffix(".0") == Some(&*xid.device))
    };
    let own: Vec<&KernelXid> = xids.iter().filter(is_own).collect();
    let own = own.iter().skip(own.len().saturating_sub(MAX_XIDS));
    let watts = |milliwatts: Option<u32>| milliwatts.map(|milliwatts| f64::from(milliwatts) / 1000.0);
    GpuReport {
        host: host.to_owned(),
        seconds: Duration::from_nanos(first.map_or(0, |first| gpu.at_ns - first.at_ns)).as_secs_f64(),
        nvlink: moved(|gpu| gpu.nvlink),
        pcie: pcie.flatten().or_else(|| moved(|gpu| gpu.pcie)),
        power_watts: watts(gpu.power),
        power_limit_watts: watts(gpu.power_limit),
        xids: own
            .map(|xid| XidReport {
                xid: xid.xid,
                seconds_ago: (uptime - xid.uptime).max(0.0),
                pid: xid.pid,
                text: xid.text.clone(),
            })
            .collect(),
        ..gpu.gpu.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(at_ns: u64, bus: u32, kib: u64) -> GpuReading {
        GpuReading {
            at_ns,
            gpu: GpuReport {
                index: bus,
                uuid: Some(format!("GPU-{bus}")),
                bus_id: Some(format!("0000:{bus:02x}:00.0")),
                ..GpuReport::default()
            },
            nvlink: Some([kib << 10, 0]),
            power: Some(700_500),
            ..GpuReading::default()
        }
    }

    #[test]
    fn traffic_is_what_came_between_and_errors_belong_to_their_gpu() {
        let (start, end) = (1_000_000_000, 2_000_000_000);
        let xid = |device: &str, uptime| KernelXid {
            xid: 79,
            device: device.to_owned(),
            pid: None,
            uptime,
            text: String::new(),
        };
        // The second GPU was not there at first; the third one's counter was reset.
        let readings = [
            vec![gpu(start, 0x3b, 10), gpu(start, 0xd8, 70)],
            vec![gpu(end, 0x3b, 14), gpu(end, 0x5e, 1), gpu(end, 0xd8, 1)],
        ];
        let xids = [xid("0000:3b:00", 90.0), xid("0000:ff:00", 91.0)];
        let reports = over("host", &readings, &xids, 100.0);
        let traffic: Vec<_> = reports.iter().map(|gpu| gpu.nvlink.map(Traffic::total)).collect();
        assert_eq!(traffic, [Some(4096), None, None]);
        assert!((reports[0].seconds - 1.0).abs() < 1e-9 && reports[1].seconds < 1e-9);
        assert_eq!(reports[0].power_watts, Some(700.5));
        assert_eq!(reports.iter().map(|gpu| gpu.xids.len()).collect::<Vec<_>>(), [1, 0, 0]);
        assert!((reports[0].xids[0].seconds_ago - 10.0).abs() < 1e-9);
    }
}
