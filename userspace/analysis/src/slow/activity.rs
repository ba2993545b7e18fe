//! Activity of a rank's GPU while its job ran.

use flow::schema::GpuRow;

use super::thinned::Thinned;

/// Most samples of a GPU that are kept; then every second one goes.
const MAX_SAMPLES: usize = 1 << 14;

/// What a GPU did over about a second, in percent of that time.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Wall time at its end.
    wall_ns: u64,
    values: [Option<f64>; MEASURES],
}

/// Number of [`Measure`]s.
const MEASURES: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// A kernel ran, also one of NCCL that waits (GPM).
    Graphics,
    /// Share of multiprocessors with a warp (GPM).
    Multiprocessors,
    /// Tensor cores (GPM).
    Tensor,
    /// Memory (GPM).
    Memory,
    /// A kernel ran in the driver's last period (all GPUs): coarser than `Graphics`.
    Utilization,
}

/// Samples of a GPU, in the order of time.
#[derive(Clone, Debug)]
pub(super) struct Activity(Thinned<Sample>);

impl Default for Activity {
    fn default() -> Self {
        Self(Thinned::new(MAX_SAMPLES))
    }
}

/// Mean of a measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mean {
    pub(super) percent: f64,
    /// Standard error.
    pub(super) error: f64,
}

impl Activity {
    pub(super) fn add(&mut self, row: &GpuRow, wall_ns: u64) {
        let values = [
            row.graphics_active_percent,
            row.sm_active_percent,
            row.tensor_active_percent,
            row.dram_active_percent,
            row.sm_percent.map(f64::from),
        ];
        self.0.add(Sample { wall_ns, values });
    }

    /// Returns the mean of a measure over samples that lie within this wall time; `None` if there are fewer
    /// than two.
    pub(super) fn mean(&self, measure: Measure, (from_ns, until_ns): (u64, u64)) -> Option<Mean> {
        // The first sample within covers time before it.
        let within =
            self.0.values.iter().filter(|sample| (from_ns..=until_ns).contains(&sample.wall_ns)).skip(1);
        let values: Vec<f64> =
            within.filter_map(|sample| sample.values.get(measure as usize).copied().flatten()).collect();
        Mean::of(&values)
    }
}

impl Mean {
    /// Returns it of all, where one of so many was taken.
    #[expect(clippy::cast_precision_loss, reason = "a share, for people")]
    pub(super) fn times(self, stride: u64) -> Self {
        Self { percent: (self.percent * stride as f64).min(100.0), error: self.error * stride as f64 }
    }

    /// `None`: there are fewer than two values.
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        if values.len() < 2 {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "some thousand samples")]
        let n = values.len() as f64;
        let percent = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - percent).powi(2)).sum();
        Some(Self { percent, error: (squares / (n - 1.0) / n).sqrt() })
    }
}
