//! Processor time of threads that launch.

row! {
    /// A thread that launches collectives, or a proxy's that drives the network, over about a second. Of the
    /// rest of `period_ns` it slept.
    #[derive(Default, Eq)]
    pub struct LaunchThreadRow {
        /// When the thread was looked at, on `CLOCK_MONOTONIC`.
        "ts_ns": Measured "ns", ts_ns: u64;
        /// Time since the look before.
        "period_ns": Measured "ns", period_ns: u64;
        /// Host name, as in the ops of the process.
        "host": Identity, host: String;
        /// Process ID, as in the ops of the process.
        "pid": Identity, pid: u32;
        /// Thread ID, as in the calls of the thread.
        "tid": Identity, tid: u32;
        /// It is a proxy's. Its messages were measured.
        "proxy": Identity, #[serde(default)] is_proxy: bool;
        /// Time in which it ran.
        "ran_ns": Measured "ns", ran_ns: u64;
        /// Time in which it was ready to run and waited for a processor. The kernel counts a wait when it
        /// ends, so it can be longer than `period_ns`.
        "waited_ns": Measured "ns", waited_ns: u64;
        /// Periods of the limit of processor time of its cgroup, where there is one.
        "periods": Measured, #[serde(default)] periods: u64;
        /// Those in which the time was used up: the kernel stopped all threads until the next one.
        "throttled": Measured, #[serde(default)] throttled: u64;
    }
}
