//! Lines for people that nobody may read. A pipe that is full keeps whoever writes to it waiting, and the recording's
//! own thread has lines to say: a thread of its own writes them, and what it cannot get rid of is left out and counted.

use std::{
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, SyncSender, TrySendError},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::thread::CapabilitySet;

use crate::privileges;

/// Lines that wait to be written.
const WAITING: usize = 1024;

/// Writes lines, and keeps nobody waiting.
#[derive(Debug)]
pub(super) struct ToldLines {
    lines: SyncSender<String>,
    /// Lines that were taken and are not written yet.
    waiting: Arc<AtomicUsize>,
    /// Lines before the next one for which there was no room.
    left_out: AtomicUsize,
}

impl ToldLines {
    /// Starts the thread.
    pub(super) fn to(mut out: impl Write + Send + 'static) -> std::io::Result<Self> {
        let (lines, told) = mpsc::sync_channel::<String>(WAITING);
        let waiting = Arc::<AtomicUsize>::default();
        let written = Arc::clone(&waiting);
        thread::Builder::new().name("ncclflow-lines".to_owned()).spawn(move || {
            privileges::keep_only(CapabilitySet::empty());
            for line in told {
                // Nobody may be there to read it.
                let _ = out.write_all(line.as_bytes());
                written.fetch_sub(1, Ordering::Release);
            }
        })?;
        Ok(Self { lines, waiting, left_out: AtomicUsize::new(0) })
    }

    /// Has a line written, soon.
    pub(super) fn tell(&self, mut line: String) {
        let gap = self.left_out.swap(0, Ordering::Relaxed);
        if gap > 0 {
            line.insert_str(0, &format!("{gap} lines are left out here: nobody read them\n"));
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.lines.try_send(line) {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.left_out.fetch_add(gap + 1, Ordering::Relaxed);
        }
    }

    /// Waits until all lines are written, so long at most.
    pub(super) fn flush(&self, patience: Duration) {
        let begun = Instant::now();
        while self.waiting.load(Ordering::Acquire) > 0 && begun.elapsed() < patience {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, BufRead as _, BufReader};

    use super::*;

    #[test]
    fn who_tells_does_not_wait_for_who_reads_and_what_is_left_out_is_counted() {
        let (reader, writer) = io::pipe().unwrap();
        let lines = ToldLines::to(writer).unwrap();
        let begun = Instant::now();
        // More than a pipe and the queue hold.
        let long = "x".repeat(1000);
        for number in 0..10_000 {
            lines.tell(format!("{number} {long}\n"));
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
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
        lines.flush(Duration::from_secs(10));
        // Those that were left out are counted in the place where they are missing: before the next.
        lines.tell("10000 end\n".to_owned());
        lines.flush(Duration::from_secs(10));
        drop(lines);
        assert_eq!(reading.join().unwrap(), 10_001);
    }
}
