//! Lines for people that nobody may read. A full pipe blocks whoever writes to it, and the recording's own
//! thread tells lines: a separate thread writes them, and leaves out and counts what it cannot get rid of.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{self, SyncSender, TrySendError},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::thread::CapabilitySet;

use inspect::privileges;

/// Most lines that wait to be written.
const WAITING: usize = 1024;

/// Writes lines, and keeps nobody waiting.
#[derive(Debug)]
pub(super) struct ToldLines {
    lines: SyncSender<String>,
    /// Lines that were taken, and those that were written.
    taken: AtomicUsize,
    written: Arc<AtomicUsize>,
    /// Lines left out before the next one.
    left_out: AtomicUsize,
    /// Milliseconds that the sender of a line waits for the reader, as long as lines are read.
    patience_ms: AtomicU64,
}

impl ToldLines {
    /// Starts the thread.
    pub(super) fn to(mut out: impl Write + Send + 'static) -> io::Result<Self> {
        let (lines, told) = mpsc::sync_channel::<String>(WAITING);
        let written = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&written);
        thread::Builder::new().name("ncclflow-lines".to_owned()).spawn(move || {
            privileges::keep_only(CapabilitySet::empty());
            for line in told {
                // Nobody may be there to read it.
                let _ = out.write_all(line.as_bytes());
                count.fetch_add(1, Ordering::Release);
            }
        })?;
        let (taken, left_out) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Ok(Self { lines, taken, written, left_out, patience_ms: AtomicU64::new(0) })
    }

    /// Has a line written, soon.
    pub(super) fn tell(&self, line: String) {
        match self.left_out.swap(0, Ordering::Relaxed) {
            0 => self.send(line, 1),
            gap => self.send(left_out(gap) + &line, gap + 1),
        }
    }

    /// `stands_for`: as many lines are left out where there is no room for it.
    fn send(&self, mut line: String, stands_for: usize) {
        let mut seen = self.seen();
        loop {
            self.taken.fetch_add(1, Ordering::Relaxed);
            let Err(TrySendError::Full(back) | TrySendError::Disconnected(back)) = self.lines.try_send(line)
            else {
                return;
            };
            self.taken.fetch_sub(1, Ordering::Relaxed);
            let patience = Duration::from_millis(self.patience_ms.load(Ordering::Relaxed));
            if !self.goes_on(&mut seen, patience) {
                self.patience_ms.store(0, Ordering::Relaxed);
                self.left_out.fetch_add(stands_for, Ordering::Relaxed);
                return;
            }
            line = back;
        }
    }

    /// Lets senders of lines wait for the reader from now on, as nothing else goes on: while lines are read,
    /// and so long after the last one.
    pub(super) fn wait_for_readers(&self, patience: Duration) {
        let patience = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        self.patience_ms.store(patience, Ordering::Relaxed);
    }

    /// Waits until all lines are written: while lines are read, and so long after the last one.
    pub(super) fn flush(&self, patience: Duration) {
        let gap = self.left_out.swap(0, Ordering::Relaxed);
        if gap > 0 {
            self.wait_for_readers(patience);
            self.send(left_out(gap), gap);
        }
        let mut seen = self.seen();
        while self.written.load(Ordering::Acquire) < self.taken.load(Ordering::Relaxed)
            && self.goes_on(&mut seen, patience)
        {}
    }

    /// Returns how many lines are written now.
    fn seen(&self) -> (usize, Instant) {
        (self.written.load(Ordering::Relaxed), Instant::now())
    }

    /// Waits a moment. `false`: nothing was read for so long since `seen`, which follows the reader.
    fn goes_on(&self, seen: &mut (usize, Instant), patience: Duration) -> bool {
        let now = self.seen();
        if now.0 != seen.0 {
            *seen = now;
        }
        if seen.1.elapsed() >= patience {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
        true
    }
}

fn left_out(count: usize) -> String {
    format!("{count} lines are left out here: nobody read them\n")
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};

    use super::*;

    /// Enough for readers that a busy machine keeps from reading.
    const PATIENCE: Duration = Duration::from_mins(1);

    #[test]
    fn who_tells_does_not_wait_for_who_reads_and_what_is_left_out_is_counted() {
        let (reader, writer) = io::pipe().unwrap();
        let lines = ToldLines::to(writer).unwrap();
        let begun = Instant::now();
        // More than a pipe and the queue hold, and so many that a millisecond for each would be seen.
        let long = "x".repeat(1000);
        for number in 0..40_000 {
            lines.tell(format!("{number} {long}\n"));
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        lines.flush(Duration::from_millis(10));
        let reading = thread::spawn(move || {
            let mut next = 0_u32;
            for line in BufReader::new(reader).lines() {
                let line = line.unwrap();
                let (first, rest) = line.split_once(' ').unwrap();
                let number: u32 = first.parse().unwrap();
                if rest.starts_with("lines are left out here") {
                    next += number;
                } else {
                    assert_eq!(number, next, "none is missing unsaid");
                    next += 1;
                }
            }
            next
        });
        lines.flush(PATIENCE);
        // Lines that were left out are counted where they are missing: before the next.
        lines.tell("40000 end\n".to_owned());
        lines.flush(PATIENCE);
        drop(lines);
        assert_eq!(reading.join().unwrap(), 40_001);
    }

    #[test]
    fn at_the_end_who_reads_slowly_gets_every_line() {
        let (reader, writer) = io::pipe().unwrap();
        let lines = ToldLines::to(writer).unwrap();
        let reading = thread::spawn(move || {
            let lines = BufReader::with_capacity(4096, reader).lines();
            lines.inspect(|_| thread::sleep(Duration::from_micros(100))).count()
        });
        lines.wait_for_readers(PATIENCE);
        for number in 0..5000 {
            lines.tell(format!("{number} {}\n", "x".repeat(100)));
        }
        lines.flush(PATIENCE);
        drop(lines);
        assert_eq!(reading.join().unwrap(), 5000);
    }

    #[test]
    fn what_was_left_out_last_is_told_too() {
        let (reader, writer) = io::pipe().unwrap();
        let lines = ToldLines::to(writer).unwrap();
        for _ in 0..10_000 {
            lines.tell("x".repeat(1000) + "\n");
        }
        let reading = thread::spawn(move || BufReader::new(reader).lines().last().unwrap().unwrap());
        lines.flush(PATIENCE);
        drop(lines);
        let last = reading.join().unwrap();
        assert!(last.ends_with("lines are left out here: nobody read them"), "{last}");
    }
}
