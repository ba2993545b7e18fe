//! `session.json`: how it begins, and how it is completed.
//!
//! Every hit is accounted for: what the kernel counted, against the records that came and those that were
//! dropped.

use anyhow::Result;
use ncclflow_common::ProbeCounters;
use rustix::time::ClockId;

use super::{
    options::ProbeChoice,
    pipeline::Pipeline,
    session::Taken,
    setup::{LibraryInUse, Setup},
};
use crate::{
    clock::now_ns,
    kernel::{
        loader::{Attachment, Buffer},
        probe::Level,
        stream::ProbeCounts,
    },
    sinks::{AttachReport, BufferReport, ProbeReport, SessionReport, SessionState, TargetReport},
};
use flow::{
    model::ModelCounters,
    schema::{ClockReport, CpuReport, LossReport},
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
        libraries: setup.libraries.iter().map(LibraryInUse::report).collect(),
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

/// Bytes that `session.json` will have at most, if not very much is lost: it grows with what is said of each
/// probe, and lists of gaps and CPUs. What ranks add is counted with their files.
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
    let accounts = draw_up(attachment, &mut taken.pipeline, &taken.dropped, baseline, ended)?;
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
    report.communicators = pipeline.files().ranks();
    Ok(())
}

/// The accounts of a session.
#[derive(Debug, Default)]
struct Accounts {
    probes: Vec<ProbeReport>,
    cpus: Vec<CpuReport>,
    /// Hits unaccounted for, or records that nobody counted as a hit. If it is not 0, ncclflow is at fault.
    unaccounted: u64,
}

/// What the kernel had counted when a window was opened; nothing for a whole session.
#[derive(Clone, Debug, Default)]
pub(super) struct Baseline {
    /// By cookie and CPU.
    counters: Vec<Vec<ProbeCounters>>,
}

impl Baseline {
    /// As it is now.
    pub(super) fn of(attachment: &Attachment) -> Result<Self> {
        let counters = attachment.probes().iter().map(|probe| attachment.counters(probe));
        Ok(Self { counters: counters.collect::<Result<_>>()? })
    }

    pub(super) fn counters(&self) -> &[Vec<ProbeCounters>] {
        &self.counters
    }

    fn at(&self, cookie: u32, cpu: usize) -> ProbeCounters {
        let cookie = usize::try_from(cookie).unwrap_or(usize::MAX);
        self.counters.get(cookie).and_then(|cpus| cpus.get(cpu)).copied().unwrap_or_default()
    }
}

/// Draws up the accounts of what came since the baseline. The session is closed, and all that came has been
/// taken.
fn draw_up(
    attachment: &Attachment,
    pipeline: &mut Pipeline,
    dropped: &ProbeCounts,
    baseline: &Baseline,
    now_ns: u64,
) -> Result<Accounts> {
    let mut accounts = Accounts::default();
    let mut cpus: Vec<CpuReport> = Vec::new();
    for probe in attachment.probes() {
        let (mut sum, mut faulted, mut disarmed, mut lossy) = (CpuReport::default(), 0, 0, Vec::new());
        for (cpu, counters) in attachment.counters(probe)?.iter().enumerate() {
            let number = u32::try_from(cpu).unwrap_or(u32::MAX);
            let before = baseline.at(probe.cookie, cpu);
            let account = CpuReport {
                cpu: number,
                hits: counters.hits.saturating_sub(before.hits),
                delivered: pipeline.delivered().of(probe.cookie, cpu),
                lost: counters.lost_full.saturating_sub(before.lost_full),
                dropped: dropped.of(probe.cookie, cpu),
            };
            let missing = pipeline.gaps_mut().end(
                u16::try_from(probe.cookie).unwrap_or(u16::MAX),
                number,
                counters.hits,
                now_ns,
            );
            let known = account.lost + account.dropped;
            // Two ways to the same: by counting, and by the numbers that did not come.
            accounts.unaccounted +=
                account.hits.abs_diff(account.delivered + known).max(missing.abs_diff(known));
            if account.hits != account.delivered {
                lossy.push(account);
            }
            sum.add(&account);
            faulted += counters.faulted.saturating_sub(before.faulted);
            disarmed += counters.disarmed.saturating_sub(before.disarmed);
            if cpus.len() <= cpu {
                cpus.push(CpuReport { cpu: number, ..CpuReport::default() });
            }
            if let Some(total) = cpus.get_mut(cpu) {
                total.add(&account);
            }
        }
        accounts.probes.push(ProbeReport {
            function: probe.function.clone(),
            symbol: probe.symbol.clone(),
            at: probe.place,
            part: probe.part,
            pid: probe.pid,
            library: probe.library,
            hits: sum.hits + disarmed,
            delivered: sum.delivered,
            lost: sum.lost,
            dropped: sum.dropped,
            disarmed,
            faulted,
            cpus: lossy,
        });
    }
    accounts.cpus = cpus.into_iter().filter(|cpu| cpu.hits + cpu.delivered > 0).collect();
    Ok(accounts)
}
