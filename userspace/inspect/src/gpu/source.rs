//! Source of the readings: NVML; in a static program, which loads no library, `/proc` and `nvidia-smi`.

use std::{ffi::OsStr, time::Duration};

use super::{nvml::Nvml, reading::GpuReading, without_nvml::WithoutNvml};

/// Period at which NVML is asked. A query of a GPU takes it 1 to 2 ms.
const PERIOD: Duration = Duration::from_secs(1);
/// Period at which `nvidia-smi` is started. It takes some tenths of a second.
const PERIOD_OF_PROGRAM: Duration = Duration::from_secs(10);

/// Sentences that a static program says once of the GPUs.
const UNKNOWN: &str = "GPUs are unknown: this static build cannot load NVML; the packaged program can";
const ONLY_NAMES: &str =
    "of GPUs only the names are known: this static build cannot load NVML; the packaged program can";
const ONLY_PROGRAM: &str = "of GPUs is known what nvidia-smi says, neither traffic nor processes: this static build cannot \
                            load NVML; the packaged program can";

/// Returns a sentence on what is not known of this host's GPUs because of how this program was built.
pub fn not_known() -> Option<&'static str> {
    cfg!(target_feature = "crt-static").then(|| match WithoutNvml::find() {
        None => UNKNOWN,
        Some(without) if without.asks_program() => ONLY_PROGRAM,
        Some(_) => ONLY_NAMES,
    })
}

pub(super) enum Source {
    Nvml(Box<Nvml>),
    WithoutNvml(WithoutNvml),
}

impl Source {
    /// Finds the source.
    ///
    /// # Errors
    /// A sentence on why there is none.
    pub(super) fn open(library: &OsStr) -> Result<Self, String> {
        if cfg!(target_feature = "crt-static") {
            WithoutNvml::find().map(Self::WithoutNvml).ok_or_else(|| UNKNOWN.to_owned())
        } else {
            Nvml::open(library).map(|nvml| Self::Nvml(Box::new(nvml)))
        }
    }

    /// Reads all GPUs that can be read.
    pub(super) fn read(&mut self) -> Vec<GpuReading> {
        match self {
            Self::Nvml(nvml) => nvml.read(),
            Self::WithoutNvml(without) => without.read(),
        }
    }

    /// Has the errors of GPUs kept from now on.
    pub(super) fn watch_xids(&mut self) {
        match self {
            Self::Nvml(nvml) => nvml.watch_xids(),
            Self::WithoutNvml(_) => {}
        }
    }

    /// Returns the time from the latest reading to the next.
    pub(super) fn period(&self) -> Duration {
        match self {
            Self::WithoutNvml(without) if !without.has_more() => PERIOD_OF_PROGRAM,
            Self::WithoutNvml(_) | Self::Nvml(_) => PERIOD,
        }
    }
}
