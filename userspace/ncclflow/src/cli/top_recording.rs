//! `ncclflow top --recording DIR`: the same view of a recording: of all of it when it is over, or of its
//! latest moments while it is written.

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use rustix::time::ClockId;

use super::{
    progress::reading,
    top::{TopArgs, Watched, follow, print_once, show},
    whom::MAX_NAMED,
};
use crate::views::top::{LEAST_NS, ShownRecording, Snapshot, Subject, WatchedProcess};
use analysis::export::{Source, recordings_in, utc_minute};
use flow::{
    session::{SessionReport, TargetReport},
    text::{ago, joined},
};
use inspect::clock::now_ns;
use recording::{format::Progress, rows::WatchedRecording, sinks::LiveStatistics};
use trace::record::StopHandle;

/// Nanoseconds before its end from which an unfinished recording is read.
const TAIL_NS: u64 = 10_000_000_000;

/// Time that a block can take to be written, and some more.
const SILENCE: Duration = Duration::from_secs(5);

pub(super) fn watch(args: &TopArgs, path: &Path, stop: &StopHandle) -> Result<()> {
    let windows = recordings_in(path)?;
    if windows.iter().all(|window| window != path) {
        bail!("{}", choose_one(path, &windows));
    }
    let source = Source::look(path.to_path_buf())?;
    let (first_ns, last_ns) = source.span_ns.unwrap_or_default();
    let from_ns = if source.is_over { first_ns } else { last_ns.saturating_sub(TAIL_NS).max(first_ns) };
    let live = LiveStatistics::default();
    let recording = WatchedRecording::open(path, from_ns, live.clone())?;
    let begun = source.wall_span_ns().map(|(first, _)| utc_minute(first));
    let subject = subject(source.session(), begun.unwrap_or_default());
    let mut view = View { recording, live, subject, at_ns: from_ns, grown: Instant::now() };
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

/// Says that a folder has several recordings, and which.
fn choose_one(folder: &Path, recordings: &[PathBuf]) -> String {
    let names = recordings.iter().take(MAX_NAMED).map(|path| format!("`{}`", path.display()));
    let more = if recordings.len() > MAX_NAMED { " …" } else { "" };
    format!("`{}` is a folder of recordings; give one of {}{more}", folder.display(), joined(names, ", "))
}

/// Takes host, level and processes out of the session's report. `begun`: when the recording begins.
fn subject(session: &SessionReport, begun: String) -> Subject {
    let version = |index: &usize| session.libraries.get(*index)?.nccl_version;
    let process = |target: &TargetReport| {
        let versions = joined(target.libraries.iter().filter_map(version), ",");
        (target.pid, WatchedProcess::new(target.pid, &target.name, versions, target.whose.as_ref()))
    };
    Subject {
        host: session.host.clone(),
        level: session.level,
        processes: session.targets.iter().map(process).collect(),
        recording: Some(ShownRecording { begun, is_over: false }),
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
        if let Some(recording) = &mut self.subject.recording {
            recording.is_over = self.recording.is_over;
        }
        Ok(progress == Progress::Read)
    }

    /// Prints a table: of the whole recording, or, while it is written, of the next moments.
    fn once(&mut self, args: &TopArgs, latest: Snapshot, stop: &StopHandle) -> Result<()> {
        if let Some(silence) = self.silence() {
            tell!(
                "it was cut off, or nothing happens: no record for {}; the table is of the last {} s before",
                ago(silence.as_secs_f64()),
                Duration::from_nanos(TAIL_NS).as_secs()
            );
            let last = self.known_at(self.recording.pipeline.last_ns);
            return print_once(args, &self.subject, [&latest, &latest, &last], self.note());
        }
        let mut before = latest.clone();
        if !self.recording.is_over {
            tell!(
                "it is still being written, or was cut off; watching for {} s",
                args.interval.as_secs_f64()
            );
            before = self.snapshot();
        }
        let earlier = follow(self, &before, args.interval, stop)?;
        let now = self.snapshot();
        if now.at_ns < before.at_ns.saturating_add(LEAST_NS) {
            // It ended right away, or nothing was written meanwhile: of its latest moments, then.
            before = latest;
        }
        print_once(args, &self.subject, [&before, &earlier, &now], self.note())
    }

    /// Returns all that was read, as what is known at this time.
    fn known_at(&self, at_ns: u64) -> Snapshot {
        Snapshot { at_ns, statistics: self.live.read(), gpus: Vec::new() }
    }

    /// Returns the time since the latest record, if it is long: the tracer was killed, or nothing happens.
    /// A recording without any record has only begun.
    fn silence(&self) -> Option<Duration> {
        let last_ns = self.recording.pipeline.last_ns;
        let silence = Duration::from_nanos(now_ns(ClockId::Monotonic).saturating_sub(last_ns));
        (!self.recording.is_over && last_ns > 0 && silence > SILENCE).then_some(silence)
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

    /// Returns what is known now: until the latest record, or, where nothing comes for long, until now.
    fn snapshot(&mut self) -> Snapshot {
        let is_silent = self.silence().is_some();
        let until_ns = if is_silent { now_ns(ClockId::Monotonic) } else { self.recording.pipeline.last_ns };
        self.at_ns = self.at_ns.max(until_ns);
        self.known_at(self.at_ns)
    }

    fn subject(&self) -> &Subject {
        &self.subject
    }

    fn line(&self) -> Option<String> {
        self.note()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_of_a_folder_are_named() {
        let windows = ["w/1", "w/2"].map(PathBuf::from);
        let said = choose_one(Path::new("w"), &windows);
        assert_eq!(said, "`w` is a folder of recordings; give one of `w/1`, `w/2`");
        let many: Vec<PathBuf> = (0..9).map(|number| PathBuf::from(format!("w/{number}"))).collect();
        assert!(choose_one(Path::new("w"), &many).ends_with("`w/7` …"));
    }
}
