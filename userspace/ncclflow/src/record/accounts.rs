//! Every hit is accounted for: what the kernel counted, against what came and what was dropped.

use anyhow::Result;
use ncclflow_common::ProbeCounters;

use super::pipeline::Pipeline;
use crate::{
    kernel::{loader::Attachment, stream::Account},
    sinks::ProbeReport,
};
use flow::schema::CpuReport;

/// The accounts of a session.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    pub(super) probes: Vec<ProbeReport>,
    pub(super) cpus: Vec<CpuReport>,
    /// Hits of which it is not known what became of them, or records that nobody counted as a hit. 0, or a fault of ours.
    pub(super) unaccounted: u64,
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

/// Draws up the accounts of what was since the baseline. The session is closed, and all that came has been taken.
pub(super) fn draw_up(
    attachment: &Attachment,
    pipeline: &mut Pipeline,
    dropped: &Account,
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
