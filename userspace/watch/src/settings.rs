//! Settings of the alerts.

use std::time::Duration;

/// Iterations for which a communicator may stand.
const ITERATIONS: u32 = 5;

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Shortest time for which a communicator stands before that is a hang.
    pub least: Duration,
    /// Time after which ranks that wait for one that is busy elsewhere count as hung.
    pub waiting_limit: Duration,
    /// Shortest time between the beginnings of two alerts of one job.
    pub between_alerts: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            least: Duration::from_secs(10),
            // A minute before torch's own watchdog ends the job, with the evidence.
            waiting_limit: Duration::from_mins(9),
            between_alerts: Duration::from_mins(1),
        }
    }
}

impl Settings {
    /// Returns the time for which a communicator of this usual iteration may stand.
    pub(crate) fn limit(&self, usual: Option<Duration>) -> Duration {
        self.least.max(usual.unwrap_or_default() * ITERATIONS)
    }
}
