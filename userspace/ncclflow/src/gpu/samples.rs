//! What the GPUs do, once a second, for recordings, metrics and `top`.

use std::{
    collections::{BTreeMap, VecDeque},
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
use crate::{clock::now_ns, host::host_name, privileges};

/// A driver that has not answered for so long is said to hang.
const PATIENCE: Duration = Duration::from_secs(10);

/// Loading the driver's library keeps every thread that starts waiting (glibc has one lock for both). On a host with H200s
/// attaching took 10 ms longer. So it is loaded when the probes are armed, but no later than this.
const LATEST_BEGINNING: Duration = Duration::from_secs(1);

/// Rows that are kept for whoever writes them. They take what comes every few seconds.
const MAX_ROWS: usize = 4096;

/// Rows of the GPUs of this host. The driver is asked by a thread that nobody waits for: it can be lost in it.
#[derive(Clone, Debug, Default)]
pub struct GpuSamples {
    shared: Arc<Mutex<Shared>>,
    /// Has the thread begin. It ends when nobody has this any more.
    begin: Option<Arc<Sender<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The number of the first of `rows`.
    first: u64,
    rows: VecDeque<Arc<GpuRow>>,
    /// Rows of the latest reading: the last so many of `rows`.
    latest: usize,
    /// What was added up since the first reading, by the number of the GPU.
    totals: BTreeMap<u32, GpuTotals>,
    /// When the driver was asked what it has not answered yet.
    asked: Option<Instant>,
    /// Why there is nothing.
    missing: Option<String>,
}

/// What a GPU did since it was first asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuTotals {
    pub nvlink: Traffic,
    pub pcie: Traffic,
    pub xids: u64,
}

impl GpuSamples {
    /// Asks from [`Self::begin`] on, or from a second later on. A host without NVIDIA's driver has no rows, and nothing is
    /// asked there again.
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

    /// The probes are armed: nothing waits any more for what loading the driver's library delays.
    pub(crate) fn begin(&self) {
        if let Some(begin) = &self.begin {
            let _ = begin.send(());
        }
    }

    /// The rows from the number `first` on, and the number that is next.
    pub(crate) fn since(&self, first: u64) -> (Vec<Arc<GpuRow>>, u64) {
        with(&self.shared, |shared| {
            let passed = usize::try_from(first.saturating_sub(shared.first)).unwrap_or(usize::MAX);
            (shared.rows.iter().skip(passed).cloned().collect(), shared.next())
        })
    }

    /// The number that the next row will have.
    pub(crate) fn next(&self) -> u64 {
        with(&self.shared, |shared| shared.next())
    }

    /// The latest row of each GPU.
    pub fn latest(&self) -> Vec<Arc<GpuRow>> {
        with(&self.shared, |shared| {
            let old = shared.rows.len().saturating_sub(shared.latest);
            if shared.hangs() { Vec::new() } else { shared.rows.iter().skip(old).cloned().collect() }
        })
    }

    /// What each GPU did since it was first asked, by its number.
    pub fn totals(&self) -> BTreeMap<u32, GpuTotals> {
        with(&self.shared, |shared| shared.totals.clone())
    }

    /// Why there are no rows, or no newer ones.
    pub fn missing(&self) -> Option<String> {
        with(&self.shared, |shared| {
            let hangs = shared.hangs().then(|| "the GPUs' driver does not answer".to_owned());
            hangs.or_else(|| shared.missing.clone())
        })
    }

    /// Those of a driver that has answered this.
    #[cfg(test)]
    pub(crate) fn of_rows(rows: impl IntoIterator<Item = GpuRow>) -> Self {
        let samples = Self::default();
        samples.answer(rows);
        samples
    }

    /// The driver has answered this, too.
    #[cfg(test)]
    pub(crate) fn answer(&self, rows: impl IntoIterator<Item = GpuRow>) {
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

impl Shared {
    fn next(&self) -> u64 {
        self.first + self.rows.len() as u64
    }

    fn hangs(&self) -> bool {
        self.asked.is_some_and(|asked| asked.elapsed() > PATIENCE)
    }

    fn push(&mut self, rows: Vec<GpuRow>) {
        self.latest = rows.len();
        for row in &rows {
            self.totals.entry(row.gpu).or_default().add(row);
        }
        self.rows.extend(rows.into_iter().map(Arc::new));
        while self.rows.len() > MAX_ROWS {
            self.rows.pop_front();
            self.first += 1;
        }
    }
}

fn with<T>(shared: &Mutex<Shared>, work: impl FnOnce(&mut Shared) -> T) -> T {
    work(&mut shared.lock().unwrap_or_else(PoisonError::into_inner))
}

fn sample(shared: &Mutex<Shared>, begun: &Receiver<()>, host: &str) {
    with(shared, |shared| shared.asked = Some(Instant::now()));
    let opened = Source::open(&library());
    with(shared, |shared| shared.asked = None);
    let mut source = match opened {
        Ok(source) => source,
        Err(why) => return with(shared, |shared| shared.missing = Some(why)),
    };
    with(shared, |shared| shared.asked = Some(Instant::now()));
    source.watch_xids();
    let mut before = Vec::new();
    loop {
        let asked = Instant::now();
        with(shared, |shared| shared.asked = Some(asked));
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
                // It was late.
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

    /// Whoever asks a driver that hangs is told so, and not an old number.
    #[test]
    fn a_driver_that_hangs_has_no_latest_rows() {
        let samples = GpuSamples::of_rows([row(0, 1)]);
        let long_ago = Instant::now().checked_sub(PATIENCE + Duration::from_secs(1)).unwrap();
        with(&samples.shared, |shared| shared.asked = Some(long_ago));
        assert!(samples.latest().is_empty());
        assert!(samples.missing().unwrap().contains("does not answer"));
    }
}
