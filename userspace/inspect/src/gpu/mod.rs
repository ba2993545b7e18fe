//! Activity of the GPUs of this host, as their driver (NVML) and the kernel's log tell it.
//!
//! NVML is loaded at run time and never required. Its calls go into a driver that can hang, so a thread makes
//! them ([`GpuWatch`]). Callers wait for the thread no longer than they say, and give up one that does not
//! come back. A static program asks `/proc` and `nvidia-smi` instead (`source`). A [`GpuReport`] tells what
//! GPUs did between two readings. A GPU is known by its PCI address and its UUID; numbers differ from
//! container to container.

mod driver_files;
mod gpm;
mod kernel_log;
mod nvml;
mod reading;
mod report;
mod row;
mod samples;
mod source;
mod users;
mod watch;
mod without_nvml;
mod xid_events;

pub(crate) use driver_files::DriverFacts;
pub use driver_files::{bus_id, number_on_host};
pub use kernel_log::{KernelXid, kernel_xids};
pub use reading::{Activity, GpuProcess, GpuReading, Residency, Utilisation};
pub use report::over;
pub use report::{GpuReport, Traffic, XidReport};
pub use samples::{GpuSamples, GpuTotals};
pub use source::not_known;
pub use users::can_be_used_by;
pub use watch::{GpuSurvey, GpuWatch};

/// Environment variable that names another library than `libnvidia-ml.so.1`.
pub const LIBRARY_VARIABLE: &str = "NCCLFLOW_NVML";
