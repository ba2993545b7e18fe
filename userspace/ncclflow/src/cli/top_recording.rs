//! `ncclflow top --recording DIR`: the same view of a recording: of all of it when it is over, or of its
//! latest moments while it is written.

use std::{
    ops::ControlFlow,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use rustix::time::ClockId;

use super::{
    progress::reading,
    top::{TopArgs, Watched, follow, print_once, show},
};
use crate::views::top::{Snapshot, Subject, WatchedProcess};
use analysis::export::Source;
use flow::{
    session::{SessionReport, TargetReport},
    text::joined,
};
use inspect::clock::now_ns;
use recording::{format::Progress, rows::WatchedRecording, sinks::LiveStatistics};
use trace::record::StopHandle;

/// Nanoseconds before its end from which an unfinished recording is read.
const TAIL_NS: u64 = 10_000_000_000;

/// Time that a block can take to be written, and some more.
const SILENCE: Duration = Duration::from_secs(5);

pub(super) fn watch(args: &TopArgs, path: &Path, stop: &StopHandle) -> Result<()> {
    let source = Source::look(path.to_path_buf())?;
    let (first_ns, last_ns) = source.span_ns.unwrap_or_default();
    let from_ns = if source.is_over { first_ns } else { last_ns.saturating_sub(TAIL_NS).max(first_ns) };
    let live = LiveStatistics::default();
    let recording = WatchedRecording::open(path, from_ns, live.clone())?;
    let subject = subject(source.session());
    let mut view = View { recording, live, subject, at_ns: from_ns, grown: Instant::now(), note: None };
    reading("", |line| {
        while !stop.is_stopped() && view.read_next()? {
            line.bytes(view.recording.reader.position(), source.bytes);
        }
        Ok(())
    })?;
    if stop.is_stopped() {
        return Ok(());
    }
    let before = Snapshot { at_ns: from_ns, ..Snapshot::default() };
    if args.once { view.once(args, before, stop) } else { show(&mut view, Some(before), args, stop) }
}

/// Takes host, level and processes out of the session's report.
fn subject(session: &SessionReport) -> Subject {
    let version = |index: &usize| session.libraries.get(*index)?.nccl_version;
    let process = |target: &TargetReport| {
        let versions = joined(target.libraries.iter().filter_map(version), ",");
        (target.pid, WatchedProcess::new(target.pid, &target.name, versions, target.whose.as_ref()))
    };
    Subject {
        host: session.host.clone(),
        level: session.level,
        processes: session.targets.iter().map(process).collect(),
    }
}

struct View {
    recording: WatchedRecording,
    live: LiveStatistics,
    subject: Subject,
    /// End of what is known, by the records' clock.
    at_ns: u64,
    /// Time of the latest new block.
    grown: Instant,
    /// Damage or silence at the latest snapshot.
    note: Option<String>,
}

impl View {
    /// Reads the next block. `false`: nothing more is there now.
    fn read_next(&mut self) -> Result<bool> {
        let processes = &mut self.subject.processes;
        let progress = self.recording.read_next(&mut |process| {
            processes.entry(process.pid).or_insert_with(|| {
                WatchedProcess::new(process.pid, &process.name, String::new(), Some(&process.whose))
            });
        })?;
        Ok(progress == Progress::Read)
    }

    /// Prints a table: of the whole recording, or, while it is written, of the next moments.
    fn once(&mut self, args: &TopArgs, mut before: Snapshot, stop: &StopHandle) -> Result<()> {
        if !self.recording.is_over {
            tell!(
                "it is still being written, or was cut off; watching for {} s",
                args.interval.as_secs_f64()
            );
            before = self.snapshot();
        }
        let earlier = follow(self, &before, args.interval, stop)?;
        let now = self.snapshot();
        print_once(args, &self.subject, [&before, &earlier, &now], self.note())
    }

    /// Returns a note on damage or silence.
    fn note(&self) -> Option<String> {
        let damage = self.recording.reader.damage();
        if damage.blocks + damage.bytes > 0 {
            return Some(format!("{} blocks and {} bytes are damaged", damage.blocks, damage.bytes));
        }
        (!self.recording.is_over && self.grown.elapsed() > SILENCE)
            .then(|| format!("nothing new for {} s", self.grown.elapsed().as_secs()))
    }
}

impl Watched for View {
    /// Reads what is new; in a recording that is over there is nothing.
    fn read_on(&mut self, wait: Duration) -> Result<ControlFlow<()>> {
        thread::sleep(wait);
        while !self.recording.is_over && self.read_next()? {
            self.grown = Instant::now();
        }
        Ok(ControlFlow::Continue(()))
    }

    fn is_over(&self) -> bool {
        self.recording.is_over
    }

    /// Returns what is known now: until the latest record, or, where nothing comes, until now.
    fn snapshot(&mut self) -> Snapshot {
        let last_ns = self.recording.pipeline.last_ns;
        self.at_ns = if last_ns > self.at_ns || self.recording.is_over {
            last_ns.max(self.at_ns)
        } else {
            now_ns(ClockId::Monotonic).max(self.at_ns)
        };
        self.note = self.note();
        Snapshot { at_ns: self.at_ns, statistics: self.live.read(), gpus: Vec::new() }
    }

    fn subject(&self) -> &Subject {
        &self.subject
    }

    fn line(&self) -> Option<String> {
        self.note.clone()
    }
}
