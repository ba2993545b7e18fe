//! `session.json`: how it begins, and how it is completed.

use anyhow::Result;
use rustix::time::ClockId;

use super::{
    accounts,
    accounts::Baseline,
    live::Taken,
    setup::{ProbeChoice, Setup},
};
use crate::{
    clock::now_ns,
    kernel::{
        loader::{Attachment, Buffer},
        probe::Level,
    },
    sinks::{AttachReport, BufferReport, SessionReport, SessionState, TargetReport},
};
use flow::{
    model::ModelCounters,
    schema::{ClockReport, CommunicatorReport, LossReport},
};

/// The report of a session that begins.
pub(super) fn first_report(
    setup: &Setup,
    choice: ProbeChoice,
    buffer: Buffer,
    queue_bytes: usize,
) -> SessionReport {
    let host = rustix::system::uname();
    let (monotonic, realtime) = (now_ns(ClockId::Monotonic), now_ns(ClockId::Realtime));
    SessionReport {
        ncclflow: env!("CARGO_PKG_VERSION"),
        state: SessionState::Recording,
        host: host.nodename().to_string_lossy().into_owned(),
        kernel: host.release().to_string_lossy().into_owned(),
        level: choice.level,
        sampling: None,
        step_detail: (choice.level == Level::Steps).then_some(choice.detail),
        clock: ClockReport {
            clock: "CLOCK_MONOTONIC".into(),
            started_monotonic_ns: monotonic,
            started_realtime_ns: realtime,
            offset_ns: realtime.saturating_sub(monotonic),
            ended_monotonic_ns: None,
        },
        attach: AttachReport::default(),
        targets: setup
            .targets
            .iter()
            .map(|target| TargetReport {
                pid: target.process.pid(),
                own_pid: target.process.own_pid(),
                name: target.process.name().to_owned(),
                libraries: target.libraries.clone(),
                exited: false,
                started_ticks: target.process.started(),
                followed_since_ns: None,
                untraced: None,
            })
            .collect(),
        libraries: setup.libraries.iter().map(super::setup::LibraryInUse::report).collect(),
        communicators: Vec::new(),
        buffer: BufferReport {
            kind: buffer.kind,
            bytes: buffer.bytes_taken(),
            queue_bytes: queue_bytes as u64,
            queue_peak_bytes: 0,
        },
        probes: Vec::new(),
        cpus: Vec::new(),
        loss: LossReport::default(),
        gaps: Vec::new(),
        model: ModelCounters::default(),
        first_undecodable: None,
        max_size: None,
        compressed: None,
        passed_over: setup.passed_over.clone(),
        errors: Vec::new(),
        window: None,
        windows: Vec::new(),
    }
}

/// Bytes that `session.json` will have at most, if not very much is lost: it grows with what is said of each probe, and lists of gaps and
/// CPUs. What ranks add is counted with their files.
pub(super) fn report_room(report: &SessionReport, probes: usize) -> u64 {
    const LISTS: usize = 48 << 10;
    const PROBE: usize = 768;
    let text = report.to_text().map_or(0, |text| text.len());
    (text + LISTS + probes * PROBE) as u64
}

/// Completes the report of a session that is over.
pub(super) fn complete_report(
    report: &mut SessionReport,
    attachment: &Attachment,
    taken: &mut Taken,
    baseline: &Baseline,
) -> Result<()> {
    let ended = now_ns(ClockId::Monotonic);
    report.clock.ended_monotonic_ns = Some(ended);
    let accounts = accounts::draw_up(attachment, &mut taken.pipeline, &taken.dropped, baseline, ended)?;
    let pipeline = &mut taken.pipeline;
    report.probes = accounts.probes;
    report.cpus = accounts.cpus;
    report.gaps = pipeline.gaps_mut().report();
    report.buffer.queue_peak_bytes = taken.queue_peak as u64;
    let (records_undecodable, first) = pipeline.undecodable();
    report.first_undecodable = first.map(ToString::to_string);
    let mut lines_lost = pipeline.files().lost_lines();
    lines_lost += taken.windows_lost.lines;
    report.loss = LossReport {
        records_lost: report.probes.iter().map(|probe| probe.lost).sum(),
        records_dropped: report.probes.iter().map(|probe| probe.dropped).sum(),
        records_unaccounted: accounts.unaccounted,
        records_undecodable,
        lines_lost: lines_lost.lines,
        lines_over_max_size: lines_lost.over_max_size,
        aggregates_over_max_size: taken.windows_lost.aggregates,
        windows_late: taken.windows_lost.late,
        records_not_captured: taken.not_captured,
    };
    report.model = pipeline.model_counters();
    report.communicators = pipeline
        .files()
        .summaries()
        .into_iter()
        .map(|rank| CommunicatorReport {
            comm_hash: rank.comm_hash,
            folder: rank.folder,
            rank: rank.rank,
            n_ranks: rank.n_ranks,
            pid: rank.pid,
            proxy_flow_lines: rank.records,
            flow_steps_lines: rank.steps,
            api_lines: rank.api_calls,
            lost_lines: rank.lost.lines,
        })
        .collect();
    Ok(())
}
