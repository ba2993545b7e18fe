//! Readings of the GPUs once a second, for recordings, metrics and `top`.

use crate::{
    clock::now_ns,
    host::host_name,
    privileges,
    unresponsive::{Asked, Whom},
};
use recording::format::{Facts, LatestFacts};
use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use flow::schema::GpuRow;
use rustix::{thread::CapabilitySet, time::ClockId};

use super::{report::Traffic, row::row_of, source::Source, watch::library};

/// Time without an answer after which the driver is said to hang.
const PATIENCE: Duration = Duration::from_secs(10);

/// Delay after which the driver's library is loaded at the latest. Loading it keeps every thread that starts
/// waiting (glibc has one lock for both): on a host with H200s attaching took 10 ms longer. So it is loaded
/// once the probes are armed, but no later than this.
const LATEST_BEGINNING: Duration = Duration::from_secs(1);

/// Maximum number of rows that are kept for those who write them, who take them every few seconds.
const MAX_ROWS: usize = 4096;

/// Rows of the GPUs of this host. A thread of its own asks the driver, because it can be lost in it; nobody
/// waits for the thread.
#[derive(Clone, Debug, Default)]
pub struct GpuSamples {
    shared: Arc<Mutex<Shared>>,
    /// Tells the thread to begin. The thread ends when no copy of this is left.
    begin: Option<Arc<Sender<()>>>,
}

#[derive(Debug)]
struct Shared {
    rows: LatestFacts<Arc<GpuRow>>,
    /// Number of rows of the latest reading, which are the last of `rows`.
    latest: usize,
    /// Sums since the first reading, by the number of the GPU.
    totals: BTreeMap<u32, GpuTotals>,
    /// The question that the driver has not answered yet.
    asked: Option<Asked>,
    /// Reason why there are no rows.
    missing: Option<String>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            rows: LatestFacts::new(MAX_ROWS),
            latest: 0,
            totals: BTreeMap::new(),
            asked: None,
            missing: None,
        }
    }
}

/// Sums over the rows of a GPU since it was first asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuTotals {
    pub nvlink: Traffic,
    pub pcie: Traffic,
    pub xids: u64,
}

impl GpuSamples {
    /// Starts the thread, which asks from [`Self::begin`] on, or from a second later on. A host without
    /// NVIDIA's driver has no rows, and is not asked again.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start() -> io::Result<Self> {
        let (begin, begun) = mpsc::channel();
        let shared = Arc::<Mutex<Shared>>::default();
        let of_thread = Arc::clone(&shared);
        thread::Builder::new().name("ncclflow-gpus".to_owned()).spawn(move || {
            privileges::keep_only(CapabilitySet::empty());
            match begun.recv_timeout(LATEST_BEGINNING) {
                Ok(()) | Err(RecvTimeoutError::Timeout) => sample(&of_thread, &begun, &host_name()),
                Err(RecvTimeoutError::Disconnected) => {}
            }
        })?;
        Ok(Self { shared, begin: Some(Arc::new(begin)) })
    }

    /// Tells the thread that the probes are armed: nothing waits any more for what loading the driver's
    /// library delays.
    pub fn begin(&self) {
        if let Some(begin) = &self.begin {
            let _ = begin.send(());
        }
    }

    /// Returns the latest row of each GPU; none while the driver hangs.
    pub fn latest(&self) -> Vec<Arc<GpuRow>> {
        with(&self.shared, |shared| if shared.hangs() { Vec::new() } else { shared.rows.last(shared.latest) })
    }

    /// Returns the sums of each GPU since it was first asked, by its number.
    pub fn totals(&self) -> BTreeMap<u32, GpuTotals> {
        with(&self.shared, |shared| shared.totals.clone())
    }

    /// Returns the reason why there are no rows, or no newer ones.
    pub fn missing(&self) -> Option<String> {
        with(&self.shared, |shared| {
            let hangs = shared.hangs().then(|| "the GPUs' driver does not answer".to_owned());
            hangs.or_else(|| shared.missing.clone())
        })
    }

    /// Makes the samples of a driver that has answered these rows.
    #[cfg(any(test, feature = "made"))]
    pub fn of_rows(rows: impl IntoIterator<Item = GpuRow>) -> Self {
        let samples = Self::default();
        samples.answer(rows);
        samples
    }

    /// Adds these rows as another answer of the driver.
    #[cfg(any(test, feature = "made"))]
    pub fn answer(&self, rows: impl IntoIterator<Item = GpuRow>) {
        with(&self.shared, |shared| shared.push(rows.into_iter().collect()));
    }
}

impl GpuTotals {
    fn add(&mut self, row: &GpuRow) {
        let add = |total: &mut u64, bytes: Option<u64>| *total = total.saturating_add(bytes.unwrap_or(0));
        add(&mut self.nvlink.sent, row.nvlink_sent);
        add(&mut self.nvlink.received, row.nvlink_received);
        add(&mut self.pcie.sent, row.pcie_sent);
        add(&mut self.pcie.received, row.pcie_received);
        self.xids = self.xids.saturating_add(row.xids.len() as u64);
    }
}

impl Facts<Arc<GpuRow>> for GpuSamples {
    fn since(&self, first: u64) -> (Vec<Arc<GpuRow>>, u64) {
        with(&self.shared, |shared| shared.rows.since(first))
    }
}

impl Shared {
    fn hangs(&self) -> bool {
        // Of a thread that has no processor the driver is not to blame.
        self.asked.as_ref().is_some_and(|asked| asked.asleep() > PATIENCE)
    }

    fn push(&mut self, rows: Vec<GpuRow>) {
        self.latest = rows.len();
        for row in &rows {
            self.totals.entry(row.gpu).or_default().add(row);
        }
        for row in rows {
            self.rows.push(Arc::new(row));
        }
    }
}

fn with<T>(shared: &Mutex<Shared>, work: impl FnOnce(&mut Shared) -> T) -> T {
    work(&mut shared.lock().unwrap_or_else(PoisonError::into_inner))
}

fn sample(shared: &Mutex<Shared>, begun: &Receiver<()>, host: &str) {
    let ask = || {
        let asked = Asked::now(Whom::this_thread());
        with(shared, |shared| shared.asked = Some(asked));
    };
    ask();
    let opened = Source::open(&library());
    with(shared, |shared| shared.asked = None);
    let mut source = match opened {
        Ok(source) => source,
        Err(why) => return with(shared, |shared| shared.missing = Some(why)),
    };
    ask();
    source.watch_xids();
    let mut before = Vec::new();
    loop {
        let asked = Instant::now();
        ask();
        let ts_ns = now_ns(ClockId::Monotonic);
        let gpus = source.read();
        let rows = gpus.iter().map(|gpu| row_of(gpu, &before, host, ts_ns)).collect();
        with(shared, |shared| {
            shared.asked = None;
            shared.push(rows);
        });
        before = gpus;
        let next = asked + source.period();
        loop {
            match begun.recv_timeout(next.saturating_duration_since(Instant::now())) {
                // `begin` came after the latest beginning.
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(gpu: u32, ts_ns: u64) -> GpuRow {
        GpuRow { gpu, ts_ns, ..GpuRow::default() }
    }

    #[test]
    fn whoever_lags_gets_what_is_kept_and_each_row_once() {
        let samples = GpuSamples::of_rows([row(0, 1), row(1, 1)]);
        let (first, next) = samples.since(0);
        assert_eq!((first.len(), next), (2, 2));
        assert_eq!(samples.since(next).0, []);
        with(&samples.shared, |shared| shared.push(vec![row(0, 2), row(1, 2)]));
        let (second, next) = samples.since(next);
        assert_eq!(second.iter().map(|row| row.ts_ns).collect::<Vec<_>>(), [2, 2]);
        for second in 3..10_000 {
            with(&samples.shared, |shared| shared.push(vec![row(0, second)]));
        }
        let (rest, after) = samples.since(next);
        assert_eq!((rest.len(), after), (MAX_ROWS, next + 9997));
        assert_eq!(samples.latest().iter().map(|row| row.ts_ns).collect::<Vec<_>>(), [9999]);
    }

    /// A driver that hangs yields an error, and not an old number.
    #[test]
    fn a_driver_that_hangs_has_no_latest_rows() {
        let samples = GpuSamples::of_rows([row(0, 1)]);
        let long_ago = Instant::now().checked_sub(PATIENCE + Duration::from_secs(1)).unwrap();
        with(&samples.shared, |shared| shared.asked = Some(Asked::asleep_since(long_ago)));
        assert!(samples.latest().is_empty());
        assert!(samples.missing().unwrap().contains("does not answer"));
    }
}
