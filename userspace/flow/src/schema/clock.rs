//! The clocks of a session.

use std::borrow::Cow;

row! {
    /// Both clocks, read together when the session began.
    #[derive(Default)]
    pub struct ClockReport {
        /// The clock of all times of the recording's lines.
        "clock": Identity, clock: Cow<'static, str>;
        /// When the session began.
        "started_monotonic_ns": Measured "ns", #[serde(default)] started_monotonic_ns: u64;
        /// When the session began, as Unix time.
        "started_realtime_ns": Measured "ns", #[serde(default)] started_realtime_ns: u64;
        /// Offset to add to the times of lines for wall time.
        "offset_ns": Derived "ns", #[serde(default)] offset_ns: u64;
        /// When the session ended; `null`: it has not, or was killed.
        "ended_monotonic_ns": Measured "ns", #[serde(default)] ended_monotonic_ns: Option<u64>;
    }
}
