//! What the tracer takes while nothing new comes.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{
    check::Checks,
    tracer::{Tracer, forks},
};

/// Of a core, in thousandths. A tracer that was built for tests takes some four times what a release does (0.1 %).
const SHARE: u32 = if cfg!(debug_assertions) { 10 } else { 5 };
/// Processor time for each process that somebody starts meanwhile.
const SHARE_BY_ONE: Duration = Duration::from_millis(5);
/// Times a second that a thread is woken: it wakes itself five times, and a machine is never quite quiet. A loop that wakes for
/// nothing would be far above; what matters to the host is the time.
const WOKEN: f64 = 8.0;
/// Wakes for each process that somebody starts: it is looked at, again while it grows, and a child is asked for it.
const WOKEN_BY_ONE: f64 = 4.0;
/// New processes a second of others above which the machine is not quiet.
const OTHERS: u64 = 2;
/// The machine can take the processor, or the pages of the program, from who runs: that costs processor time, too. What the
/// tracer does by itself is in each of so many measurements.
const MEASUREMENTS: u32 = 3;

/// One measurement.
#[derive(Debug)]
pub(crate) struct Idle {
    time: Duration,
    used: Duration,
    woken: u64,
    /// Processes that somebody started.
    others: u64,
}

impl Idle {
    /// Measures for so long, and again if the tracer was not idle.
    pub(crate) fn of(tracer: &Tracer, time: Duration) -> Self {
        let mut idle = Self::measure(tracer, time);
        for _ in 1..MEASUREMENTS {
            if idle.is_quiet() && idle.is_little_used() && idle.is_seldom_woken() {
                break;
            }
            idle = Self::measure(tracer, time);
        }
        idle
    }

    fn measure(tracer: &Tracer, time: Duration) -> Self {
        let (used, woken, others, since) =
            (tracer.processor_time(), tracer.sleeps(), forks(), Instant::now());
        thread::sleep(time);
        Self {
            time: since.elapsed(),
            used: tracer.processor_time().saturating_sub(used),
            woken: tracer.sleeps().saturating_sub(woken),
            others: forks().saturating_sub(others),
        }
    }

    fn is_quiet(&self) -> bool {
        self.others <= OTHERS * self.time.as_secs()
    }

    fn most_used(&self) -> Duration {
        self.time * SHARE / 1000 + SHARE_BY_ONE * u32::try_from(self.others).unwrap_or(u32::MAX)
    }

    fn is_little_used(&self) -> bool {
        self.used <= self.most_used()
    }

    #[expect(clippy::cast_precision_loss, reason = "some hundreds")]
    fn a_second(&self, count: u64) -> f64 {
        count as f64 / self.time.as_secs_f64()
    }

    fn most_woken(&self) -> f64 {
        WOKEN + WOKEN_BY_ONE * self.a_second(self.others)
    }

    fn is_seldom_woken(&self) -> bool {
        self.a_second(self.woken) <= self.most_woken()
    }

    pub(crate) fn check(&self, checks: &mut Checks) {
        let percent = |time: Duration| time.as_secs_f64() * 100.0 / self.time.as_secs_f64();
        let used = format!("{:.2} % of a core", percent(self.used));
        let woken = format!("{:.1} a second", self.a_second(self.woken));
        if self.is_quiet() {
            let most = format!("≤ {:.2} %", percent(self.most_used()));
            checks.add("processor time, idle", used, most, self.is_little_used());
            checks.add("woken, idle", woken, format!("≤ {:.1}", self.most_woken()), self.is_seldom_woken());
        } else {
            let why = format!("others started {} processes meanwhile", self.others);
            checks.unknown("processor time, idle", used, &why);
            checks.unknown("woken, idle", woken, why);
        }
    }
}
