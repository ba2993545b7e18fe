//! `session.json`: its beginning, and its completion with what belongs to it, for a recording or a window.

use crate::kernel::loader::Attachment;
use inspect::{
    clock::{now_ns, realtime_offset_ns},
    process::Process,
};
use recording::{
    rows::Pipeline,
    sinks::{
        DiskBudget, FlowRanks, OutputDir, ReservedFile, SessionFiles, compress_files, is_over_max_size,
        write_last_session,
    },
};
use std::{io, mem};

use anyhow::Result;
use rustix::time::ClockId;

use super::{
    accounts::{Baseline, draw_up},
    make_lines::Made,
    options::{Notice, RecordOptions},
    setup::{LibraryInUse, Setup, Target},
    taker::OpenRecording,
    threads::Taken,
};
use flow::{
    model::Sampling,
    schema::ClockReport,
    session::{
        Budget, BufferReport, FilesReport, FilesState, Level, SessionReport, SessionState, TargetReport,
    },
};

/// Returns the report of a session that begins.
pub(super) fn first_report(setup: &Setup, options: &RecordOptions) -> SessionReport {
    let RecordOptions { choice, buffer, sampling, queue_bytes, .. } = *options;
    let host = rustix::system::uname();
    let report_of = |Target { process, libraries, no_graph_launches }: &Target| TargetReport {
        no_graph_launches: no_graph_launches.clone(),
        ..target_report(process.pid(), Some(process), libraries.clone())
    };
    let (monotonic, realtime) = (now_ns(ClockId::Monotonic), now_ns(ClockId::Realtime));
    SessionReport {
        ncclflow: env!("CARGO_PKG_VERSION").into(),
        state: SessionState::Recording,
        host: host.nodename().to_string_lossy().into_owned(),
        kernel: host.release().to_string_lossy().into_owned(),
        level: Some(choice.level),
        api: choice.api,
        sampling: (sampling != Sampling::default()).then_some(sampling),
        step_detail: (choice.level == Level::Steps).then_some(choice.detail),
        clock: ClockReport {
            clock: "CLOCK_MONOTONIC".into(),
            started_monotonic_ns: monotonic,
            started_realtime_ns: realtime,
            offset_ns: realtime.saturating_sub(monotonic),
            ended_monotonic_ns: None,
        },
        targets: setup.targets.iter().map(report_of).collect(),
        libraries: setup.libraries.iter().map(LibraryInUse::report).collect(),
        buffer: BufferReport {
            kind: buffer.kind,
            bytes: buffer.bytes_taken(),
            queue_bytes: queue_bytes as u64,
            queue_peak_bytes: 0,
        },
        passed_over: setup.passed_over.clone(),
        ..SessionReport::default()
    }
}

/// Returns the report of a traced process; without a `process`, of one that has ended already.
pub(super) fn target_report(pid: u32, process: Option<&Process>, libraries: Vec<usize>) -> TargetReport {
    TargetReport {
        pid,
        own_pid: process.map_or(pid, Process::own_pid),
        name: process.map_or_else(String::new, |process| process.name().to_owned()),
        libraries,
        exited: process.is_none(),
        started_ticks: process.and_then(Process::started),
        ..TargetReport::default()
    }
}

/// Completes the report's accounts of records: no more come. Files may still be made of them.
pub(super) fn complete_accounts(
    report: &mut SessionReport,
    attachment: &Attachment,
    taken: &mut Taken,
    baseline: &Baseline,
) -> Result<()> {
    let ended = now_ns(ClockId::Monotonic);
    report.clock.ended_monotonic_ns = Some(ended);
    report.clock_moved_ns = clock_moved(report.clock.offset_ns, realtime_offset_ns());
    let Taken { accounts, dropped, .. } = taken;
    let records_unaccounted = draw_up(report, attachment, accounts, dropped, baseline, ended)?;
    report.buffer.queue_peak_bytes = taken.queue_peak as u64;
    report.loss.records_lost = report.probes.iter().map(|probe| probe.lost).sum();
    report.loss.records_dropped = report.probes.iter().map(|probe| probe.dropped).sum();
    report.loss.records_unaccounted = records_unaccounted;
    for (pid, records) in mem::take(&mut taken.over_share) {
        report.over(Budget::Queue, pid, records);
    }
    if let Some(kept) = &taken.kept {
        let totals = kept.writer.totals();
        report.recording = Some(totals);
        report.loss.records_not_recorded = totals.lost;
        if taken.is_cut_short {
            // Of the records taken, those in complete blocks are in the recording.
            report.loss.records_not_recorded =
                taken.accounts.delivered.total().saturating_sub(totals.records);
        }
    }
    if report.state != SessionState::Failed {
        report.state = SessionState::MakingFiles;
    }
    Ok(())
}

/// Completes the report with the results of decoding: of making files, or, where none are, for statistics.
/// Returns the files.
pub(super) fn complete_files(
    report: &mut SessionReport,
    decoded: Option<Pipeline>,
    made: Option<Result<Made>>,
) -> SessionFiles {
    let pipeline = match made {
        Some(Ok(Made { pipeline, report: files })) => {
            report.files = Some(files);
            Some(pipeline)
        }
        Some(Err(_)) => {
            report.files = Some(FilesReport::of(FilesState::Failed));
            decoded
        }
        None => decoded,
    };
    let Some(pipeline) = pipeline else { return SessionFiles::default() };
    let lost = pipeline.files().lost_lines();
    report.first_undecodable.clone_from(&pipeline.first_error);
    report.loss.records_undecodable = pipeline.undecodable;
    report.loss.lines_lost = lost.lines;
    report.loss.lines_over_max_size = lost.over_max_size;
    report.model = pipeline.model_counters();
    for (pid, times) in pipeline.budget.over() {
        report.over(Budget::Model, *pid, *times);
    }
    for (pid, lines) in pipeline.files().over_share() {
        report.over(Budget::LineFiles, pid, lines);
    }
    report.communicators = pipeline.files().ranks();
    report.left_out.communicators = pipeline.files().forgotten_ranks();
    pipeline.output.files
}

/// Marks the recording as whole. An error is told and reported.
pub(super) fn end_recording(
    taken: &mut Taken,
    report: &mut SessionReport,
    notice: &mut dyn FnMut(Notice<'_>),
) {
    let Some(OpenRecording { writer, .. }) = &mut taken.kept else { return };
    if taken.is_cut_short {
        // The recording has no end, like that of a killed process.
        return;
    }
    let written = report.to_text().map_err(io::Error::from).and_then(|text| writer.write_end(&text));
    if let Err(error) = written
        && !is_over_max_size(&error)
    {
        fail(report, notice, format!("writing the end of the recording failed: {error}"));
    }
}

fn fail(report: &mut SessionReport, notice: &mut dyn FnMut(Notice<'_>), error: String) {
    notice(Notice::WriteFailed(&error));
    report.errors.push(error);
}

/// Completes the folder and the recording. Failed writes are told and reported. `folder`: with room for the
/// last `session.json`, if it was reserved.
pub(super) fn write_results(
    mut taken: Taken,
    files: &mut SessionFiles,
    folder: Option<(&OutputDir, Option<&ReservedFile>)>,
    report: &mut SessionReport,
    compress: bool,
    notice: &mut dyn FnMut(Notice<'_>),
) -> FlowRanks {
    files.close();
    let flow_ranks = files.flow_ranks();
    report.loss.aggregates_over_max_size = flow_ranks.over_max_size;
    for error in files.errors() {
        fail(report, notice, error.clone());
    }
    if compress {
        let (compressed, errors) = compress_files(files);
        // Files of a recording with windows are theirs.
        report.compressed = (compressed.files + compressed.files_left > 0).then_some(compressed);
        for error in errors {
            fail(report, notice, error);
        }
    }
    let state = |report: &SessionReport| match report.state {
        SessionState::Failed => SessionState::Failed,
        _ if report.errors.is_empty() => SessionState::Complete,
        _ => SessionState::WriteFailed,
    };
    report.state = state(report);
    end_recording(&mut taken, report, notice);
    // Older records may have been removed to write the end.
    if let (Some(kept), Some(known)) = (&taken.kept, &mut report.recording) {
        let totals = kept.writer.totals();
        (known.removed_segments, known.removed_records) = (totals.removed_segments, totals.removed_records);
        known.removed_lasting = totals.removed_lasting;
    }
    report.state = state(report);
    if let Some((dir, reserved)) = folder {
        if report.max_size.is_some() {
            report.max_size = dir.budget().map(DiskBudget::report);
        }
        if let Err(error) = write_last_session(dir, report, reserved) {
            fail(report, notice, format!("writing `session.json`: {error}"));
            report.state = state(report);
        }
    }
    flow_ranks
}

/// Returns the change between two offsets to wall time, if it is worth reporting.
fn clock_moved(before_ns: u64, now_ns: u64) -> Option<i64> {
    const WORTH_A_WORD_NS: u64 = 1_000_000;
    let moved = i64::try_from(i128::from(now_ns) - i128::from(before_ns)).ok()?;
    (moved.unsigned_abs() > WORTH_A_WORD_NS).then_some(moved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_or_a_host_that_slept_is_told() {
        assert_eq!(clock_moved(1_000_000_000, 1_000_400_000), None, "both clocks are not read at once");
        assert_eq!(clock_moved(1_000_000_000, 61_000_000_000), Some(60_000_000_000), "it slept for a minute");
        assert_eq!(clock_moved(5_000_000_000, 2_000_000_000), Some(-3_000_000_000), "it was set back");
    }
}
